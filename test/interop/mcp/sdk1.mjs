// A session over stdio with @modelcontextprotocol/sdk 1.x, which speaks the
// revisions with sessions.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { ResourceUpdatedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

export async function open(command, cwd) {
  const client = new Client({ name: 'interop', version: '1' });
  const transport = new StdioClientTransport({ command, cwd, env: process.env, stderr: 'inherit' });
  let revision;
  transport.setProtocolVersion = (version) => (revision = version);
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
  };
}
