// One thing in full: a task, an agent, a conversation, a swarm, or whatever a row is about.
import contract from "./contract.js";
import { call } from "./hub.js";
import { gantt, plan } from "./draw.js";
import { age, clock, count, dollars, el, join, json, line, span, word, words } from "./text.js";
import { sums, taskRow, today } from "./rows.js";

const role = state => contract.states[state] ?? "plain";
const mark = state => contract.marks[role(state)];

/** Buttons in a row: each is [text, function]. */
export function buttons(list) {
  return el("div", "actions", undefined, ...list.map(([text, run]) => {
    const b = el("button", "", line(text));
    b.type = "button";
    b.onclick = run;
    return b;
  }));
}

/** What is shown when it is opened. It stays open when the page around it is made again. */
function fold(key, title, cls, ...content) {
  const d = el("details", "", undefined, el("summary", cls, title), ...content);
  d.dataset.key = key;
  return d;
}

const lines = (list, cls = "") => list.filter(([, v]) => v !== undefined && v !== false && v !== "" && v !== 0).map(([k, v]) => el("p", "pair " + cls, undefined, el("span", "small", k + " "), String(line(v))));

/** Who has asked for a task, "" for the hub's user alone: the agents over which it was delegated, and the sender from outside. */
const asker = t => {
  const sender = t.metadata?.["parley.sender"], chain = (t.metadata?.["parley.delegation"]?.chain ?? []).join(" \u2192 ");
  const from = sender && [sender.kind, sender.id, sender.label && sender.label !== sender.id && "(" + sender.label + ")"].filter(Boolean).join(" ");
  return [chain, from].filter(Boolean).join(", for ");
};

/** A task: state, question, what was asked, its turns, and the answer, which live shows. */
export async function task(r, live, actions, choices) {
  const [t, trace] = await Promise.all([call("tasks/get", { id: r.task }), call("hub/tasks/trace", { id: r.task }).catch(() => ({ traces: [] }))]);
  const state = t.status.state, row = taskRow(t), sum = t.metadata?.["parley.summary"] ?? {}, dir = t.metadata?.["parley.workdir"];
  Object.assign(r, { state, agent: row.agent, context: t.contextId, ended: !["submitted", "working", "input-required", "auth-required"].includes(state) });
  const parts = [
    el("p", role(state) + " state", mark(state) + " " + word(state)),
    ...lines([["agent", join(row.agent, sum.model)], ["asked by", asker(t)], ["took", sum.durationMs && span(sum.durationMs)], ["tokens", sum.usage && (sum.usage.inputTokens ?? 0) + " in, " + (sum.usage.outputTokens ?? 0) + " out"], ["cost", dollars(sum.usage?.costUsd)],
      ["changed", changed(trace.traces)]]),
  ];
  if (role(state) === "bad" && t.status.message) parts.push(el("h3", "", "Why it failed"), el("pre", "bad", words(t.status.message)), ...remedy(t.status.message.metadata?.["parley.error"]?.remedy));
  const need = question(t);
  r.need = need;
  if (need) parts.push(el("h3", "", "The agent asks for permission"), el("pre", "waits", need.title || words(t.status.message)), ...asks(need), choices(need));
  else if (role(state) === "waits") parts.push(el("h3", "", "The agent asks"), el("pre", "waits", words(t.status.message)), ...remedy(t.status.message?.metadata?.["parley.error"]?.remedy));
  parts.push(buttons(actions({ ...r, state })));
  const mine = (t.history ?? []).filter(m => m.role === "user");
  if (mine.length) parts.push(el("h3", "", "Asked"), ...mine.map(m => el("pre", "", words(m))));
  parts.push(...trace.traces.flatMap(turn));
  const answer = (t.artifacts ?? []).length ? t.artifacts : state === "completed" && t.status.message ? [{ artifactId: "answer", name: "", parts: t.status.message.parts }] : [];
  live.set(answer);
  if (answer.length || !r.ended) parts.push(el("h3", "", r.ended ? "Answer" : "Answer, as it comes"), live.element);
  parts.push(el("h3", "", "Where"), ...lines([["directory", dir && join(dir.path, dir.branch)], ["task", t.id], ["conversation", t.contextId]]));
  return parts;
}

/** What a task has changed, in words. */
function changed(traces) {
  const files = traces.flatMap(t => t.git?.files ?? []), names = [...new Set(files.map(f => f.path))];
  return names.length && names.slice(0, 3).join(", ") + (names.length > 3 ? " and " + (names.length - 3) + " more" : "");
}

const remedy = text => text ? [el("p", "waits", "\u2192 " + text)] : [];

/** The permission question that a task waits with, as one of hub/needs. */
function question(t) {
  if (role(t.status.state) !== "waits") return undefined;
  const q = (t.status.message?.parts ?? []).map(p => p.data).find(d => d?.requestId);
  const first = kind => q.options?.find(o => o.kind === kind + "_once")?.id ?? q.options?.find(o => o.kind?.startsWith(kind))?.id;
  return q && { ...q, options: q.options ?? [], taskId: t.id, allow: first("allow"), deny: first("reject") };
}

/** What a permission question is about. */
function asks(q) {
  return [...lines([["tool", q.tool ?? ""]]), ...q.input === undefined ? [] : [el("pre", "", json(q.input))]];
}

const ms = at => Date.parse(at);

/** One turn of a task: when its tools ran, what they did, who allowed what, what has changed. */
function turn(t) {
  const end = t.endedAt ? ms(t.endedAt) : Date.now(), tools = t.tools ?? [], questions = t.questions ?? [];
  const parts = [el("h3", role(t.state), "Turn " + t.turn + " \u00b7 " + join(mark(t.state) + " " + word(t.state), t.startedAt && span(end - ms(t.startedAt)), t.usage && (t.usage.inputTokens ?? 0) + " + " + (t.usage.outputTokens ?? 0) + " tokens", dollars(t.usage?.costUsd)))];
  if (t.startedAt && tools.length + questions.length) {
    const chart = gantt([
      { label: "turn " + t.turn, spans: [{ from: ms(t.startedAt), to: end, state: t.state }] },
      ...tools.map(c => ({ label: c.title || c.name || "tool", spans: c.startedAt ? [{ from: ms(c.startedAt), to: c.endedAt ? ms(c.endedAt) : end, state: c.status || "running" }] : [] })),
      ...questions.map(q => ({ label: "? " + (q.title || q.tool), spans: q.at ? [{ from: ms(q.at), to: q.answer?.at ? ms(q.answer.at) : end, state: "waiting" }] : [] })),
    ].slice(0, 40), "Turn " + t.turn);
    if (chart) parts.push(chart);
  }
  const items = [
    ...tools.map((c, i) => [c.startedAt, tool(c, t.turn + " " + (c.id || i))]),
    ...(t.notices ?? []).map(n => [n.at, el("p", "", clock(n.at) + "  " + n.text)]),
    ...questions.map(q => [q.at, asked(q, t.turn + " ? " + q.id)]),
  ];
  parts.push(...items.sort((a, b) => (ms(a[0]) || 0) - (ms(b[0]) || 0)).map(i => i[1]));
  const omitted = Object.entries(t.omitted ?? {}).map(([k, n]) => n + " more " + k);
  if (omitted.length) parts.push(el("p", "small", join(...omitted)));
  if (t.error) parts.push(el("p", "bad", join(t.error.code, t.error.message)));
  if (t.git) parts.push(...diffstat(t.git));
  return parts;
}

function tool(c, key) {
  const head = join(clock(c.startedAt) + "  " + mark(c.status) + " " + line(c.title || c.name || "tool"), c.status, c.startedAt && c.endedAt && span(ms(c.endedAt) - ms(c.startedAt)));
  const input = c.input === undefined || json(c.input) === "" ? [] : [el("p", "small", "input"), el("pre", "", json(c.input))];
  const output = c.output ? [el("p", "small", "output"), el("pre", "", c.output)] : [];
  return fold("tool " + key, head, role(c.status), ...input, ...output, ...input.length + output.length ? [] : [el("p", "small", "no input and no output were recorded")]);
}

function asked(q, key) {
  const a = q.answer, who = a && (a.agent || a.by);
  const said = a ? (a.allowed ? "allowed" : "denied") + (who ? " by " + who : "") : "not answered";
  return fold("question " + key, join(clock(q.at) + "  ? " + line(q.title || q.tool), said, a?.at && "after " + span(ms(a.at) - ms(q.at))), a ? a.allowed ? "good" : "bad" : "waits", ...asks(q), ...a?.message ? [el("p", "", a.message)] : []);
}

function diffstat(g) {
  if (!g.files?.length) return g.problem ? [el("p", "small", "changes: " + g.problem)] : [];
  const all = g.files.length + (g.moreFiles ?? 0);
  const table = el("table", "diff", undefined, ...g.files.map(f => el("tr", "", undefined, el("td", "", line(f.path) + (f.new ? " (new)" : "")), f.binary ? el("td", "small", "binary") : el("td", "good number", "+" + f.added), f.binary ? el("td", "") : el("td", "bad number", "-" + f.deleted))));
  return [el("p", "", "changed " + count(all, "file") + ": +" + g.added + " -" + g.deleted + (g.branch ? " on " + line(g.branch) : "")), table, ...g.moreFiles ? [el("p", "small", g.moreFiles + " more")] : []];
}

/** An agent: where it is, how it is, and its last tasks. */
export async function agent(r, go, actions) {
  const [list, totals, page] = await Promise.all([call("hub/agents/list", { includeHealth: true, includeCards: false }), today(), call("hub/tasks/page", { agentId: r.agent, limit: 30, historyLength: 0 })]);
  const a = list.find(x => x.id === r.agent);
  if (!a) return [el("p", "bad", "There is no such agent any more.")];
  const h = a.health, sick = h && h.status !== "healthy";
  return [
    el("p", role(a.state) + " state", join(mark(a.state) + " " + a.state, a.since && "for " + age(a.since))),
    ...lines([["today", sums(totals.get(a.id)) || "no tasks"], ["works on", a.working && (a.working.title || "a task")], ["runs", a.running && count(a.running, "turn")], ["queued", a.queued], ["kind", a.kind], ["driver", a.driver], ["vendor", a.vendor],
      ["model", a.model], ["role", a.role], ["project", a.project], ["computer", a.computer], ["quiet", a.quiet && "nothing wakes it; it sees what is new at its next turn"], ["capabilities", (a.capabilities ?? []).join(", ")], ["about", a.description]]),
    ...h ? [el("p", role(h.status), join(mark(h.status) + " " + h.status, h.stage, h.version, h.circuit && h.circuit !== "closed" && "circuit " + h.circuit))] : [],
    ...sick ? remedy(h.errorMessage) : [],
    buttons(actions(r)), ...await lastChanges(page.tasks.map(taskRow), go), el("h3", "", "Last tasks"), ...page.tasks.length ? taskList(page.tasks.map(taskRow), go) : [el("p", "small", "none")],
  ];
}

const traced = new Map(); // what ended tasks have changed, by their ids

/** What the latest of an agent's tasks have changed, by task. */
async function lastChanges(rows, go) {
  const ended = rows.filter(r => !["submitted", "working"].includes(r.state)).slice(0, 5);
  await Promise.all(ended.filter(r => traced.get(r.id)?.at !== r.at).map(async r => {
    const found = await call("hub/tasks/trace", { id: r.id }).catch(() => ({ traces: [] }));
    if (traced.size > 500) traced.clear();
    traced.set(r.id, { at: r.at, files: changed(found.traces) });
  }));
  const list = ended.filter(r => traced.get(r.id)?.files).map(r => ({ ...r, title: traced.get(r.id).files + " \u00b7 " + r.title }));
  return list.length ? [el("h3", "", "Last changes"), ...taskList(list, go)] : [];
}

/** Tasks, each of which opens. */
function taskList(rows, go) {
  return rows.map(t => {
    const b = el("button", "task", undefined, el("span", role(t.state), mark(t.state) + " "), line(t.title), el("span", "small", "  " + join(word(t.state), age(t.at))));
    b.type = "button";
    b.onclick = () => go(t);
    return b;
  });
}

/** A conversation as a thread. */
export async function conversation(r, go, actions) {
  const page = await call("hub/tasks/page", { contextId: r.conversation, limit: 200, historyLength: 1000, includeArtifacts: true });
  return [buttons(actions(r)), ...page.tasks.reverse().flatMap(t => [
    ...(t.history ?? []).filter(m => m.role === "user").map((m, i) => said(i === 0 && asker(t) || "you", "", m)), ...taskList([{ ...taskRow(t), title: t.metadata?.["parley.agent"] ?? t.id }], go),
    ...t.artifacts?.length ? t.artifacts.map(a => said(a.name || "answer", role(t.status.state), a)) : t.status.message ? [said("the agent", role(t.status.state), t.status.message)] : [],
  ])];
}

/** A channel, or the mail of two agents, with who has seen what. */
export async function thread(r, actions) {
  const found = await call("hub/threads/get", { threadId: r.thread.id, limit: 200 });
  return [
    buttons(actions(r)), ...found.more ? [el("p", "small", "Earlier messages are not shown.")] : [], ...found.messages.length ? [] : [el("p", "small", "No message is kept.")],
    ...found.messages.map(m => el("div", "said", undefined,
      el("p", "small", undefined, el("b", "", line(m.from)), " " + line(join(m.to && "to " + m.to, m.type)) + "  ", clock(m.at) + " (" + age(m.at) + " ago)"), el("pre", "", m.text), receipts(m))),
  ];
}

/** Who has seen a message, and when: how far mail has come, and who has read a channel up to here. */
function receipts(m) {
  const r = m.receipt, seen = (m.seenBy ?? []).map(s => s.at ? s.who + " " + clock(s.at) : s.who).join(", ");
  if (!r) return seen ? el("p", "small good", "\u2713 read up to here: " + seen) : "";
  const stages = [["stored", r.storedAt], ["delivered", r.deliveredAt], ["woke the session", r.wokenAt], ["shown", r.shownAt], ["held", r.heldAt], ["refused", r.refusedAt], ["read", r.readAt], ["handled", r.handledAt]];
  const text = join(...stages.filter(([, at]) => at).map(([name, at]) => name + " " + clock(at)), r.note);
  return el("p", "small " + (r.readAt ? "good" : "waits"), (r.readAt ? "\u2713 " : "? not read yet \u00b7 ") + text);
}

const said = (who, cls, message) => el("div", "said", undefined, el("p", "small", line(who)), el("pre", cls === "bad" || cls === "waits" ? cls : "", words(message)));

/** A swarm: its plan as a graph, its attempts by time, and its parts. */
export async function swarm(r, events) {
  const [s, list] = await Promise.all([call("hub/swarms/get", { id: r.swarm }), call("hub/agents/list", { includeHealth: false, includeCards: false })]);
  const names = new Map(list.map(a => [a.id, a.address || a.id])), name = id => names.get(id) ?? id;
  const ended = s.status === "completed" || s.status === "failed";
  const chart = gantt(attempts(s, events), "Attempts");
  return [
    el("p", role(s.status) + " state", mark(s.status) + " " + s.status), ...lines([["agents", s.participants.map(name).join(", ")], ["led by", s.coordinator], ["directory", s.directory?.path], ["begun", age(new Date(s.createdAt).toISOString()) + " ago"]]),
    ...s.error ? [el("pre", "bad", s.error)] : [], el("h3", "", "Plan"), s.subTasks.length ? plan(s.subTasks.map(p => ({ ...p, assignedAgent: p.assignedAgent && name(p.assignedAgent) }))) : el("p", "small", ended ? "It had no parts." : "It has no parts yet."),
    ...chart ? [el("h3", "", "Attempts"), chart] : [],
    ...s.subTasks.map(p => fold("part " + p.id, join(mark(p.status) + " " + line(p.id), p.status, p.assignedAgent && name(p.assignedAgent), p.attempt > 1 && "attempt " + p.attempt), role(p.status),
      el("p", "", p.description), ...p.error ? [el("pre", "bad", p.error)] : [], ...p.result === undefined ? [] : [el("pre", "", json(p.result))])),
    ...s.outcome === undefined ? [] : [el("h3", "", "Result"), ...outcome(s.outcome)],
  ];
}

/** A result: the text of each part that has one, anything else as it is. */
function outcome(value) {
  const parts = value && typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : [];
  if (!parts.length || parts.some(([, v]) => typeof v?.text !== "string")) return [el("pre", "", json(value))];
  return parts.flatMap(([id, v]) => [el("p", "small", line(id)), el("pre", "", v.text)]);
}

/** The attempts at each part, from the events: an attempt begins when the part runs, and ends with its next state. */
function attempts(s, events) {
  const rows = new Map(s.subTasks.map(p => [p.id, { label: p.id, spans: [] }]));
  for (const e of events) {
    if (e.kind !== "swarm.subtask" || e.subject !== s.id) continue;
    const row = rows.get(e.data?.subTask), last = row?.spans.at(-1), at = ms(e.time);
    if (!row) continue;
    if (last && last.open) Object.assign(last, { to: at, open: e.data.state === "running" && last.title === e.agent, state: e.data.state === "running" ? last.title === e.agent ? "running" : "failed" : e.data.state === "pending" ? "failed" : e.data.state });
    if (e.data.state === "running" && !last?.open) row.spans.push({ from: at, to: at, state: "running", title: e.agent, open: true });
  }
  for (const row of rows.values()) for (const span of row.spans) if (span.open) span.to = Date.now();
  return [...rows.values()];
}

/** Files that an agent holds. */
export function claim(c) {
  return [...lines([["files", c.paths.join(", ")], ["of", c.repository], ["held by", c.holder], ["since", clock(c.claimedAt)], ["until", clock(c.until)], ["others may", c.mode === "shared" && "share them"], ["in", c.allWorkTrees && "all work trees"]]),
    ...c.why ? [el("h3", "", "Why"), el("pre", "", c.why)] : []];
}

/** What a row knows, for all that has no page of its own. */
export function plain(r) {
  const known = r.show ?? {}, entries = Object.entries(known).filter(([, v]) => v !== null && v !== "");
  if (!entries.length) return [el("p", "small", "Nothing more is known.")];
  const parts = entries.filter(([, v]) => typeof v === "object"), texts = entries.filter(([, v]) => typeof v !== "object");
  return [...lines(texts.map(([k, v]) => [k.replace(/([a-z])([A-Z])/g, (all, a, b) => a + " " + b.toLowerCase()), String(v)])), ...parts.flatMap(([k, v]) => [el("h3", "", line(k)), el("pre", "", json(v))])];
}
