// A session with @modelcontextprotocol/client 2.x, which speaks both eras:
// MCP_REVISION says which. Over stdio with a server of its own, over HTTP if MCP_URL
// or url is set.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const { MCP_SERVER, MCP_URL, MCP_REVISION } = process.env;

// The second argument says how an agent differs: its name, its server's command and environment, or
// the URL and headers.
export async function open(project, { url = MCP_URL, headers, name = 'interop', command = MCP_SERVER, args, env = process.env } = {}) {
  const modern = MCP_REVISION >= '2026';
  const mode = modern ? { pin: MCP_REVISION } : 'legacy';
  const client = new Client({ name, version: '1' }, { versionNegotiation: { mode } });
  const transport = url
    ? new StreamableHTTPClientTransport(new URL(`${url}?project=${encodeURIComponent(project)}`), { requestInit: { headers } })
    : new StdioClientTransport({ command, args, cwd: project, env, stderr: 'inherit' });
  await client.connect(transport);
  return {
    client,
    revision: client.getNegotiatedProtocolVersion(),
    callTool: (params, options) => client.callTool(params, options),
    subscribe: async (uri, updated) => {
      client.setNotificationHandler('notifications/resources/updated', (n) => updated(n.params.uri));
      if (modern) {
        const subscription = await client.listen({ resourceSubscriptions: [uri] });
        return () => subscription.close();
      }
      await client.subscribeResource({ uri });
      return () => client.unsubscribeResource({ uri });
    },
    watchTools: async (changed) => {
      client.setNotificationHandler('notifications/tools/list_changed', changed);
      if (!modern) return async () => {};
      const subscription = await client.listen({ toolsListChanged: true });
      return () => subscription.close();
    },
  };
}
