// What each screen lists. A row has {id, state, title, about, side, until, at, task, context, agent, need, item, document, conversation, swarm, show}.
import { call } from "./hub.js";
import { age, clock, count, dollars, join, line, span, word, words } from "./text.js";

/** The events that change a screen, as beginnings of their kinds. */
export const changes = {
  needs: ["task.", "permission.", "deadletter.", "agent.", "loop.", "mail.held"], agents: ["agent.", "task.state", "permission."], tasks: ["task.", "turn.ended"], conversations: ["task.", "channel.", "mail."],
  swarms: ["swarm.", "work.", "deadletter.", "loop.", "claim."], network: ["agent.", "peer."], documents: ["document."], timeline: [""], costs: ["turn.ended", "task.removed"],
};

export async function needs() {
  const found = await call("hub/needs");
  return Object.assign(found.needs.map(n => ({
    id: n.id, state: n.taskId ? "waiting" : { deadletter: "dead", loop: "failed", login: "unhealthy", health: "unhealthy" }[n.kind] ?? "waiting", title: n.title || "waits for more input",
    also: n.kind, about: join(word(n.kind), n.agent, n.tool, n.list), side: age(n.since),
    task: n.taskId, context: n.contextId, agent: n.item ? "" : n.agent, need: n, item: n.item, show: n,
  })), { waiting: found.total });
}

export async function agents() {
  const [list, totals] = await Promise.all([call("hub/agents/list", { includeHealth: true, includeCards: false }), today()]);
  return list.map(a => {
    const sick = a.health?.status === "unhealthy";
    const work = sick ? a.health.errorMessage : a.working ? a.working.title || "works on a task" : a.description;
    return { id: a.id, state: sick ? "unhealthy" : a.state, agent: a.id, title: a.address || a.id, about: join(a.project, sick ? "unhealthy" : a.state, a.quiet && "not to be disturbed", work), side: join(sums(totals.get(a.id)), totals.has(a.id) && "today"), show: a, place: true };
  });
}

/** What a total says, in words. */
export function sums(t) {
  return t ? join(count(t.tasks, "task"), t.failed && t.failed + " failed", dollars(t.costUsd)) : "";
}

/** Today's totals by agent. */
export async function today() {
  const start = new Date();
  start.setHours(0, 0, 0, 0);
  const found = await call("hub/totals", { by: ["agent"], since: start.toISOString() });
  return new Map(found.totals.map(t => [t.agent, t]));
}

// Tasks are kept between loads. Events change them at once; a load asks for the rest of those that have changed.
const maxTasks = 20000, busy = 60;
const kept = { rows: new Map(), dirty: new Set(), whole: false, arrived: 0, missed: 0 }; // missed: since when events are missing, 0 if none are

/** Notes that an event changes a task. */
export function changed(e) {
  if (!e.task || !kept.whole) return;
  if (e.kind === "task.removed") {
    kept.rows.delete(e.task);
    kept.dirty.delete(e.task);
    return;
  }
  const old = kept.rows.get(e.task), agent = e.agent || old?.agent, state = e.data?.state ?? "", is = e.kind === "task.state";
  // The stream begins with the events of the last day: what is known already says more than they do.
  const later = old ? Date.parse(e.time) - Date.parse(old.at) : 1;
  if (later < 0 || later < 2000 && old && !(is && state !== old.state)) return;
  kept.dirty.add(e.task);
  kept.arrived++;
  if (is) kept.rows.set(e.task, { ...old ?? { id: e.task, task: e.task, context: e.context, title: e.task, created: Date.parse(e.time) }, agent, state, at: e.time, about: join(agent, word(state)), find: undefined });
}

/** Forgets all tasks: after the hub was away, events may be missing. */
export function forget() { kept.whole = false; }

/** Whether an event stands for those that were left out because too many came at once. */
export const leftOut = e => e.kind === "gap" && e.data?.reason === "brief";

/** Notes that events are missing. */
export function missed(e) {
  kept.missed ||= Date.now() - 10000;
  kept.arrived += e.data?.count ?? busy;
}

/** Whether tasks have changed of which not all is known. */
export const behind = () => kept.whole && (kept.dirty.size > 0 || kept.missed > 0);

export async function tasks(partly) {
  if (!kept.whole) await allTasks(partly);
  else await changedTasks();
  return sorted();
}

async function allTasks(partly) {
  kept.rows.clear();
  kept.dirty.clear();
  kept.missed = 0;
  kept.whole = true; // what changes from here on is noted
  try {
    for (let cursor; kept.rows.size < maxTasks;) {
      const page = await call("hub/tasks/page", { limit: 1000, historyLength: 0, ...cursor && { cursor } });
      for (const t of page.tasks) kept.rows.set(t.id, taskRow(t));
      cursor = page.nextCursor;
      if (!cursor) return;
      partly(sorted());
    }
  } catch (e) { kept.whole = false; throw e; }
}

/** Loads tasks that have changed: the pages of the latest have them. While much changes, only a few at a time. */
async function changedTasks() {
  const wanted = kept.dirty, many = kept.arrived > busy, since = many ? 0 : kept.missed, limit = many ? busy : since ? 500 : Math.min(500, wanted.size + 5);
  kept.dirty = new Set();
  kept.arrived = 0;
  if (!wanted.size && !kept.missed) return;
  try {
    for (let cursor; ;) {
      const page = await call("hub/tasks/page", { limit, historyLength: 0, ...cursor && { cursor } });
      for (const t of page.tasks) { kept.rows.set(t.id, taskRow(t)); wanted.delete(t.id); }
      cursor = since && page.nextCursor;
      if (!cursor || Date.parse(page.tasks.at(-1)?.status.timestamp ?? 0) < since) break;
    }
    if (since && since === kept.missed && !kept.arrived) kept.missed = 0;
    for (const id of [...wanted].slice(-5)) {
      await call("tasks/get", { id, historyLength: 0 }).then(t => kept.rows.set(id, taskRow(t)), e => e.code === "TASK_NOT_FOUND" && kept.rows.delete(id));
      wanted.delete(id);
    }
  } finally { for (const id of wanted) kept.dirty.add(id); }
}

const sorted = () => [...kept.rows.values()].sort((a, b) => b.created - a.created).slice(0, maxTasks);

export function taskRow(t) {
  const agent = t.metadata?.["parley.agent"] ?? "", sum = t.metadata?.["parley.summary"] ?? {};
  const state = t.status.state, said = state === "failed" || state === "rejected" || state === "input-required" ? words(t.status.message).slice(0, 400) : "";
  return {
    id: t.id, state, task: t.id, context: t.contextId, agent, created: Date.parse(sum.createdAt ?? t.status.timestamp), title: sum.prompt || words(t.history?.[0]) || t.id, at: t.status.timestamp,
    about: join(agent, word(state), line(said), sum.durationMs && span(sum.durationMs), dollars(sum.usage?.costUsd)),
  };
}

/** Conversations with agents in tasks, the channels of projects, and the mail of agents, the newest first. */
export async function conversations() {
  const [list, threads] = await Promise.all([call("hub/contexts/list", { limit: 1000 }), ofPage("hub/threads/list", []), titles()]);
  const last = new Map();
  for (const t of known.values()) if (t.context && !(last.get(t.context)?.created > t.created)) last.set(t.context, t);
  const tasks = list.map(c => ({
    id: c.id, state: last.get(c.id)?.state ?? "", title: last.get(c.id)?.title ?? (c.agentIds.join(", ") || c.id), at: c.lastUsedAt, conversation: c.id,
    about: join("with " + (c.agentIds.join(", ") || "nobody"), count(c.taskIds.length, "task"), Object.values(c.workDirs ?? {})[0]?.path),
    context: c.id, agent: c.agentIds.length === 1 ? c.agentIds[0] : "",
  }));
  const others = threads.map(t => ({
    id: t.id, state: t.unread ? "waiting" : "", title: threadTitle(t), at: t.newest, thread: t, show: t,
    about: join(t.kind === "channel" ? "channel of " + t.project : "mail", count(t.messages, "message"), t.unread && t.unread + " not read"),
  }));
  return [...tasks, ...others].sort((a, b) => Date.parse(b.at) - Date.parse(a.at));
}

// The latest tasks, for what is about a task and has only its id.
const known = new Map();
let knownAt = 0;

/** Loads the titles of the latest tasks, if the last load was a while ago. */
export async function titles() {
  if (Date.now() - knownAt < 2000) return;
  knownAt = Date.now();
  for (const t of kept.whole ? [] : (await call("hub/tasks/page", { limit: 300, historyLength: 0 })).tasks) known.set(t.id, taskRow(t));
  if (kept.whole) for (const [id, row] of kept.rows) known.set(id, row);
  while (known.size > maxTasks) known.delete(known.keys().next().value);
}

const writer = c => c.you ? "you" : c.handle || c.guid.slice(0, 8);
const threadTitle = t => t.kind === "channel" ? "# " + t.channel : t.between.map(writer).join(" and ");

/** Calls a method that only the page of the hub's user has: a browser with a token instead of the page's cookie gets the other. */
export async function ofPage(method, other, params) {
  try {
    return await call(method, params);
  } catch (e) {
    if (e.code === "METHOD_NOT_FOUND") return other;
    throw e;
  }
}

/** Loops, as far as their events of the last day tell. */
function loops(events) {
  const found = new Map();
  for (const { show: e, time } of events) {
    if (e.kind !== "loop.step") continue;
    const l = found.get(e.subject) ?? { steps: [] };
    l.steps.push(clock(e.time) + "  " + join(word(e.data?.step), e.data?.item, e.agent, e.data?.attempt > 1 && "attempt " + e.data.attempt, e.data?.reason));
    found.set(e.subject, Object.assign(l, { last: e, time }));
  }
  return [...found].map(([list, l]) => {
    const step = l.last.data?.step ?? "";
    return {
      id: "loop " + list, state: l.last.data?.reason ? "failed" : { finished: "completed", completed: "completed", failed: "failed", "given-up": "failed", stopped: "blocked" }[step] ?? "running", title: list, at: l.last.time, agent: "", loop: list,
      about: join("loop", word(step), l.last.data?.item, l.last.agent, l.last.data?.reason), show: { steps: l.steps.slice(-200).join("\n") },
    };
  });
}

export async function swarms(events) {
  const [list, queues, claims] = await Promise.all([call("hub/swarms/list"), call("hub/work/list"), ofPage("hub/claims/list", [])]);
  const held = claims.map(c => ({
    id: c.claimId, state: "claimed", title: c.paths.join(", "), until: c.until, at: c.claimedAt, claim: c, show: c,
    about: join("files of " + c.repository, "held by " + c.holder, c.mode === "shared" && "shared", c.why),
  }));
  const items = queues.items.map(x => ({
    id: x.taskId, state: x.state, title: x.taskDescription || x.taskId, until: x.state === "claimed" ? x.leaseUntil : "", at: x.submittedAt, about: join("queue " + x.capability, x.state, x.holderHandle), show: x,
  }));
  const dead = queues.deadLetters.map(l => ({
    id: l.originalTaskId, state: "dead", item: l.originalTaskId, title: l.originalPayload?.taskDescription || l.originalTaskId, at: l.deadAt, show: l,
    about: join("failed work of " + l.originalSubject.split(".").pop(), count(l.deliveryAttempts, "attempt"), l.failureReason, l.failureDetail),
  }));
  return [...dead, ...held, ...items, ...loops(events), ...list.map(s => ({
    id: s.id, state: s.status, title: s.taskDescription || s.id, about: join("swarm", s.status, s.completed + " of " + count(s.subTasks, "part"), s.participants.join(", "), s.error), at: s.createdAt, swarm: s.id, show: s,
  }))];
}

export async function network() {
  const [status, list] = await Promise.all([call("hub/status"), call("hub/agents/list", { includeHealth: true, includeCards: false })]);
  const links = [];
  const link = status.bus?.link, on = c => c ? "connected" : "lost";
  if (link) links.push({ id: "link", state: on(link.connected), name: "Cluster", about: join(link.url, link.problem), at: link.since, show: link });
  for (const p of status.peers?.hubs ?? []) links.push({ id: "hub " + p.name, state: on(p.connected), name: "Hub " + p.name, about: join(p.via.join(", "), p.problem), at: p.lastHeard, show: p });
  for (const m of status.mcpServers ?? []) links.push({ id: "mcp " + m.name, state: on(m.connected), name: "MCP server " + m.name, about: m.problem || count(m.tools, "tool"), at: m.since, show: m });
  const rows = [{ id: "hub", state: "connected", title: "This hub", about: join("version " + status.version, count(status.totalTasks, "task"), status.activeTasks + " active"), side: "up " + age(status.startedAt), show: status }, ...links.map(l => ({ ...l, title: l.name }))];
  for (const a of list) rows.push({ id: "agent " + a.id, state: a.health?.status === "unhealthy" ? "unhealthy" : a.state, agent: a.id, title: a.address || a.id, about: join(a.computer || "this computer", a.project, a.kind, a.vendor), side: a.state, show: a, place: true });
  return Object.assign(rows, { links, agents: list });
}

export async function documents() {
  return (await call("hub/documents/list")).map(name => ({ id: name, state: "", title: name, about: "", side: "", document: name }));
}

const named = ["state", "status", "outcome", "step"], details = ["reason", "tool", "title", "from", "subTask", "item", "messages", "costUsd"];

const short = id => /^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(id ?? "") ? id.slice(0, 8) : /^[0-9a-f]{16,}$/.test(id ?? "") ? "" : id;

const gaps = { brief: "more happened than a page shows at once; they appear when it is calmer", overload: "more happened than the hub could store", storage: "the hub could not store them", killed: "the hub was killed before it stored its latest events", expired: "they are no longer kept", reset: "the hub's record has begun anew" };

/** The row of an event. */
export function eventRow(e, n) {
  const d = e.data ?? {};
  if (e.kind === "gap") return { id: String(n), time: Date.parse(e.time), state: "", title: (d.count ?? "Some") + " events are not here", also: e.kind, about: gaps[d.reason] ?? d.reason, show: e, side: clock(e.time) };
  return {
    id: e.position ?? String(n), time: Date.parse(e.time), state: d.state ?? d.status ?? d.outcome ?? "", named: e.agent || e.subject || e.channel, also: e.kind, title: join(word(e.kind), e.agent || e.channel || d.fromHandle || short(e.subject)), task: e.task, agent: e.agent, context: e.context, show: e, side: clock(e.time),
    swarm: e.kind.startsWith("swarm.") ? e.subject : undefined, document: e.kind === "document.changed" ? e.subject : undefined,
    get about() { return join(...named.map(k => word(d[k])), d.toHandle && "to " + d.toHandle, ...details.map(k => d[k] && !(k === "from" && d.fromHandle) ? String(d[k]) : ""), d.repository && d.repository + ": " + count(d.claims, "claim"), known.get(e.task)?.title ?? e.task, e.channel, e.subject !== this.named && e.subject, e.project); },
  };
}

/** Costs by day, agent or project. */
export async function costs(by) {
  const start = new Date();
  start.setHours(0, 0, 0, 0);
  const [found, now] = await Promise.all([call("hub/totals", { by: [by] }), call("hub/totals", { by: [], since: start.toISOString() })]);
  const name = t => t[by] || (by === "project" ? "conversations without one" : "");
  const rows = found.totals.map(t => ({
    id: name(t), state: t.failed ? "failed" : "completed", title: name(t), side: dollars(t.costUsd) || "no cost reported", total: t, show: t, at: "",
    about: join(count(t.tasks, "task"), t.failed && t.failed + " failed", t.canceled && t.canceled + " canceled", span(t.durationMs), (t.inputTokens + t.outputTokens).toLocaleString("en") + " tokens"),
  }));
  if (by !== "day") rows.sort((a, b) => b.total.costUsd - a.total.costUsd || b.total.tasks - a.total.tasks);
  return Object.assign(rows, { today: now.totals[0] });
}
