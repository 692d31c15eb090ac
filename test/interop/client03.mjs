// Drives the hub with the client of @a2a-js/sdk 0.3.x, over JSON-RPC and REST.
// A2A_ADDRESS is the hub's address; the agent behaves as package conformance says.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { after, before, describe, test } from 'node:test';

import { ClientFactory, ClientFactoryOptions } from 'a2a-js-sdk-0.3/client';

const address = process.env.A2A_ADDRESS;

const request = (prefix, more = {}, configuration = undefined) => ({
  message: { kind: 'message', messageId: `${prefix}-${randomUUID()}`, role: 'user', parts: [{ kind: 'text', text: 'hello' }], ...more },
  ...(configuration && { configuration }),
});

const all = async (stream) => {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
};

for (const transport of ['JSONRPC', 'HTTP+JSON']) {
  describe(`@a2a-js/sdk 0.3.x over ${transport}`, () => {
    let client;
    before(async () => {
      const factory = new ClientFactory(ClientFactoryOptions.createFrom(ClientFactoryOptions.default, { preferredTransports: [transport] }));
      client = await factory.createFromUrl(address, '/a2a/.well-known/agent.json');
    });

    test('the card is read', async () => {
      const card = await client.getAgentCard();
      assert.equal(card.protocolVersion, '0.3');
      assert.equal(card.capabilities.streaming, true);
    });

    test('a message is answered', async () => {
      const task = await client.sendMessage(request('tck-complete-task'));
      assert.equal(task.kind, 'task');
      assert.equal(task.status.state, 'completed');
      assert.equal(task.status.message.parts[0].text, 'Hello from TCK');
      const again = await client.getTask({ id: task.id, historyLength: 1 });
      assert.equal(again.id, task.id);
      assert.equal(again.history.length, 1);
    });

    test('an answer may be a message', async () => {
      const message = await client.sendMessage(request('tck-message-response'));
      assert.equal(message.parts[0].text, 'Direct message response');
    });

    test('files and data arrive', async () => {
      const file = await client.sendMessage(request('tck-artifact-file-x'));
      assert.equal(file.artifacts[0].parts[0].kind, 'file');
      const data = await client.sendMessage(request('tck-artifact-data'));
      assert.deepEqual(data.artifacts[0].parts[0].data, { key: 'value', count: 42 });
    });

    test('a stream begins with the task and ends with its end', async () => {
      const events = await all(client.sendMessageStream(request('tck-stream-artifact-chunked')));
      assert.equal(events[0].kind, 'task');
      const chunks = events.filter((e) => e.kind === 'artifact-update');
      assert.deepEqual(chunks.map((c) => c.artifact.parts[0].text), ['chunk-1 ', 'chunk-2']);
      assert.equal(events.at(-1).status.state, 'completed');
      assert.equal(events.at(-1).final, true);
    });

    test('a running task is subscribed to again', async () => {
      const stream = client.sendMessageStream(request('test-resubscribe-message-id'));
      const first = (await stream.next()).value;
      const events = await all(client.resubscribeTask({ id: first.id }));
      assert.equal(events[0].kind, 'task');
      assert.equal(events.at(-1).status.state, 'completed');
      await all(stream);
    });

    test('a question is answered on its task', async () => {
      const task = await client.sendMessage(request('any-other'));
      assert.equal(task.status.state, 'input-required');
      const done = await client.sendMessage(request('tck-complete-task', { taskId: task.id, contextId: task.contextId }));
      assert.equal(done.id, task.id);
      assert.equal(done.status.state, 'completed');
    });

    test('a task is canceled', async () => {
      const task = await client.sendMessage(request('any-other'));
      assert.equal((await client.cancelTask({ id: task.id })).status.state, 'canceled');
    });

    test('errors say what is wrong', async () => {
      await assert.rejects(client.getTask({ id: 'none' }), /not found|-32001/i);
      const task = await client.sendMessage(request('tck-complete-task'));
      await assert.rejects(client.cancelTask({ id: task.id }), /cancel|-32002/i);
      await assert.rejects(client.sendMessage(request('tck-complete-task', { taskId: task.id })), /not supported|-32004/i);
      await assert.rejects(all(client.resubscribeTask({ id: 'none' })), /not found|-32001/i);
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
        const task = await client.sendMessage(request('any-other'));
        const set = await client.setTaskPushNotificationConfig({ taskId: task.id, pushNotificationConfig: { id: 'c1', url, token: 'tok' } });
        assert.equal(set.pushNotificationConfig.id, 'c1');
        const got = await client.getTaskPushNotificationConfig({ id: task.id, pushNotificationConfigId: 'c1' });
        assert.equal(got.pushNotificationConfig.url, url);
        assert.equal((await client.listTaskPushNotificationConfig({ id: task.id })).length, 1);
        await client.deleteTaskPushNotificationConfig({ id: task.id, pushNotificationConfigId: 'c1' });
        await assert.rejects(client.getTaskPushNotificationConfig({ id: task.id, pushNotificationConfigId: 'c1' }));
      });

      test('the end of a task is notified of', async () => {
        const task = await client.sendMessage(request('tck-complete-task', {}, { pushNotificationConfig: { id: 'c2', url, token: 'tok' } }));
        const ended = () => calls.find((c) => c.body.kind === 'task' && c.body.id === task.id && c.body.status.state === 'completed');
        while (!ended()) await new Promise((done) => hook.once('call', done));
        assert.equal(ended().headers['x-a2a-notification-token'], 'tok');
      });
    });
  });
}
