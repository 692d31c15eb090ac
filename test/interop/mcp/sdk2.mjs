// A session over stdio with @modelcontextprotocol/client 2.x, which speaks both
// eras: MCP_REVISION says which.
import { Client } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

export async function open(command, cwd) {
  const modern = process.env.MCP_REVISION >= '2026';
  const mode = modern ? { pin: process.env.MCP_REVISION } : 'legacy';
  const client = new Client({ name: 'interop', version: '1' }, { versionNegotiation: { mode } });
  const transport = new StdioClientTransport({ command, cwd, env: process.env, stderr: 'inherit' });
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
  };
}
