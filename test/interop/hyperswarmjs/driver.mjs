// Does with the npm packages hyperdht and hyperswarm what the Go test asks for:
// a JSON object a line on standard input, an answer a line on standard output.
import { createHash } from 'node:crypto';
import { createInterface } from 'node:readline';

import DHT from 'hyperdht';
import createTestnet from 'hyperdht/testnet.js';
import Hyperswarm from 'hyperswarm';

const things = new Map();
const closers = [];
let last = 0;
const keep = (thing) => (things.set(++last, thing), last);
const hex = (b) => Buffer.from(b).toString('hex');
const bytes = (s) => Buffer.from(s, 'hex');
const addr = (a) => `${a.host}:${a.port}`;
const node = (s) => ({ host: s.split(':')[0], port: Number(s.split(':')[1]) });

// Whatever a connection brings is counted, and sent back if it is to echo.
function watch(conn, mode) {
  const c = { conn, hash: createHash('sha256'), received: 0, waiters: [], closed: false, error: '', ended: false };
  conn.on('error', (err) => (c.error = err.code || err.message));
  conn.on('drain', () => ((c.drained = true), wake(c)));
  conn.on('close', () => ((c.closed = true), wake(c)));
  conn.on('end', () => ((c.ended = true), conn.end(), wake(c)));
  conn.on('data', (data) => {
    c.received += data.length;
    if (!c.plain) c.hash.update(data);
    if (c.first === undefined) c.first = Date.now();
    if (mode === 'echo') conn.write(data);
    wake(c);
  });
  if (mode === 'speak') conn.write(Buffer.from('hello from javascript'));
  return c;
}
const wake = (c) => c.waiters.splice(0).forEach((f) => f());
const state = (c) => ({ received: c.received, hash: hex(c.hash.copy().digest()), closed: c.closed, ended: c.ended, error: c.error });

async function until(c, done) {
  while (!done()) await new Promise((resolve) => c.waiters.push(resolve));
}

const ops = {
  async testnet({ size, bootstrap }) {
    const net = await createTestnet(size, { bootstrap: (bootstrap || []).map(node) });
    closers.push(() => net.destroy());
    return { bootstrap: net.bootstrap.map(addr), nodes: net.nodes.map((n) => addr(n.address())) };
  },
  async dht({ bootstrap, seed, host = '127.0.0.1' }) {
    const keyPair = seed ? DHT.keyPair(bytes(seed)) : undefined;
    const dht = new DHT({ bootstrap: bootstrap.map(node), host, keyPair });
    await dht.fullyBootstrapped();
    closers.push(() => dht.destroy());
    return { id: keep(dht), key: hex(dht.defaultKeyPair.publicKey) };
  },
  async listen({ id, mode, allow }) {
    const dht = things.get(id);
    const conns = [];
    const server = dht.createServer({ firewall: allow ? (key) => hex(key) !== allow : undefined }, (conn) => {
      conns.push(keep(watch(conn, mode)));
      server.emit('counted');
    });
    await server.listen();
    return { id: keep({ server, conns }), key: hex(server.publicKey) };
  },
  async accepted({ id, count }) {
    const { server, conns } = things.get(id);
    while (conns.length < count) await new Promise((resolve) => server.once('counted', resolve));
    return { conns };
  },
  async dial({ id, key, mode }) {
    const conn = things.get(id).connect(bytes(key));
    const c = watch(conn, mode);
    await new Promise((resolve, reject) => {
      conn.once('open', resolve);
      conn.once('error', reject);
      conn.once('close', () => reject(new Error('closed')));
    });
    return { id: keep(c) };
  },
  async swarm({ bootstrap, seed, mode }) {
    const swarm = new Hyperswarm({ bootstrap: bootstrap.map(node), seed: seed ? bytes(seed) : undefined });
    const conns = [];
    swarm.on('connection', (conn, info) => {
      conns.push({ id: keep(watch(conn, mode)), key: hex(info.publicKey) });
      swarm.emit('counted');
    });
    closers.push(() => swarm.destroy());
    return { id: keep({ server: swarm, conns }), key: hex(swarm.keyPair.publicKey) };
  },
  async join({ id, topic, server, client }) {
    const session = things.get(id).server.join(bytes(topic), { server, client });
    await session.flushed();
    return {};
  },
  async send({ id, size }) {
    const c = things.get(id);
    const hash = createHash('sha256');
    const block = Buffer.alloc(65536);
    for (let sent = 0, n = 0; sent < size; sent += block.length, n++) {
      for (let i = 0; i < block.length; i += 4) block.writeUInt32LE((i * 2654435761 + n) >>> 0, i);
      const part = Buffer.from(block.subarray(0, Math.min(block.length, size - sent)));
      hash.update(part);
      if (!c.conn.write(part)) await until(c, () => c.closed || c.drained);
      c.drained = false;
      if (c.closed) throw new Error(c.error || 'closed');
    }
    return { hash: hex(hash.digest()) };
  },
  // Sends without a sum, and of one buffer: for the benchmarks.
  async sendBlank({ id, size }) {
    const c = things.get(id);
    const block = Buffer.alloc(65536);
    for (let sent = 0; sent < size; sent += block.length) {
      if (!c.conn.write(block)) await until(c, () => c.closed || c.drained);
      c.drained = false;
    }
    return {};
  },
  async arrived({ id, count }) {
    const c = things.get(id);
    c.plain = true;
    await until(c, () => c.received >= count || c.closed);
    return {};
  },
  async received({ id, count }) {
    const c = things.get(id);
    await until(c, () => c.received >= count || c.closed);
    return state(c);
  },
  async closed({ id }) {
    const c = things.get(id);
    await until(c, () => c.closed);
    return state(c);
  },
  async busy({ id, on, off, times }) {
    for (let i = 0; i < times; i++) {
      const stop = Date.now() + on;
      while (Date.now() < stop);
      await new Promise((resolve) => setTimeout(resolve, off));
    }
    return {};
  },
  // The time of a number of short messages there and back, one after the other.
  async pingpong({ id, times }) {
    const c = things.get(id);
    const start = process.hrtime.bigint();
    for (let i = 1; i <= times; i++) {
      const before = c.received;
      c.conn.write(Buffer.from('a short message'));
      await until(c, () => c.received >= before + 15 || c.closed);
    }
    return { micros: Number((process.hrtime.bigint() - start) / 1000n) };
  },
  async connected({ id, count }) {
    const { server, conns } = things.get(id);
    while (conns.length < count) await new Promise((resolve) => server.once('counted', resolve));
    return { conns: conns.map((c) => c.id), keys: conns.map((c) => c.key) };
  },
  // The time from joining a topic to the first connection.
  async joinTime({ bootstrap, topic }) {
    const swarm = new Hyperswarm({ bootstrap: bootstrap.map(node) });
    const start = process.hrtime.bigint();
    const connection = new Promise((resolve) => swarm.once('connection', resolve));
    swarm.join(bytes(topic), { server: false, client: true });
    (await connection).on('error', () => {});
    const micros = Number((process.hrtime.bigint() - start) / 1000n);
    await swarm.destroy();
    return { micros };
  },
  async leave({ id, topic }) {
    await things.get(id).server.leave(bytes(topic));
    return {};
  },
  async pause({ id, on }) {
    const { conn } = things.get(id);
    if (on) conn.pause();
    else conn.resume();
    return {};
  },
  async stats({ id }) {
    const s = things.get(id).conn.rawStream;
    return { retransmits: s.retransmits, sent: s.packetsTransmitted, rtt: s.rtt, mtu: s.mtu };
  },
  async end({ id }) {
    things.get(id).conn.end();
    return {};
  },
  async destroy({ id }) {
    things.get(id).conn.destroy();
    return {};
  },
  async mutablePut({ id, seed, value, seq }) {
    const { closestNodes } = await things.get(id).mutablePut(DHT.keyPair(bytes(seed)), bytes(value), { seq });
    return { count: closestNodes.length };
  },
  async mutableGet({ id, key }) {
    const r = await things.get(id).mutableGet(bytes(key), { latest: true });
    return r ? { value: hex(r.value), seq: r.seq } : { missing: true };
  },
  async immutablePut({ id, value }) {
    const { hash } = await things.get(id).immutablePut(bytes(value));
    return { hash: hex(hash) };
  },
  async immutableGet({ id, hash }) {
    const r = await things.get(id).immutableGet(bytes(hash));
    return r ? { value: hex(r.value) } : { missing: true };
  },
  async lookup({ id, topic }) {
    const keys = new Set();
    for await (const r of things.get(id).lookup(bytes(topic))) for (const p of r.peers) keys.add(hex(p.publicKey));
    return { keys: [...keys] };
  },
};

const lines = createInterface({ input: process.stdin });
lines.on('line', async (line) => {
  const { call, op, ...args } = JSON.parse(line);
  try {
    process.stdout.write(JSON.stringify({ call, ...(await ops[op](args)) }) + '\n');
  } catch (err) {
    process.stdout.write(JSON.stringify({ call, failed: err.code || err.message }) + '\n');
  }
});
lines.on('close', async () => {
  const force = setTimeout(() => process.exit(0), 5000);
  for (const close of closers.reverse()) await close().catch(() => {});
  clearTimeout(force);
  process.exit(0);
});
