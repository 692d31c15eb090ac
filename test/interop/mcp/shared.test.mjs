// What an MCP client sees of tools that others offer on the hub: agents of another
// process, and foreign MCP servers that the hub has mounted.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

const { MCP_SDK, PROJECT, NEW, KILL } = process.env;
const { open } = await import(`./${MCP_SDK}.mjs`);

let session;
before(async () => {
  session = await open(PROJECT);
});
after(() => session?.client.close());

const call = async (name, args = {}, options) => {
  const result = await session.callTool({ name, arguments: args }, options);
  return { text: result.content[0]?.text, data: result.structuredContent, error: result._meta?.['io.parley/error'], failed: result.isError ?? false };
};
const list = async () => (await session.client.listTools()).tools.map((t) => t.name);

// until asks again until the answer is one that is wanted.
const until = async (ask, wanted) => {
  for (const deadline = Date.now() + 30_000; ; ) {
    const answer = await ask();
    if (wanted(answer)) return answer;
    assert.ok(Date.now() < deadline, `never: ${wanted}, last ${JSON.stringify(answer)}`);
    await new Promise((done) => setTimeout(done, 50));
  }
};

test('tools of several agents and of foreign servers are listed under their names', async () => {
  const names = await list();
  for (const name of ['mars.greet', 'venus.greet', 'every.echo', 'web.echo', 'every.get-sum', 'delegate_task']) {
    assert.ok(names.includes(name), `${name} is not in ${names}`);
  }
});

test('each call goes to the agent whose tool it is', async () => {
  assert.equal((await call('mars.greet', { name: 'ann' })).data.text, 'hello ann from mars');
  assert.equal((await call('venus.greet', { name: 'ann' })).data.text, 'hello ann from venus');
  assert.match((await call('every.echo', { message: 'one' })).text, /Echo: one/);
  assert.match((await call('web.echo', { message: 'two' })).text, /Echo: two/);
});

test('a failure says whose it is', async () => {
  const wrong = await call('mars.greet', { name: 3 });
  assert.ok(wrong.failed);
  assert.equal(wrong.error.code, 'INVALID_ARGUMENTS');
  assert.equal(wrong.error.sourceAgent, 'mars');
  const tool = (await session.client.listTools()).tools.find((t) => t.name === 'mars.greet');
  assert.equal(tool._meta['io.parley/sourceAgent'], 'mars');
  await assert.rejects(session.callTool({ name: 'mars.nothing', arguments: {} }), { code: -32602 });
});

test('resources and prompts of a foreign server are there', async () => {
  const { resources } = await session.client.listResources();
  const text = resources.find((r) => r.mimeType === 'text/markdown' || r.mimeType === 'text/plain');
  assert.ok(text, JSON.stringify(resources));
  const { contents } = await session.client.readResource({ uri: text.uri });
  assert.ok(contents[0].text.length > 0);
  await assert.rejects(session.client.readResource({ uri: 'demo://no/such/thing' }));
  const { prompts } = await session.client.listPrompts();
  const prompt = prompts.find((p) => p.name.startsWith('every.') && !p.arguments?.length);
  assert.ok((await session.client.getPrompt({ name: prompt.name })).messages.length > 0);
});

test('a tool that appears and goes while the client watches', async () => {
  let wake = () => {};
  const stop = await session.watchTools(() => wake());
  const change = async (how, there) => {
    const told = new Promise((done) => (wake = done));
    await call(`mars.${how}`, { name: NEW });
    await told; // not earlier: the client looks when it is told
    await until(list, (names) => names.includes(`mars.${NEW}`) === there);
  };
  await change('grow', true);
  assert.equal((await call(`mars.${NEW}`)).data.text, 'I am new');
  await change('shrink', false);
  await stop();
});

test('progress comes through the mount', async () => {
  const heard = [];
  const result = await call('every.trigger-long-running-operation', { duration: 0.6, steps: 3 }, { onprogress: (p) => heard.push(p) });
  assert.match(result.text, /completed/);
  assert.ok(heard.some((p) => p.total === 3), JSON.stringify(heard));
});

test('cancellation goes through the mount', async () => {
  const before = Number((await call('venus.canceled')).data.text);
  const stop = new AbortController();
  await assert.rejects(call('venus.slow', {}, { signal: stop.signal, onprogress: (p) => p.progress >= 2 && stop.abort() }));
  await until(async () => Number((await call('venus.canceled')).data.text), (n) => n > before);
});

test('a foreign server that is killed comes back by itself, and the rest goes on', { skip: !KILL }, async () => {
  assert.equal((await call('mars.kill', { name: KILL })).data.text, 'killed');
  assert.equal((await call('venus.greet', { name: 'ann' })).data.text, 'hello ann from venus');
  const other = KILL === 'web' ? 'every' : 'web';
  assert.match((await call(`${other}.echo`, { message: 'still' })).text, /Echo: still/);
  const back = await until(
    () => call(`${KILL}.echo`, { message: 'again' }),
    (answer) => {
      if (answer.failed) assert.equal(answer.error.code, 'BACKEND_UNAVAILABLE', JSON.stringify(answer));
      return !answer.failed;
    },
  );
  assert.match(back.text, /Echo: again/);
});
