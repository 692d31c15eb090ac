// Asks an agent with the client of @a2a-js/sdk 1.x, and prints its answer.
// A2A_ADDRESS is the agent's address, A2A_PROMPT what it is asked.
import { randomUUID } from 'node:crypto';

import { Role } from '@a2a-js/sdk';
import { ClientFactory } from '@a2a-js/sdk/client';

const client = await new ClientFactory().createFromUrl(`${process.env.A2A_ADDRESS}/`);
const task = await client.sendMessage({
  tenant: '',
  message: {
    messageId: randomUUID(), contextId: '', taskId: '', role: Role.ROLE_USER,
    parts: [{ content: { $case: 'text', value: process.env.A2A_PROMPT }, metadata: undefined, filename: '', mediaType: '' }],
    metadata: undefined, extensions: [], referenceTaskIds: [],
  },
  configuration: undefined,
  metadata: undefined,
});
console.log(task.status.message.parts[0].content.value);
