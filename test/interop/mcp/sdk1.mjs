// A session with @modelcontextprotocol/sdk 1.x, which speaks the revisions with
// sessions: over stdio with a server of its own, over HTTP if MCP_URL is set.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ResourceUpdatedNotificationSchema, ToolListChangedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

const { MCP_SERVER, MCP_URL } = process.env;

// as says how another agent differs: its name, its server's command, its environment.
export async function open(project, as = {}) {
  const client = new Client({ name: as.name ?? 'interop', version: '1' });
  const transport = MCP_URL
    ? new StreamableHTTPClientTransport(new URL(`${MCP_URL}?project=${encodeURIComponent(project)}`))
    : new StdioClientTransport({ command: as.command ?? MCP_SERVER, args: as.args, cwd: project, env: as.env ?? process.env, stderr: 'inherit' });
  let revision;
  const agreed = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = (version) => {
    revision = version;
    agreed?.(version);
  };
  await client.connect(transport);
  return {
    client,
    revision,
    callTool: (params, options) => client.callTool(params, undefined, options),
    subscribe: async (uri, updated) => {
      client.setNotificationHandler(ResourceUpdatedNotificationSchema, (n) => updated(n.params.uri));
      await client.subscribeResource({ uri });
      return () => client.unsubscribeResource({ uri });
    },
    watchTools: async (changed) => {
      client.setNotificationHandler(ToolListChangedNotificationSchema, changed);
      return async () => {};
    },
  };
}
