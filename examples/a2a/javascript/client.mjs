// Talks to an agent of a Parley hub with @a2a-js/sdk: reads the agent's card, streams the answer to a prompt, and
// answers the agent's questions.
//
//   npm install @a2a-js/sdk
//   node client.mjs http://127.0.0.1:8080/agents/claude-code "Create hello.txt."
//
// The hub's token, if it requires one, is in the environment: PARLEY_TOKEN.
import { randomUUID } from 'node:crypto';
import { createInterface } from 'node:readline/promises';

import { Role, TaskState, taskStateToJSON } from '@a2a-js/sdk';
import { ClientFactory, ClientFactoryOptions, JsonRpcTransportFactory } from '@a2a-js/sdk/client';

const [agentURL, prompt] = process.argv.slice(2);
if (!prompt) {
  console.error('usage: node client.mjs AGENT-URL PROMPT');
  process.exit(2);
}

// The SDK adds no token by itself. Cards are readable without it.
const token = process.env.PARLEY_TOKEN;
const fetchImpl = (url, init = {}) => {
  const headers = new Headers(init.headers);
  if (token) headers.set('Authorization', `Bearer ${token}`);
  return fetch(url, { ...init, headers });
};

// The card is at AGENT-URL/.well-known/agent-card.json: the slash makes that path relative to the agent.
const options = ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
  transports: [new JsonRpcTransportFactory({ fetchImpl })],
  preferredTransports: ['JSONRPC'],
});
const client = await new ClientFactory(options).createFromUrl(agentURL.replace(/\/*$/, '/'));
console.log('agent:', (await client.getAgentCard()).name);

const part = (content) => ({ content, metadata: undefined, filename: '', mediaType: '' });
const userMessage = (content, { taskId = '', contextId = '' } = {}) => ({
  tenant: '',
  message: {
    messageId: randomUUID(), taskId, contextId, role: Role.ROLE_USER, parts: [part(content)],
    metadata: undefined, extensions: [], referenceTaskIds: [],
  },
  configuration: undefined,
  metadata: undefined,
});

// Without standard input, lines ends at once, and the tool is allowed once.
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const nextLine = async () => ((await lines.next()).value ?? '').trim();

// answerTo prints a question and returns the content of the answer.
const answerTo = async (question) => {
  const permission = question.parts.find((p) => p.metadata?.['parley.permission']);
  if (!permission) { // the agent asks something else, in words
    console.log(question.parts.map((p) => p.content.value).join(' '));
    return { $case: 'text', value: await nextLine() };
  }
  const { title, options } = permission.content.value;
  console.log('question:', title);
  for (const option of options) console.log(`  ${option.id}: ${option.name}`);
  const optionId = (await nextLine()) || options.find((o) => o.kind === 'allow_once')?.id;
  console.log('answer:', optionId);
  return { $case: 'data', value: { optionId } };
};

const ended = [TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_CANCELED, TaskState.TASK_STATE_REJECTED];

for (let message = userMessage({ $case: 'text', value: prompt }); message; ) {
  const events = client.sendMessageStream(message);
  message = undefined;
  for await (const { payload } of events) {
    const event = payload.value;
    if (payload.$case === 'task') console.log('task:', event.id); // the first event
    if (payload.$case === 'artifactUpdate') { // a piece of the answer
      for (const { content } of event.artifact.parts) if (content.$case === 'text') process.stdout.write(content.value);
    }
    if (payload.$case !== 'statusUpdate') continue;
    const { state, message: status } = event.status;
    if (ended.includes(state)) console.log('\nstate:', taskStateToJSON(state));
    // The stream ends with a question. The answer is a message to the same task.
    if (state === TaskState.TASK_STATE_INPUT_REQUIRED) message = userMessage(await answerTo(status), event);
  }
}
process.exit(0); // standard input may still be open
