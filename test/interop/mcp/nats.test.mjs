// Reads what nats-mcp-server has made on a stock NATS server with the official
// JavaScript client, which knows nothing of Parley.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';

import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { connect } from '@nats-io/transport-node';
import { open } from './sdk1.mjs';

const { PROJECT_A, PROJECT_B, NATS_URL, NATS_USERNAME, NATS_PASSWORD, NATS_TLS_CA, NATS_TLS_CERT, NATS_TLS_KEY } = process.env;

const pem = (file) => file && readFileSync(file, 'utf8');
let nats, streams, ann, bob;
before(async () => {
  nats = await connect({
    servers: NATS_URL, user: NATS_USERNAME, pass: NATS_PASSWORD,
    tls: NATS_TLS_CA ? { ca: pem(NATS_TLS_CA), cert: pem(NATS_TLS_CERT), key: pem(NATS_TLS_KEY) } : undefined,
  });
  streams = (await jetstreamManager(nats)).streams;
  [ann, bob] = await Promise.all([PROJECT_A, PROJECT_B].map(open));
});
after(() => Promise.all([ann?.client.close(), bob?.client.close(), nats?.close()]));

const call = async (session, name, args) => {
  const result = await session.callTool({ name, arguments: args });
  assert.notEqual(result.isError, true, result.content[0].text);
  return result.structuredContent;
};
const send = (session, channel, message) => call(session, 'send_message', { channel, message });

const day = 24 * 3600 * 1e9; // NATS counts nanoseconds
const namespace = 'project-' + createHash('sha256').update(PROJECT_A).digest('hex').slice(0, 16);

// limits are what the specification says of a channel's stream.
const limits = (channel, more) => ({
  subjects: [channel], retention: 'limits', storage: 'file', discard: 'old', max_msgs: 10000, max_bytes: 10 * 1024 * 1024, max_age: day,
  max_msgs_per_subject: -1, max_msg_size: -1, max_consumers: -1, num_replicas: 1, sealed: false, deny_delete: false, deny_purge: false, ...more,
});

async function has(stream, want) {
  const { config } = await streams.info(stream);
  for (const [key, value] of Object.entries(want)) assert.deepEqual(config[key], value, `${stream}: ${key}`);
}

test('the default channels are streams with the specified names, subjects and limits', async () => {
  await call(ann, 'set_handle', { handle: 'ann' });
  for (const channel of ['roadmap', 'parallel-work', 'errors']) await send(ann, channel, `to ${channel}`);
  await has(`${namespace}_ROADMAP`, limits(`${namespace}.roadmap`, { description: 'Discussion about project roadmap and planning' }));
  await has(`${namespace}_PARALLEL_WORK`, limits(`${namespace}.parallel-work`, { description: 'Coordination for parallel work among agents' }));
  await has(`${namespace}_ERRORS`, limits(`${namespace}.errors`, { description: 'Error reporting and troubleshooting', max_msgs: 5000, max_age: 2 * day }));
});

test('configured channels have the configured limits', async () => {
  await call(bob, 'set_handle', { handle: 'bob' });
  for (let i = 1; i <= 7; i++) await send(bob, 'build-log', `line ${i}`);
  await send(bob, 'review', 'please');
  await has('team-x_BUILD_LOG', limits('team-x.build-log', { max_msgs: 5, max_bytes: 4096, max_age: 2 * day }));
  await has('team-x_REVIEW', limits('team-x.review', {}));
  const { state } = await streams.info('team-x_BUILD_LOG');
  assert.equal(state.messages, 5); // the oldest went
  const { messages } = await call(bob, 'read_messages', { channel: 'build-log' });
  assert.deepEqual(messages.map((m) => m.message), ['line 3', 'line 4', 'line 5', 'line 6', 'line 7']);
});

test('there are no streams but those of the channels', async () => {
  const names = [];
  for await (const stream of streams.list()) names.push(stream.config.name);
  assert.deepEqual(names.sort(), [
    `${namespace}_ERRORS`, `${namespace}_PARALLEL_WORK`, `${namespace}_ROADMAP`, 'team-x_BUILD_LOG', 'team-x_REVIEW',
  ].sort());
});

test('a message is JSON of handle, message and timestamp', async () => {
  const text = 'one\n"two" \\ ☂ \u0000 <tag> \u2028';
  const began = Date.now();
  const sent = await send(ann, 'roadmap', text);
  const raw = await streams.getMessage(`${namespace}_ROADMAP`, { last_by_subj: `${namespace}.roadmap` });
  const { version, ...payload } = raw.json();
  assert.deepEqual(payload, { handle: 'ann', message: text, timestamp: sent.timestamp });
  assert.equal(version, 1);
  assert.match(payload.timestamp, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
  assert.ok(Math.abs(Date.parse(payload.timestamp) - began) < 60_000);
});

test('what another program publishes in the format is read, what is in none is left out', async () => {
  const js = jetstream(nats);
  await js.publish('team-x.review', JSON.stringify({ handle: 'script', message: 'from outside', timestamp: '2026-01-15T14:30:00.000Z', more: [1] }));
  await js.publish('team-x.review', 'no JSON');
  await js.publish('team-x.review', JSON.stringify({ message: 'from nobody', timestamp: '2026-01-15T14:30:00.000Z' }));
  const { messages, skipped } = await call(bob, 'read_messages', { channel: 'review' });
  assert.deepEqual(messages.map((m) => `${m.handle}: ${m.message}`), ['bob: please', 'script: from outside']);
  assert.equal(skipped, 2);
});

test('a large message arrives', async () => {
  const text = '☂'.repeat(300_000); // 900 kB; the stock server takes 1 MiB with the envelope
  await send(ann, 'errors', text);
  const raw = await streams.getMessage(`${namespace}_ERRORS`, { last_by_subj: `${namespace}.errors` });
  assert.equal(raw.json().message, text);
});

test('what is read is acknowledged to a durable consumer of the reader', async () => {
  await call(ann, 'read_messages', { channel: 'roadmap' });
  let consumers;
  const acknowledged = async () => { // after the answer to the reader
    consumers = [];
    for await (const c of (await jetstreamManager(nats)).consumers.list(`${namespace}_ROADMAP`)) consumers.push(c);
    return consumers[0]?.num_pending === 0;
  };
  for (const end = Date.now() + 30_000; !await acknowledged() && Date.now() < end;) await new Promise(resolve => setTimeout(resolve, 20));
  assert.equal(consumers.length, 1);
  assert.ok(consumers[0].config.durable_name);
  assert.equal(consumers[0].config.ack_policy, 'explicit');
  assert.equal(consumers[0].num_ack_pending, 0);
  assert.equal(consumers[0].num_pending, 0);
});
