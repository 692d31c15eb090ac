// Drives the hub with the client of @a2a-js/sdk 1.x, over JSON-RPC and REST.
// A2A_ADDRESS is the agent's address; its behaviour is that of package conformance.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { after, before, describe, test } from 'node:test';

import { Role, TaskState } from '@a2a-js/sdk';
import { ClientFactory, ClientFactoryOptions } from '@a2a-js/sdk/client';

const address = process.env.A2A_ADDRESS;

const request = (prefix, more = {}, configuration = undefined) => ({
  tenant: '',
  message: {
    messageId: `${prefix}-${randomUUID()}`, contextId: '', taskId: '', role: Role.ROLE_USER,
    parts: [{ content: { $case: 'text', value: 'hello' }, metadata: undefined, filename: '', mediaType: '' }],
    metadata: undefined, extensions: [], referenceTaskIds: [], ...more,
  },
  configuration: configuration && {
    acceptedOutputModes: [], taskPushNotificationConfig: undefined, returnImmediately: false, ...configuration,
  },
  metadata: undefined,
});

const all = async (stream) => {
  const events = [];
  for await (const event of stream) events.push(event.payload);
  return events;
};

for (const transport of ['JSONRPC', 'HTTP+JSON']) {
  describe(`@a2a-js/sdk 1.x over ${transport}`, () => {
    let client;
    before(async () => {
      const factory = new ClientFactory(ClientFactoryOptions.createFrom(ClientFactoryOptions.default, { preferredTransports: [transport] }));
      client = await factory.createFromUrl(`${address}/`);
    });

    test('the card is read', async () => {
      const card = await client.getAgentCard();
      assert.equal(card.name, 'TCK agent');
      assert.equal(card.capabilities.streaming, true);
      assert.equal(card.capabilities.pushNotifications, true);
    });

    test('a message is answered', async () => {
      const task = await client.sendMessage(request('tck-complete-task'));
      assert.equal(task.status.state, TaskState.TASK_STATE_COMPLETED);
      assert.equal(task.status.message.parts[0].content.value, 'Hello from TCK');
      const again = await client.getTask({ tenant: '', id: task.id, historyLength: 1 });
      assert.equal(again.id, task.id);
      assert.equal(again.history.length, 1);
    });

    test('an answer may be a message', async () => {
      const message = await client.sendMessage(request('tck-message-response'));
      assert.equal(message.parts[0].content.value, 'Direct message response');
    });

    test('files and data arrive', async () => {
      const file = await client.sendMessage(request('tck-artifact-file-x'));
      assert.equal(file.artifacts[0].parts[0].filename, 'output.txt');
      assert.equal(file.artifacts[0].parts[0].content.value.toString(), 'TCK file content');
      const data = await client.sendMessage(request('tck-artifact-data'));
      assert.deepEqual(data.artifacts[0].parts[0].content.value, { key: 'value', count: 42 });
    });

    test('a stream begins with the task and ends with its end', async () => {
      const events = await all(client.sendMessageStream(request('tck-stream-artifact-chunked')));
      assert.equal(events[0].$case, 'task');
      const chunks = events.filter((e) => e.$case === 'artifactUpdate');
      assert.deepEqual(chunks.map((c) => c.value.artifact.parts[0].content.value), ['chunk-1 ', 'chunk-2']);
      assert.equal(events.at(-1).value.status.state, TaskState.TASK_STATE_COMPLETED);
    });

    test('a running task is subscribed to again', async () => {
      const stream = client.sendMessageStream(request('test-resubscribe-message-id'));
      const first = (await stream.next()).value.payload.value;
      const events = await all(client.resubscribeTask({ tenant: '', id: first.id }));
      assert.equal(events[0].$case, 'task');
      assert.equal(events.at(-1).value.status.state, TaskState.TASK_STATE_COMPLETED);
      await all(stream);
    });

    test('a question is answered on its task', async () => {
      const task = await client.sendMessage(request('tck-input-required'));
      assert.equal(task.status.state, TaskState.TASK_STATE_INPUT_REQUIRED);
      const done = await client.sendMessage(request('tck-complete-task', { taskId: task.id, contextId: task.contextId }));
      assert.equal(done.id, task.id);
      assert.equal(done.status.state, TaskState.TASK_STATE_COMPLETED);
    });

    test('a task is canceled', async () => {
      const task = await client.sendMessage(request('tck-input-required'));
      const canceled = await client.cancelTask({ tenant: '', id: task.id, metadata: undefined });
      assert.equal(canceled.status.state, TaskState.TASK_STATE_CANCELED);
    });

    test('tasks are listed page by page', async () => {
      const contextId = randomUUID();
      for (let i = 0; i < 3; i++) await client.sendMessage(request('tck-complete-task', { contextId }));
      const query = { tenant: '', contextId, status: TaskState.TASK_STATE_UNSPECIFIED, pageSize: 2, pageToken: '', includeArtifacts: false };
      const page = await client.listTasks(query);
      assert.equal(page.tasks.length, 2);
      assert.equal(page.totalSize, 3);
      const last = await client.listTasks({ ...query, pageToken: page.nextPageToken });
      assert.equal(last.tasks.length, 1);
      assert.equal(last.nextPageToken, '');
    });

    test('errors have their names', async () => {
      const named = (name) => (err) => { assert.match(`${err.name} ${err.constructor.name} ${err.message}`, name); return true; };
      await assert.rejects(client.getTask({ tenant: '', id: 'none' }), named(/TaskNotFound|not found/i));
      const task = await client.sendMessage(request('tck-complete-task'));
      await assert.rejects(client.cancelTask({ tenant: '', id: task.id, metadata: undefined }), named(/NotCancelable|cancel/i));
      await assert.rejects(client.sendMessage(request('tck-complete-task', { taskId: task.id })), named(/UnsupportedOperation|not supported/i));
      await assert.rejects(all(client.resubscribeTask({ tenant: '', id: 'none' })), named(/TaskNotFound|not found/i));
      await assert.rejects(all(client.resubscribeTask({ tenant: '', id: task.id })), named(/UnsupportedOperation|not supported/i));
    });

    describe('push notifications', () => {
      const calls = [];
      let hook, url;
      before(async () => {
        hook = createServer((req, res) => {
          let body = '';
          req.on('data', (d) => (body += d));
          req.on('end', () => { calls.push({ headers: req.headers, body: JSON.parse(body) }); res.end(); hook.emit('call'); });
        });
        await new Promise((done) => hook.listen(0, '127.0.0.1', done));
        url = `http://127.0.0.1:${hook.address().port}/`;
      });
      after(() => hook.close());

      test('configurations are kept', async () => {
        const task = await client.sendMessage(request('tck-input-required'));
        const config = { tenant: '', taskId: task.id, id: 'c1', url, token: 'tok', authentication: { scheme: 'Bearer', credentials: 'cred' } };
        assert.equal((await client.createTaskPushNotificationConfig(config)).id, 'c1');
        const got = await client.getTaskPushNotificationConfig({ tenant: '', taskId: task.id, id: 'c1' });
        assert.equal(got.url, url);
        assert.equal(got.token, 'tok');
        const list = await client.listTaskPushNotificationConfig({ tenant: '', taskId: task.id, pageSize: 0, pageToken: '' });
        assert.equal(list.configs.length, 1);
        await client.deleteTaskPushNotificationConfig({ tenant: '', taskId: task.id, id: 'c1' });
        await assert.rejects(client.getTaskPushNotificationConfig({ tenant: '', taskId: task.id, id: 'c1' }));
      });

      test('the end of a task is notified of', async () => {
        const taskPushNotificationConfig = { tenant: '', taskId: '', id: 'c2', url, token: 'tok', authentication: { scheme: 'Bearer', credentials: 'cred' } };
        const task = await client.sendMessage(request('tck-complete-task', {}, { taskPushNotificationConfig }));
        const ended = () => calls.find((c) => (c.body.statusUpdate ?? c.body.task)?.status?.state === 'TASK_STATE_COMPLETED'
          && (c.body.statusUpdate?.taskId ?? c.body.task?.id) === task.id);
        while (!ended()) await new Promise((done) => hook.once('call', done));
        assert.equal(ended().headers.authorization, 'Bearer cred');
        assert.equal(ended().headers['x-a2a-notification-token'], 'tok');
      });
    });
  });
}
