// Uses a Parley MCP server with @modelcontextprotocol/client: lists the tools, registers, sends a message to a channel,
// and reads the channel.
//
//   npm install @modelcontextprotocol/client
//   node client.mjs                                # starts "parley mcp" for the current directory's project
//   node client.mjs "http://127.0.0.1:8080/mcp?project=$PWD"
//
// Over HTTP, the hub's token, if it requires one, is in the environment: PARLEY_TOKEN.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const url = process.argv[2];
const token = process.env.PARLEY_TOKEN;
const transport = url
  ? new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: token ? { Authorization: `Bearer ${token}` } : {} } })
  : new StdioClientTransport({ command: 'parley', args: ['mcp'], env: process.env, stderr: 'inherit' });

const client = new Client({ name: 'example', version: '1' });
await client.connect(transport);
console.log('server:', client.getServerVersion().name);

const { tools } = await client.listTools();
for (const tool of tools) console.log('tool:', tool.name);

// Since revision 2026-07-28, HTTP has no sessions: set_handle then returns a token, which each call needs.
let session;
const call = async (name, args) => {
  const result = await client.callTool({ name, arguments: session ? { ...args, session } : args });
  const text = result.content.map((c) => c.text ?? '').join('');
  if (result.isError) throw new Error(text);
  session ??= result.structuredContent?.session;
  console.log(text);
};

await call('set_handle', { handle: 'javascript-example' }); // the name under which others see the messages
await call('send_message', { channel: 'roadmap', message: 'Hello from JavaScript.' });
await call('read_messages', { channel: 'roadmap', limit: 5 });
await client.close();
