// An agent of the hub that says, as JSON, which tools it sees: over stdio, and over
// HTTP at the address that it is sent.
import { text } from 'node:stream/consumers';

const url = (await text(process.stdin)).trim();
const { open } = await import('./sdk2.mjs');

// see lists the tools. Those of agents and servers may come a moment later.
const see = async (options) => {
  const session = await open(process.cwd(), options);
  const { tools } = await session.client.listTools();
  await session.client.close();
  return tools.map((t) => t.name);
};
const stdio = await see({});
const http = await see({ url, headers: { 'Parley-Task-Token': process.env.PARLEY_TASK_TOKEN } });
console.log(JSON.stringify({ stdio, http }));
