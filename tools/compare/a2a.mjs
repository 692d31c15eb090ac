// An agent on the server of @a2a-js/sdk 1.x that answers with the message, tasks in memory. It prints its port.
import { AgentCard, Role, TaskState } from '@a2a-js/sdk';
import { DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';
import { jsonRpcHandler, UserBuilder } from '@a2a-js/sdk/server/express';
import { AgentEvent } from '@a2a-js/sdk/server';
import express from 'express';

const status = (state, message) => ({ state, message, timestamp: new Date().toISOString() });

const executor = {
  async execute(context, bus) {
    const { taskId, contextId, userMessage } = context;
    bus.publish(AgentEvent.task({ id: taskId, contextId, status: status(TaskState.TASK_STATE_SUBMITTED), history: [userMessage], artifacts: [], metadata: {} }));
    bus.publish(AgentEvent.statusUpdate({ taskId, contextId, status: status(TaskState.TASK_STATE_WORKING), metadata: {} }));
    const answer = { ...userMessage, messageId: `${userMessage.messageId}-answer`, role: Role.ROLE_AGENT, taskId, contextId };
    bus.publish(AgentEvent.statusUpdate({ taskId, contextId, status: status(TaskState.TASK_STATE_COMPLETED, answer), metadata: {} }));
    bus.finished();
  },
  async cancelTask() {},
};

const card = AgentCard.fromJSON({
  name: 'echo', description: 'answers with the message', version: '1.0.0', capabilities: { streaming: true },
  supportedInterfaces: [{ url: 'http://127.0.0.1/', protocolBinding: 'JSONRPC', protocolVersion: '1.0' }],
  defaultInputModes: ['text/plain'], defaultOutputModes: ['text/plain'], skills: [],
});
const app = express();
app.use(jsonRpcHandler({ requestHandler: new DefaultRequestHandler(card, new InMemoryTaskStore(), executor), userBuilder: UserBuilder.noAuthentication }));
const server = app.listen(0, '127.0.0.1', () => console.log(server.address().port));
