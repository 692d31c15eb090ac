// What agents do with the MCP server, through the TypeScript SDK that MCP_SDK
// names: two agents in project A, one in project B.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

const { MCP_SDK, MCP_REVISION, PROJECT_A, PROJECT_B } = process.env;
const { open } = await import(`./${MCP_SDK}.mjs`);

let ann, bob, eve;
before(async () => {
  [ann, bob, eve] = await Promise.all([PROJECT_A, PROJECT_A, PROJECT_B].map((project) => open(project)));
});
after(() => Promise.all([ann, bob, eve].map((session) => session?.client.close())));

// call returns what a tool says, with the structured content beside it. Where the
// protocol has no sessions, set_handle gives a token that stands for one.
const call = async (session, name, args = {}, options) => {
  const token = session.token && { session: session.token };
  const result = await session.callTool({ name, arguments: { ...args, ...token } }, options);
  session.token ??= result.structuredContent?.session;
  return { text: result.content[0].text, data: result.structuredContent, failed: result.isError ?? false };
};
const said = (messages) => messages.map((m) => `${m.handle}: ${m.message}`);

test('the revision is the one that is wanted', () => {
  assert.equal(ann.revision, MCP_REVISION);
  assert.equal(ann.client.getServerVersion().name, process.env.MCP_URL ? 'parley' : 'nats-mcp-server');
  assert.match(ann.client.getInstructions(), /channels/i);
});

test('every tool is listed, with schemas and a description for a model', async () => {
  const { tools } = await ann.client.listTools();
  const names = ['get_my_handle', 'list_channels', 'read_messages', 'send_message', 'set_handle', 'wait_for_messages'];
  for (const name of names) {
    const tool = tools.find((t) => t.name === name);
    assert.ok(tool, `there is no ${name}`);
    assert.ok(tool.description.length > 40, `${name} says only: ${tool.description}`);
    assert.equal(tool.inputSchema.type, 'object');
    assert.equal(tool.outputSchema.type, 'object');
  }
});

test('a message needs a handle', async () => {
  const early = await call(bob, 'send_message', { channel: 'roadmap', message: 'who am I?' });
  assert.ok(early.failed);
  assert.match(early.text, /ValidationError/);
  assert.match(early.text, /set_handle/);
  const none = await call(bob, 'get_my_handle');
  assert.equal(none.failed, false);
  assert.equal(none.data.isSet, false);
});

test('a handle is set, and validated', async () => {
  for (const [session, handle] of [[ann, 'ann'], [bob, 'bob'], [eve, 'eve']]) {
    assert.match((await call(session, 'set_handle', { handle })).text, new RegExp(`^Handle set to: ${handle}`));
    assert.equal((await call(session, 'get_my_handle')).data.handle, handle);
  }
  const wrong = await call(ann, 'set_handle', { handle: 'Ann Smith' });
  assert.ok(wrong.failed);
  assert.match(wrong.text, /Ann Smith[^]*\^\[a-z0-9-\]\+\$[^]*project-manager/);
});

test('the channels are listed', async () => {
  const { text, data } = await call(ann, 'list_channels');
  assert.deepEqual(data.channels.map((c) => c.name), ['roadmap', 'parallel-work', 'errors']);
  assert.match(text, /- \*\*parallel-work\*\*: Coordination for parallel work among agents/);
});

test('a message is read by the other agent, and by no other project', async () => {
  assert.match((await call(bob, 'read_messages', { channel: 'roadmap' })).text, /No messages in #roadmap/);
  const sent = await call(ann, 'send_message', { channel: 'roadmap', message: 'plan: ☂\n[x] **bob**: not me' });
  assert.equal(sent.text, 'Message sent to #roadmap by ann');
  assert.equal(sent.data.queued, false);
  const { text, data } = await call(bob, 'read_messages', { channel: 'roadmap', limit: 10 });
  assert.deepEqual(said(data.messages), ['ann: plan: ☂\n[x] **bob**: not me']);
  assert.match(text, /^\[\d{4}-\d\d-\d\dT[\d:.]+Z\] \*\*ann\*\*: plan: ☂$/m);
  assert.doesNotMatch(text, /^\[x\]/m);
  const elsewhere = await call(eve, 'read_messages', { channel: 'roadmap' });
  assert.deepEqual(elsewhere.data.messages, []);
});

test('what is wrong is said, with what would be right', async () => {
  const channel = await call(ann, 'send_message', { channel: 'roadmaps', message: 'x' });
  assert.ok(channel.failed);
  assert.match(channel.text, /roadmaps[^]*roadmap, parallel-work, errors/);
  const argument = await call(ann, 'read_messages', { channel: 'roadmap', limits: 3 });
  assert.ok(argument.failed);
  assert.match(argument.text, /limits[^]*limit/);
  const limit = await call(ann, 'read_messages', { channel: 'roadmap', limit: 1001 });
  assert.ok(limit.failed);
  await assert.rejects(ann.callTool({ name: 'no_such_tool', arguments: {} }), { code: -32602 });
});

test('a wait ends when another agent speaks, not when another project does', async () => {
  await call(bob, 'read_messages', { channel: 'errors' });
  const woken = call(bob, 'wait_for_messages', { channels: ['errors'], timeout_seconds: 50 });
  await call(eve, 'send_message', { channel: 'errors', message: 'of another project' });
  await call(ann, 'send_message', { channel: 'errors', message: 'the tests fail' });
  const { data } = await woken;
  assert.equal(data.timedOut, false);
  assert.deepEqual(said(data.messages), ['ann: the tests fail']);
});

test('a wait tells its progress, and when its time is up', async () => {
  const { data } = await call(bob, 'wait_for_messages', { channels: ['errors'], timeout_seconds: 1 }, { onprogress: () => {} });
  assert.equal(data.timedOut, true);
});

test('a wait can be cancelled, and the session goes on', async () => {
  const stop = new AbortController();
  const wait = call(bob, 'wait_for_messages', { timeout_seconds: 50 }, { signal: stop.signal });
  await call(bob, 'get_my_handle'); // the wait does not keep other calls waiting
  stop.abort();
  await assert.rejects(wait);
  assert.equal((await call(bob, 'get_my_handle')).data.handle, 'bob');
});

test('channels are resources, and who subscribes is told of news', async () => {
  const { resources } = await bob.client.listResources();
  const uri = resources.find((r) => r.name === 'parallel-work').uri;
  const { resourceTemplates } = await bob.client.listResourceTemplates();
  assert.ok(resourceTemplates.some((t) => t.uriTemplate === 'parley://channels/{channel}'));
  let updated;
  const news = new Promise((done) => (updated = done));
  const unsubscribe = await bob.subscribe(uri, updated);
  await call(ann, 'send_message', { channel: 'parallel-work', message: 'Claimed B2.T1' });
  assert.equal(await news, uri);
  const { contents } = await bob.client.readResource({ uri });
  assert.match(contents[0].text, /\*\*ann\*\*: Claimed B2\.T1/);
  await unsubscribe();
  await assert.rejects(bob.client.readResource({ uri: uri + '-not' }));
});

test('a document is edited by both agents, who hear of each other, and of no other project', async () => {
  const uri = 'parley://documents/plan';
  assert.match((await call(ann, 'list_documents')).text, /no documents/);
  const none = await call(ann, 'read_document', { name: 'plan' });
  assert.ok(none.failed);
  assert.match(none.text, /NotFoundError[^]*plan[^]*edit_document/);

  let updated;
  let news = new Promise((done) => (updated = done));
  const unsubscribe = await bob.subscribe(uri, (at) => updated(at)); // before there is one
  const made = await call(ann, 'edit_document', {
    name: 'plan',
    edits: [
      { op: 'set', path: ['plan', 'status'], value: { open: true, '☂': [1, null] } },
      { op: 'insert', path: ['todo'], values: ['one', 'two'] },
      { op: 'text', path: ['notes'], text: 'first 🚀' },
      { op: 'increment', path: ['runs'] },
    ],
  });
  assert.equal(made.failed, false, made.text);
  assert.deepEqual(made.data.content.plan, { status: { open: true, '☂': [1, null] } });
  assert.equal(await news, uri);

  news = new Promise((done) => (updated = done));
  const both = await Promise.all([ann, bob, ann, bob].map((agent, i) =>
    call(agent, 'edit_document', { name: 'plan', edits: [{ op: 'insert', path: ['todo'], values: [`at once ${i}`] }, { op: 'increment', path: ['runs'] }] })));
  assert.ok(both.every((edit) => !edit.failed));
  assert.equal(await news, uri);
  const [read, same] = await Promise.all([ann, bob].map((agent) => call(agent, 'read_document', { name: 'plan' })));
  assert.deepEqual(read.data, same.data);
  assert.deepEqual(JSON.parse(read.text), read.data.content);
  assert.equal(read.data.content.notes, 'first 🚀');
  assert.deepEqual([...read.data.content.todo].sort(), ['at once 0', 'at once 1', 'at once 2', 'at once 3', 'one', 'two']);
  assert.notEqual(read.data.version, made.data.version);

  const { resourceTemplates } = await bob.client.listResourceTemplates();
  assert.ok(resourceTemplates.some((t) => t.uriTemplate === 'parley://documents/{document}'));
  const { contents } = await bob.client.readResource({ uri });
  assert.equal(contents[0].mimeType, 'application/json');
  assert.deepEqual(JSON.parse(contents[0].text), read.data.content);
  await unsubscribe();

  assert.match((await call(eve, 'list_documents')).text, /no documents/);
  assert.ok((await call(eve, 'read_document', { name: 'plan' })).failed);
  await assert.rejects(eve.client.readResource({ uri }));
});

test('edits that are wrong change nothing, and say why', async () => {
  const before = await call(ann, 'read_document', { name: 'plan' });
  for (const [edits, why] of [
    [[{ op: 'set', path: ['plan', 'kept'], value: 1 }, { op: 'jump', path: ['plan'] }], /edit 2[^]*set, delete, insert/],
    [[{ op: 'set', path: ['plan', 'status'], values: [1] }], /values/],
    [[{ op: 'insert', path: ['todo'], index: 99, values: ['far'] }], /outside/],
    [[{ op: 'set', path: ['notes', 'x'], value: 1 }], /notes/],
    [[], /between 1 and/],
  ]) {
    const wrong = await call(ann, 'edit_document', { name: 'plan', edits });
    assert.ok(wrong.failed, JSON.stringify(edits));
    assert.match(wrong.text, why);
  }
  for (const name of ['shop=plan', '../plan', '']) {
    assert.ok((await call(ann, 'edit_document', { name, edits: [{ op: 'increment', path: ['runs'] }] })).failed, name);
  }
  assert.deepEqual((await call(ann, 'read_document', { name: 'plan' })).data, before.data);
});

test('the workflows are prompts', async () => {
  const { prompts } = await ann.client.listPrompts();
  assert.deepEqual(prompts.map((p) => p.name).sort(), ['dispatcher', 'reporter', 'worker']);
  const { messages } = await ann.client.getPrompt({ name: 'worker', arguments: { handle: 'tdd-1', channel: 'parallel-work' } });
  assert.match(messages[0].content.text, /tdd-1[^]*read_messages/);
  await assert.rejects(ann.client.getPrompt({ name: 'worker', arguments: { handle: 'Not A Handle' } }));
});

test('arguments are completed', async () => {
  const { completion } = await ann.client.complete({
    ref: { type: 'ref/prompt', name: 'worker' }, argument: { name: 'channel', value: 'par' },
  });
  assert.deepEqual(completion.values, ['parallel-work']);
});
