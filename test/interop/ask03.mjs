// Asks an agent with the client of @a2a-js/sdk 0.3.x, and prints its answer.
// A2A_ADDRESS is the agent's address, A2A_PROMPT what it is asked.
import { randomUUID } from 'node:crypto';

import { ClientFactory } from 'a2a-js-sdk-0.3/client';

const client = await new ClientFactory().createFromUrl(process.env.A2A_ADDRESS + '/', '.well-known/agent.json');
const task = await client.sendMessage({
  message: { kind: 'message', messageId: randomUUID(), role: 'user', parts: [{ kind: 'text', text: process.env.A2A_PROMPT }] },
});
console.log(task.status.message.parts[0].text);
