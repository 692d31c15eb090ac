// The agents' network as agents of two vendors on two computers use it: a dispatcher
// whose program has the SDK's first generation, on alpha, and workers whose program
// has the second and the protocol without sessions, on beta. Both workflows of
// section 18.12 to the letter, and what every tool refuses.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import * as sdk1 from './sdk1.mjs';
import * as sdk2 from './sdk2.mjs';

const { MCP_SERVER, HOSTS } = process.env;
const hosts = JSON.parse(HOSTS); // alpha and beta: home, url, projects; namespaces: whether each has a network of its own

// as says how an agent's server is started on a computer.
function as(host, name, more = {}) {
  const { home, url } = hosts[host];
  const env = {
    ...process.env, HOME: home, XDG_CONFIG_HOME: `${home}/.config`, PARLEY_DATA_DIR: `${home}/hub`, PARLEY_SOCKET: `${home}/hub.sock`,
    CROSS_COMPUTER_ENABLED: 'true', NATS_MCP_ACKNOWLEDGMENT: 'I understand the security implications', NATS_CLUSTER_URLS: url,
    WORKQUEUE_ACK_TIMEOUT: '2', WORKQUEUE_MAX_ATTEMPTS: '2', ...more,
  };
  if (!hosts.namespaces) return { name, env };
  const enter = 'hostname "$0" && exec nsenter --net=/run/netns/"$0" "$@"';
  return { name, env, command: 'unshare', args: ['--uts', 'sh', '-c', enter, host, MCP_SERVER] };
}

const sessions = [];
async function join(sdk, host, project, name, more) {
  const session = await sdk.open(hosts[host].projects[project], as(host, name, more));
  sessions.push(session);
  return session;
}
after(() => Promise.all(sessions.map((session) => session.client.close())));

async function call(session, name, args = {}) {
  const result = await session.callTool({ name, arguments: args });
  return { text: result.content[0].text, data: result.structuredContent, failed: result.isError ?? false, error: result._meta?.['io.parley/error'] };
}

// must is a call that is to succeed: later, where a limit says so.
async function must(session, name, args) {
  for (;;) {
    const result = await call(session, name, args);
    if (!result.failed) return result.data;
    assert.equal(result.error.category, 'RateLimitError', `${name}: ${result.text}`);
    await sleep(result.error.retryAfterSeconds * 1000);
  }
}

async function refused(session, name, args, category, words) {
  const result = await call(session, name, args);
  assert.ok(result.failed, `${name} ${JSON.stringify(args)}: ${result.text}`);
  assert.ok(result.text.startsWith(`${category}: `), result.text);
  assert.match(result.text, words, name);
  assert.equal(result.error.category, category);
  return result;
}

const mail = async (session, messageType) => (await must(session, 'wait_for_direct_messages', { messageType, timeout_seconds: 30 })).messages;

let dispatcher, engineer, loner;
before(async () => {
  [dispatcher, engineer, loner] = await Promise.all([
    join(sdk1, 'alpha', 'control', 'claude-code'), join(sdk2, 'beta', 'shop', 'codex-mcp-client'), join(sdk2, 'beta', 'blog', 'gemini-cli-mcp-client'),
  ]);
});

const nobody = '7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11';
let boss, registration;

test('a server that must not start says why', () => {
  const start = (more) => {
    const { command = MCP_SERVER, args = [], env } = as('alpha', '', more);
    const run = spawnSync(command, args, { cwd: hosts.alpha.projects.control, env, input: '', encoding: 'utf8', timeout: 60_000 });
    return `${run.status} ${run.stderr}`;
  };
  assert.match(start({ NATS_MCP_ACKNOWLEDGMENT: 'i understand' }), /^2 [^]*I understand the security implications/);
  assert.match(start({ NATS_CLUSTER_URLS: '' }), /^2 [^]*natsClusterUrls/);
  assert.match(start({ NATS_CLUSTER_URLS: 'ws://127.0.0.1:4222' }), /^2 [^]*ws:\/\/ has no TLS/);
});

test('nothing of the network is for agents that are not registered', async () => {
  const { tools } = await engineer.client.listTools();
  for (const [name, args] of Object.entries({
    discover_agents: {}, get_agent_info: { guid: nobody }, get_my_registration: {}, update_presence: { status: 'idle' }, deregister_agent: {},
    send_direct_message: { recipientGuid: nobody, message: 'x' }, read_direct_messages: {}, wait_for_direct_messages: {},
    get_message_status: { messageId: nobody }, mark_message_handled: { messageId: nobody },
    broadcast_work_offer: { taskId: 'x', taskDescription: 'x', requiredCapabilities: [] }, submit_work_item: { capability: 'x', taskDescription: 'x' },
    claim_work_item: {}, extend_work_item: { taskId: 'x', claimToken: 1 }, get_work_item: { taskId: 'x' },
    complete_work_item: { taskId: 'x', claimToken: 1, success: true, resultSummary: 'x' }, reject_work_item: { taskId: 'x', claimToken: 1, reason: 'x' },
    list_dead_letter_items: {}, retry_dead_letter_item: { taskId: 'x' }, discard_dead_letter_item: { taskId: 'x' }, release_files: {}, list_claims: {}, claim_files: { paths: ['claimed.txt'] },
  })) {
    assert.ok(tools.some((tool) => tool.name === name), `there is no ${name}`);
    await refused(engineer, name, args, 'NotRegisteredError', /register_agent/);
  }
});

test('18.12.1 and 18.12.2: a dispatcher and a worker on two computers', async () => {
  // On Computer A: Dispatcher Agent
  boss = await must(dispatcher, 'register_agent', {
    agentType: 'dispatcher', capabilities: ['coordination', 'task-assignment'], scope: 'cross-project', visibility: 'public',
  });
  // On Computer B: TDD Engineer Agent
  registration = await must(engineer, 'register_agent', {
    agentType: 'tdd-engineer', capabilities: ['typescript', 'testing', 'refactoring'], scope: 'project', visibility: 'public',
  });
  // Find available workers across all computers
  const idle = { agentType: 'tdd-engineer', status: 'idle', capability: 'typescript' };
  assert.deepEqual((await must(dispatcher, 'discover_agents', idle)).agents, []); // it is active, and no error
  const [found] = (await must(dispatcher, 'discover_agents', { ...idle, status: 'active' })).agents;
  assert.equal(found.guid, registration.guid);
  if (hosts.namespaces) assert.equal(found.hostname, 'beta');
  assert.equal(found.username, undefined);
  // Broadcast work offer to all eligible workers
  const { sentTo } = await must(dispatcher, 'broadcast_work_offer', {
    taskId: 'TASK-001', taskDescription: 'Implement user authentication module', requiredCapabilities: ['typescript', 'testing'],
    targetAgentTypes: ['tdd-engineer'],
  });
  assert.deepEqual(sentTo.map((agent) => agent.guid), [registration.guid]);

  // Check for work offers
  const { messages: offers } = await must(engineer, 'read_direct_messages', { messageType: 'work-offer' });
  const offer = offers[0];
  assert.equal(offer.senderGuid, boss.guid);
  // Claim the work
  await must(engineer, 'send_direct_message', {
    recipientGuid: offer.senderGuid, message: 'Claiming task', messageType: 'work-claim', metadata: { taskId: offer.metadata.taskId },
  });
  // Wait for claims via direct messages
  const { messages: claims } = await must(dispatcher, 'read_direct_messages', { messageType: 'work-claim' });
  assert.equal(claims[0].metadata.taskId, 'TASK-001');
  assert.equal(claims[0].senderGuid, registration.guid);
  // 18.6.1: the coordinator confirms
  await must(dispatcher, 'send_direct_message', { recipientGuid: registration.guid, message: 'Yours', messageType: 'work-accept', metadata: { taskId: 'TASK-001' } });
  assert.equal((await mail(engineer, 'work-accept'))[0].metadata.taskId, 'TASK-001');
  // Update status
  await must(engineer, 'update_presence', { status: 'busy', currentTaskCount: 1 });
  const ask = await must(dispatcher, 'send_direct_message', { recipientGuid: registration.guid, message: 'How is it going?' });
  assert.match(ask.warning, /busy/);
  // Do the work...
  await must(engineer, 'send_direct_message', {
    recipientGuid: offer.senderGuid, message: 'Half done', messageType: 'progress-update',
    metadata: { taskId: 'TASK-001', progressPercent: 50, statusMessage: 'tests are red' },
  });
  // Report completion
  const done = await must(engineer, 'send_direct_message', {
    recipientGuid: offer.senderGuid, message: 'Task completed successfully', messageType: 'completion',
    metadata: { taskId: offer.metadata.taskId, success: true, resultSummary: 'Authentication module implemented with 95% test coverage' },
  });
  assert.equal((await mail(dispatcher, 'progress-update'))[0].metadata.progressPercent, 50);
  const [completion] = await mail(dispatcher, 'completion');
  assert.equal(completion.metadata.success, true);
  assert.match(completion.metadata.completedAt, /^\d{4}-/);
  // Mail counts as read at its reader's next call after the server has noted that its answer was written.
  let status;
  for (let i = 0; i < 100 && status !== 'read'; i++) {
    await must(dispatcher, 'get_my_registration', {});
    ({ status } = await must(engineer, 'get_message_status', { messageId: done.messageId }));
  }
  assert.equal(status, 'read');
  await must(dispatcher, 'mark_message_handled', { messageId: done.messageId });
  assert.equal((await must(engineer, 'get_message_status', { messageId: done.messageId })).status, 'handled');

  // The second change within ten seconds is refused, and says when to try again.
  const early = await refused(engineer, 'update_presence', { status: 'idle', currentTaskCount: 0 }, 'RateLimitError', /Try again in/);
  assert.ok(early.error.retryAfterSeconds > 0 && early.error.retryAfterSeconds <= 10);
  await must(engineer, 'update_presence', { status: 'idle', currentTaskCount: 0 });
  assert.deepEqual((await must(dispatcher, 'discover_agents', idle)).agents.map((agent) => agent.guid), [registration.guid]);
});

test('an agent of another project is not seen unless it wants to be', async () => {
  const hidden = await must(loner, 'register_agent', { agentType: 'writer', capabilities: ['prose'], scope: 'project' });
  assert.equal(hidden.entry.visibility, 'project-only');
  await refused(dispatcher, 'get_agent_info', { guid: hidden.guid }, 'NotFoundError', /discover_agents/);
  assert.deepEqual((await must(dispatcher, 'discover_agents', { agentType: 'writer', includeOffline: true })).agents, []);
  assert.equal((await must(loner, 'get_my_registration', {})).entry.username, undefined);
  assert.ok((await must(loner, 'discover_agents', {})).agents.some((agent) => agent.guid === boss.guid));
});

test('work goes to one worker, to another if that fails, and to the dead letters', async () => {
  await must(dispatcher, 'submit_work_item', { capability: 'typescript', taskDescription: 'compile it', taskId: 'WORK-1', contextData: { file: 'a.ts' } });
  const { item } = await must(engineer, 'claim_work_item', { timeout_seconds: 30 });
  assert.deepEqual([item.taskId, item.contextData, item.attempt], ['WORK-1', { file: 'a.ts' }, 1]);
  await must(engineer, 'extend_work_item', { taskId: 'WORK-1', claimToken: item.claimToken });
  await refused(dispatcher, 'extend_work_item', { taskId: 'WORK-1', claimToken: item.claimToken }, 'ConflictError', /do not hold/);
  const outcome = { taskId: 'WORK-1', claimToken: item.claimToken, success: true, resultSummary: 'compiled', resultData: { warnings: 2 } };
  await refused(engineer, 'complete_work_item', { ...outcome, claimToken: 9 }, 'ConflictError', /token/);
  await must(engineer, 'complete_work_item', outcome);
  await refused(engineer, 'reject_work_item', { taskId: 'WORK-1', claimToken: item.claimToken, reason: 'too late' }, 'ConflictError', /completed already/);
  const result = await must(dispatcher, 'get_work_item', { taskId: 'WORK-1', wait: true });
  assert.deepEqual([result.state, result.resultSummary, result.resultData], ['completed', 'compiled', { warnings: 2 }]);
  await refused(dispatcher, 'submit_work_item', { capability: 'typescript', taskDescription: 'something else', taskId: 'WORK-1' }, 'ConflictError', /another item/);

  // Nobody finishes it: its lease ends twice.
  await must(dispatcher, 'submit_work_item', { capability: 'testing', taskDescription: 'test it', taskId: 'WORK-2' });
  const first = (await must(engineer, 'claim_work_item', { capabilities: ['testing'], timeout_seconds: 30 })).item;
  const second = (await must(engineer, 'claim_work_item', { capabilities: ['testing'], timeout_seconds: 30 })).item;
  assert.deepEqual([second.taskId, second.attempt], ['WORK-2', 2]);
  await refused(engineer, 'complete_work_item', { ...outcome, taskId: 'WORK-2', claimToken: first.claimToken }, 'ConflictError', /newer token|token 2/);
  const third = await must(engineer, 'claim_work_item', { capabilities: ['testing'], timeout_seconds: 4 });
  assert.equal(third.timedOut, true);
  await refused(engineer, 'complete_work_item', { ...outcome, taskId: 'WORK-2', claimToken: second.claimToken }, 'ConflictError', /dead letters/);
  const letters = async (capability) => (await must(dispatcher, 'list_dead_letter_items', { capability })).items;
  const [letter] = await letters('testing');
  assert.deepEqual([letter.originalTaskId, letter.failureReason, letter.deliveryAttempts, letter.lastAssignedAgent, letter.originalPayload.taskDescription],
    ['WORK-2', 'timeout', 2, registration.guid, 'test it']);
  assert.deepEqual(await letters('prose'), []);
  await must(dispatcher, 'retry_dead_letter_item', { taskId: 'WORK-2' });
  const again = (await must(engineer, 'claim_work_item', { capabilities: ['testing'], timeout_seconds: 30 })).item;
  assert.equal(again.attempt, 1);
  await must(engineer, 'reject_work_item', { taskId: 'WORK-2', claimToken: again.claimToken, reason: 'impossible', final: true });
  assert.equal((await letters('testing'))[0].failureReason, 'explicit-reject');
  await must(dispatcher, 'discard_dead_letter_item', { taskId: 'WORK-2' });
  assert.deepEqual(await letters('testing'), []);
  await refused(dispatcher, 'retry_dead_letter_item', { taskId: 'WORK-2' }, 'NotFoundError', /no dead letter/);
});

test('what is wrong is said', async () => {
  const join = { agentType: 'dispatcher', capabilities: [], scope: 'project' };
  const work = { taskId: 'none', claimToken: 1 };
  for (const [name, args, category, words] of [
    ['register_agent', { agentType: 'dispatcher' }, 'ValidationError', /"capabilities" is missing/],
    ['register_agent', { ...join, agentType: 'The Boss' }, 'ValidationError', /Invalid agent type/],
    ['register_agent', { ...join, agentType: 'reviewer' }, 'ConflictError', /registered as "dispatcher" already/],
    ['register_agent', { ...join, scope: 'world' }, 'ValidationError', /user, project or cross-project/],
    ['register_agent', { ...join, visibility: 'all' }, 'ValidationError', /private, project-only, user-only or public/],
    ['register_agent', { ...join, maxConcurrentTasks: -1 }, 'ValidationError', /maxConcurrentTasks/],
    ['register_agent', { ...join, heartbeatInterval: 9 }, 'ValidationError', /10 seconds/],
    ['discover_agents', { status: 'lazy' }, 'ValidationError', /active, idle, busy or offline/],
    ['discover_agents', { scope: 'world' }, 'ValidationError', /user, project or cross-project/],
    ['discover_agents', { limit: 1001 }, 'ValidationError', /1 to 1000/],
    ['get_agent_info', {}, 'ValidationError', /"guid" is missing/],
    ['get_agent_info', { guid: 'bob' }, 'ValidationError', /is not a GUID/],
    ['get_agent_info', { guid: nobody }, 'NotFoundError', /discover_agents/],
    ['get_my_registration', { guid: nobody }, 'ValidationError', /guid/],
    ['update_presence', { status: 'sleeping' }, 'ValidationError', /active, idle, busy or offline/],
    ['update_presence', { currentTaskCount: -1 }, 'ValidationError', /currentTaskCount/],
    ['deregister_agent', { guid: nobody }, 'ValidationError', /guid/],
    ['send_direct_message', { recipientGuid: registration.guid }, 'ValidationError', /"message" is missing/],
    ['send_direct_message', { recipientGuid: nobody, message: 'x' }, 'NotFoundError', /in the registry/],
    ['send_direct_message', { recipientGuid: registration.guid, message: '' }, 'ValidationError', /empty/],
    ['send_direct_message', { recipientGuid: registration.guid, message: 'x'.repeat(512 * 1024 + 1) }, 'ValidationError', /at most 524288/],
    ['send_direct_message', { recipientGuid: registration.guid, message: 'x', messageType: 'shout' }, 'ValidationError', /work-offer/],
    ['send_direct_message', { recipientGuid: registration.guid, message: 'x', messageType: 'work-claim' }, 'ValidationError', /taskId is missing/],
    ['send_direct_message', { recipientGuid: registration.guid, message: 'x', messageType: 'progress-update',
      metadata: { taskId: 'T', statusMessage: 'x', progressPercent: 101 } }, 'ValidationError', /0 to 100/],
    ['read_direct_messages', { limit: -1 }, 'ValidationError', /1 to 1000/],
    ['read_direct_messages', { senderGuid: 'bob' }, 'ValidationError', /is not a GUID/],
    ['read_direct_messages', { messageType: 'shout' }, 'ValidationError', /work-offer/],
    ['wait_for_direct_messages', { timeout_seconds: 56 }, 'ValidationError', /1 to 55/],
    ['get_message_status', { messageId: nobody }, 'NotFoundError', /You have sent no message/],
    ['mark_message_handled', { messageId: nobody }, 'NotFoundError', /in your inbox/],
    ['broadcast_work_offer', { taskId: '', taskDescription: 'x', requiredCapabilities: [] }, 'ValidationError', /taskId/],
    ['broadcast_work_offer', { taskId: 'T', taskDescription: 'x', requiredCapabilities: [], deadline: 'soon' }, 'ValidationError', /deadline/],
    ['submit_work_item', { capability: '*', taskDescription: 'x' }, 'ValidationError', /cannot name a work queue/],
    ['submit_work_item', { capability: 'deadletter', taskDescription: 'x' }, 'ValidationError', /reserved/],
    ['claim_work_item', { capabilities: ['>'] }, 'ValidationError', /cannot name a work queue/],
    ['claim_work_item', { timeout_seconds: -1 }, 'ValidationError', /1 to 55/],
    ['extend_work_item', work, 'NotFoundError', /no item of work/],
    ['complete_work_item', { ...work, success: true, resultSummary: '' }, 'ValidationError', /summary/],
    ['complete_work_item', { ...work, success: true, resultSummary: 'x' }, 'NotFoundError', /no item of work/],
    ['reject_work_item', { ...work, reason: '' }, 'ValidationError', /reason/],
    ['get_work_item', { taskId: 'none' }, 'NotFoundError', /no item of work/],
    ['list_dead_letter_items', { limit: 5000 }, 'ValidationError', /1 to 1000/],
    ['retry_dead_letter_item', { taskId: 'none' }, 'NotFoundError', /no dead letter/],
    ['discard_dead_letter_item', { taskId: 'none' }, 'NotFoundError', /no dead letter/],
  ]) await refused(dispatcher, name, args, category, words);
});

test('limits are refusals with a time to try again, for each agent by itself', async () => {
  const many = async (session, name, args, most) => {
    for (let i = 0; ; i++) {
      assert.ok(i <= most, `${name}: no limit`);
      const result = await call(session, name, args);
      if (!result.failed) continue;
      assert.equal(result.error.category, 'RateLimitError', result.text);
      assert.ok(result.error.retryAfterSeconds > 0 && result.error.retryAfterSeconds <= 60);
      return;
    }
  };
  await many(dispatcher, 'discover_agents', {}, 10);
  await many(dispatcher, 'broadcast_work_offer', { taskId: 'T', taskDescription: 'x', requiredCapabilities: ['no-such-thing'] }, 10);
  await many(dispatcher, 'send_direct_message', { recipientGuid: boss.guid, message: 'to myself' }, 100);
  // A second agent of the kind, which lives at the same time, has another GUID and an allowance of its own.
  const twin = await join(sdk2, 'alpha', 'control', 'codex-mcp-client');
  const own = await must(twin, 'register_agent', { agentType: 'dispatcher', capabilities: [], scope: 'project' });
  assert.notEqual(own.guid, boss.guid);
  await must(twin, 'discover_agents', {});
  await must(twin, 'send_direct_message', { recipientGuid: boss.guid, message: 'x' });
  await refused(dispatcher, 'discover_agents', {}, 'RateLimitError', /Try again in/);
});

test('who leaves finds its mail and its GUID when it comes back', async () => {
  await must(loner, 'deregister_agent', {});
  await refused(loner, 'deregister_agent', {}, 'NotRegisteredError', /register_agent/);
  await must(engineer, 'deregister_agent', {});
  const { agents } = await must(loner, 'register_agent', { agentType: 'writer', capabilities: ['prose'], scope: 'project', visibility: 'public' })
    .then(() => must(loner, 'discover_agents', { includeOffline: true, agentType: 'tdd-engineer' }));
  assert.deepEqual(agents.map((agent) => agent.status), ['offline']);
  const sent = await must(loner, 'send_direct_message', { recipientGuid: registration.guid, message: 'when you are back' });
  assert.match(sent.warning, /offline/);
  await engineer.client.close();
  sessions.splice(sessions.indexOf(engineer), 1);
  const back = await join(sdk1, 'beta', 'shop', 'claude-code');
  const again = await must(back, 'register_agent', { agentType: 'tdd-engineer', capabilities: [], scope: 'project', visibility: 'public' });
  assert.deepEqual([again.guid, again.again], [registration.guid, true]);
  // Both are beta's, so the mail is at beta's hub, which this process may have to find yet: other mail may come first.
  let messages;
  do {
    ({ messages } = await must(back, 'wait_for_direct_messages', { timeout_seconds: 30 }));
  } while (messages.length > 0 && !messages.some((m) => m.message === 'when you are back'));
  assert.ok(messages.some((m) => m.message === 'when you are back'));
});
