// The screens. Everything that an agent wrote reaches the page as text nodes only; see text.js.
import contract from "./contract.js";
import { call, send, follow } from "./hub.js";
import { age, el, line, words } from "./text.js";
import { Editor } from "./document.js";

const $ = id => document.getElementById(id);
const rowHeight = 56;
const state = { screen: null, rows: [], shown: [], at: 0, open: null, loading: false, stale: false, busy: "" };

// A screen's load returns its rows: {id, state, title, about, side, task, context, agent, need, show}.
const loads = { needs, agents, tasks, conversations, swarms, network, documents, timeline, costs };

async function needs() {
  const found = await call("hub/needs");
  state.waiting = found.total;
  return found.needs.map(n => ({
    id: n.id, state: "waiting", title: n.title || "waits for more input", about: n.kind + " \u00b7 " + (n.agent ?? ""), side: age(n.since),
    task: n.taskId, context: n.contextId, agent: n.item ? "" : n.agent, need: n, item: n.item, show: n,
  }));
}

async function agents() {
  const [list, totals] = await Promise.all([call("hub/agents/list", { includeHealth: true, includeCards: false }), today()]);
  return list.map(a => {
    const t = totals.get(a.id);
    const sum = t ? t.tasks + " today" + (t.failed ? ", " + t.failed + " failed" : "") + (t.costUsd ? ", $" + t.costUsd.toFixed(2) : "") : "";
    const work = a.working ? a.working.title || "works on a task" : a.health?.errorMessage || a.description || "";
    return {
      id: a.id, state: a.health?.status === "unhealthy" ? "unhealthy" : a.state, agent: a.id, task: a.working?.taskId,
      title: a.address || a.id, about: [a.project, a.state, work].filter(Boolean).join(" \u00b7 "), side: sum, show: a,
    };
  });
}

async function today() {
  const start = new Date();
  start.setHours(0, 0, 0, 0);
  const found = await call("hub/totals", { by: ["agent"], since: start.toISOString() });
  return new Map(found.totals.map(t => [t.agent, t]));
}

async function tasks() {
  const rows = [];
  let cursor;
  do {
    const page = await call("hub/tasks/page", { limit: 1000, historyLength: 1, ...(cursor && { cursor }) });
    for (const t of page.tasks) rows.push(taskRow(t));
    cursor = page.nextCursor;
  } while (cursor && rows.length < 10000);
  return rows;
}

function taskRow(t) {
  const agent = t.metadata?.["parley.agent"] ?? "";
  const said = words(t.status.message) || words(t.history?.[0]);
  return { id: t.id, state: t.status.state, task: t.id, context: t.contextId, agent, title: said || t.id, about: [agent, t.status.state].filter(Boolean).join(" \u00b7 "), side: age(t.status.timestamp) };
}

async function conversations() {
  const list = await call("hub/contexts/list", { limit: 1000 });
  return list.map(c => ({
    id: c.id, state: "", title: c.agentIds.join(", ") || c.id, about: c.taskIds.length + " tasks \u00b7 " + c.id, side: age(c.lastUsedAt), conversation: c.id,
    context: c.id, agent: c.agentIds.length === 1 ? c.agentIds[0] : "",
  }));
}

async function swarms() {
  const [list, queues] = await Promise.all([call("hub/swarms/list"), call("hub/work/list")]);
  const items = queues.items.map(x => ({
    id: x.taskId, state: x.state, title: x.taskDescription || x.taskId, until: x.state === "claimed" ? x.leaseUntil : "", side: age(x.submittedAt),
    about: ["queue " + x.capability, x.state, x.holderHandle].filter(Boolean).join(" \u00b7 "), show: x,
  }));
  const dead = queues.deadLetters.map(l => ({
    id: l.originalTaskId, state: "dead", item: l.originalTaskId, title: l.originalPayload?.taskDescription || l.originalTaskId, side: age(l.deadAt), show: l,
    about: ["failed work of " + l.originalSubject.split(".").pop(), l.deliveryAttempts + " attempts", l.failureReason, l.failureDetail].filter(Boolean).join(" \u00b7 "),
  }));
  return [...dead, ...items, ...list.map(s => ({ id: s.id, state: s.status, title: s.taskDescription || s.id, about: [s.status, s.completed + " of " + s.subTasks + " parts", s.participants.join(", "), s.error].filter(Boolean).join(" \u00b7 "), side: age(s.createdAt), swarm: s.id, show: s }))];
}

async function network() {
  const [status, list] = await Promise.all([call("hub/status"), call("hub/agents/list", { includeCards: false })]);
  const rows = [{ id: "hub", state: "connected", title: "This hub", about: "version " + status.version + " \u00b7 " + status.totalTasks + " tasks", side: "", show: status }];
  const link = status.bus?.link;
  if (link) rows.push({ id: "link", state: link.connected ? "connected" : "lost", title: "Cluster " + link.url, about: link.problem ?? "", side: age(link.since), show: link });
  for (const m of status.mcpServers ?? []) rows.push({ id: "mcp " + m.name, state: m.connected ? "connected" : "lost", title: "MCP server " + m.name, about: m.problem ?? m.tools + " tools", side: age(m.since), show: m });
  for (const a of list) rows.push({ id: "agent " + a.id, state: a.state, agent: a.id, title: a.address || a.id, about: [a.computer || "this computer", a.project, a.kind].filter(Boolean).join(" \u00b7 "), side: "", show: a });
  return rows;
}

async function documents() {
  const found = await call("hub/documents/list");
  const list = Array.isArray(found) ? found : found.documents ?? [];
  return list.map(d => ({ id: d.name ?? d, state: "", title: d.name ?? d, about: "", side: "", document: d.name ?? d }));
}

async function timeline() {
  return [...state.events ?? []].reverse();
}

function eventRow(e) {
  return { id: e.position ?? e.at ?? String(Math.random()), state: e.data?.state ?? "", title: e.kind + (e.data?.state ? " " + e.data.state : ""), about: [e.agent, e.task, e.project, e.channel].filter(Boolean).join(" \u00b7 "), side: age(e.time), task: e.task, agent: e.agent, show: e };
}

async function costs() {
  const found = await call("hub/totals", { by: ["day", "agent", "project"] });
  return found.totals.map(t => ({
    id: [t.day, t.agent, t.project].join(" "), state: t.failed ? "failed" : "completed", title: [t.day, t.agent].filter(Boolean).join(" \u00b7 "), about: [t.tasks + " tasks", t.failed && t.failed + " failed", t.inputTokens + t.outputTokens + " tokens", t.project].filter(Boolean).join(" \u00b7 "),
    side: "$" + t.costUsd.toFixed(2), show: t,
  }));
}

// The list: only the rows in sight are elements.

function paint() {
  const list = $("list"), rows = $("rows");
  rows.style.height = state.shown.length * rowHeight + "px";
  const first = Math.max(0, Math.floor(list.scrollTop / rowHeight) - 4);
  const last = Math.min(state.shown.length, first + Math.ceil(list.clientHeight / rowHeight) + 8);
  rows.replaceChildren(...state.shown.slice(first, last).map((r, i) => rowOf(r, first + i)));
  list.setAttribute("aria-activedescendant", state.shown.length ? "row" + state.at : "");
}

function rowOf(r, i) {
  const role = contract.states[r.state] ?? "plain";
  const mark = el("span", role, contract.marks[role]);
  mark.title = r.state;
  const e = el("div", "row", undefined, mark, el("div", "", undefined, el("p", "", line(r.title)), el("p", "small", line(r.about))), el("span", "small", r.until ? left(r.until) : line(r.side)));
  e.id = "row" + i;
  e.style.top = i * rowHeight + "px";
  e.setAttribute("role", "option");
  e.setAttribute("aria-selected", String(i === state.at));
  e.setAttribute("aria-setsize", String(state.shown.length));
  e.setAttribute("aria-posinset", String(i + 1));
  e.onclick = () => { state.at = i; paint(); open(); };
  return e;
}

/** How long a lease still lasts. */
function left(until) {
  return Math.max(0, Math.ceil((Date.parse(until) - Date.now()) / 1000)) + "s left";
}

function refilter() {
  const wanted = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const selected = state.shown[state.at]?.id;
  state.shown = state.rows.filter(r => { const text = [r.id, r.title, r.about, r.state].join(" ").toLowerCase(); return wanted.every(w => text.includes(w)); });
  const again = state.shown.findIndex(r => r.id === selected);
  state.at = again >= 0 ? again : Math.min(state.at, Math.max(0, state.shown.length - 1));
  $("none").hidden = state.shown.length > 0;
  $("none").textContent = state.rows.length ? "Nothing has these words." : state.screen.none;
  paint();
}

function move(by) {
  state.at = Math.max(0, Math.min(state.shown.length - 1, state.at + by));
  const list = $("list"), top = state.at * rowHeight;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + rowHeight > list.scrollTop + list.clientHeight) list.scrollTop = top + rowHeight - list.clientHeight;
  paint();
}

async function load() {
  if (state.loading) { state.stale = true; return; }
  state.loading = true;
  do {
    state.stale = false;
    const screen = state.screen;
    try {
      const rows = await loads[screen.id]();
      if (screen === state.screen) { state.rows = rows; refilter(); }
      if (screen.id !== "needs") state.waiting = (await call("hub/needs")).total;
      tabs();
    } catch (e) { say(e.message); }
    if (screen !== state.screen) state.stale = true;
  } while (state.stale);
  state.loading = false;
}

function show(screen) {
  state.screen = screen;
  state.rows = state.shown = [];
  state.at = 0;
  close();
  $("filter").value = "";
  $("filter").hidden = true;
  $("title").textContent = screen.title;
  document.title = screen.title + " \u00b7 Parley";
  history.replaceState(null, "", "#" + screen.id);
  tabs();
  paint();
  $("list").focus();
  load();
}

function tabs() {
  $("screens").replaceChildren(...contract.screens.map(s => {
    const b = el("button", s.id === "needs" && state.waiting ? "waits" : "", s.key + " " + s.title + (s.id === "needs" && state.waiting ? " (" + state.waiting + ")" : ""));
    b.type = "button";
    b.title = s.shows;
    b.id = "go-" + s.id;
    if (s === state.screen) b.setAttribute("aria-current", "page");
    b.onclick = () => show(s);
    return b;
  }));
}

// One thing in full.

async function open() {
  const r = state.shown[state.at];
  if (!r) return;
  state.open = r;
  try {
    const content = await detail(r);
    if (state.open !== r) return;
    $("detail").replaceChildren(...content);
    $("detail").hidden = false;
    document.body.classList.add("open");
    paint();
  } catch (e) { say(e.message); }
}

function close() {
  state.open = state.editors = null;
  $("detail").hidden = true;
  document.body.classList.remove("open");
}

async function detail(r) {
  const parts = [el("h2", "", line(r.title)), el("p", "small", r.about)];
  if (r.need?.requestId) {
    parts.push(...r.need.tool ? [el("p", "", "Tool: " + r.need.tool)] : [], ...r.need.input !== undefined ? [el("pre", "", JSON.stringify(r.need.input, null, 2))] : []);
    parts.push(buttons(r.need.options.map(o => [o.name || o.id, () => choose(r.need, o.id)])));
  }
  if (r.document) return [...parts, ...await editors(r.document)];
  if (r.conversation) {
    const page = await call("hub/tasks/page", { contextId: r.conversation, limit: 200, historyLength: 1000, includeArtifacts: true });
    return [...parts, buttons(actions(r)), ...page.tasks.reverse().flatMap(thread)];
  }
  if (r.swarm) return [...parts, el("pre", "", JSON.stringify(await call("hub/swarms/get", { id: r.swarm }), null, 2))];
  if (!r.task) return [...parts, buttons(actions(r)), el("pre", "", JSON.stringify(r.show ?? r.need ?? {}, null, 2))];
  const [task, trace] = await Promise.all([call("tasks/get", { id: r.task }), call("hub/tasks/trace", { id: r.task }).catch(e => ({ traces: [], error: e.message }))]);
  parts.push(buttons(actions({ ...r, state: task.status.state })), el("p", contract.states[task.status.state] ?? "", task.status.state + " \u00b7 " + task.id));
  parts.push(...thread(task));
  for (const t of trace.traces) parts.push(el("h2", "", "Turn " + t.turn), el("pre", "", JSON.stringify(t, null, 2)));
  return parts;
}

// A document: its texts can be edited in place, the rest with e.
async function editors(name) {
  const load = () => call("hub/documents/get", { name });
  const save = (seen, edits) => call("hub/documents/edit", { name, seen, edits });
  const content = await load();
  const parts = [];
  state.editors = { name, load, list: [], rest: [] };
  for (const [root, value] of Object.entries(content.content)) {
    parts.push(el("h2", "", line(root)));
    if (typeof value !== "string") {
      const shown = el("pre", "", JSON.stringify(value, null, 2));
      state.editors.rest.push([root, shown]);
      parts.push(shown);
      continue;
    }
    const field = el("textarea", "text");
    field.rows = Math.min(20, value.split("\n").length + 2);
    field.setAttribute("aria-label", line(root));
    field.spellcheck = false;
    state.editors.list.push(new Editor(field, root, content, save, load, say));
    parts.push(field);
  }
  if (!parts.length) parts.push(el("p", "small", "The document is empty."));
  return [...parts, buttons([["Edit (e)", () => edit(name)]])];
}

async function refreshDocument() {
  const open = state.editors;
  try {
    const content = await open.load();
    for (const e of open.list) e.adopt(content);
    for (const [root, shown] of open.rest) shown.replaceChildren(el("span", "", JSON.stringify(content.content[root], null, 2)));
  } catch (e) { say(e.message); }
}

const edit = name => ask("An edit of " + name + ", such as: plan.title = the new title", text => {
  const at = text.indexOf("="), path = text.slice(0, Math.max(at, 0)).trim().split(".");
  if (at < 0 || path.length < 2 || path.includes("")) return say("An edit is such as: plan.title = the new title");
  let value = text.slice(at + 1).trim();
  try { value = JSON.parse(value); } catch { /* it is a text */ }
  run("Changed.", () => call("hub/documents/edit", { name, edits: [{ op: "set", path, value }] }));
});

function thread(task) {
  const parts = [];
  for (const m of task.history ?? []) parts.push(el("p", "small", m.role === "user" ? "to the agent" : "the agent"), el("pre", "", words(m)));
  for (const a of task.artifacts ?? []) parts.push(el("p", "small", a.name || "answer"), el("pre", "", words(a)));
  if (task.status.message && !(task.history ?? []).some(m => m.messageId === task.status.message.messageId)) parts.push(el("p", "small", task.status.state), el("pre", "", words(task.status.message)));
  return parts;
}

function buttons(list) {
  return el("div", "actions", undefined, ...list.map(([text, run]) => {
    const b = el("button", "", line(text));
    b.type = "button";
    b.onclick = run;
    return b;
  }));
}

// What keys and buttons do.

const done = new Set(["completed", "failed", "canceled", "rejected"]);

function actions(r) {
  const list = [];
  if (r.task && contract.states[r.state] === "waits") list.push(["Answer (t)", () => answer(r)]);
  if (r.item) list.push(["Retry (r)", () => again(r)]);
  if (r.task && contract.states[r.state] === "bad") list.push(["Retry (r)", () => again(r)]);
  if (r.task && r.state && !done.has(r.state)) list.push(["Cancel (c)", () => cancel(r)]);
  if (r.agent) list.push(["Write (w)", () => write(r)]);
  return list;
}

async function run(text, f) {
  try { await f(); say(text); } catch (e) { say("This was not done: " + e.message); }
  load();
}

function choose(need, optionId) {
  if (!optionId) return say("The agent offers no such answer; t answers in words.");
  close();
  return run("Answered.", () => send({ taskId: need.taskId, parts: [{ kind: "data", data: { requestId: need.requestId, optionId } }] }));
}

function ask(label, submit, without) {
  $("question").textContent = line(label);
  $("answer").value = "";
  $("answer").hidden = Boolean(without);
  const dialog = $("ask");
  $("ok").onclick = () => { const text = $("answer").value.trim(); if (!without && !text) return; dialog.close(); submit(text); };
  $("no").onclick = () => dialog.close();
  dialog.showModal();
}

const answer = r => ask("Answer " + (r.agent ?? ""), text => run("Answered.", () => send({ taskId: r.task, parts: [{ kind: "text", text }] })));
const write = r => ask("To " + r.agent, text => run("Sent.", () => send({ ...r.conversation && { contextId: r.conversation }, parts: [{ kind: "text", text }], metadata: { targetAgent: r.agent } })));
const cancel = r => ask("Cancel this task?", () => run("Canceled.", () => call("tasks/cancel", { id: r.task })), true);
const again = r => r.item ? run("It is in its queue again.", () => call("hub/work/retry", { taskId: r.item })) : run("Sent again.", async () => {
  const task = await call("tasks/get", { id: r.task });
  if (!task.history?.length) throw new Error("the task has no message");
  await send({ contextId: task.contextId, parts: task.history[0].parts, metadata: { targetAgent: r.agent } });
});

function say(text) { $("notice").textContent = line(text); }

function help() {
  const dialog = $("help");
  const keys = [...contract.screens.map(s => [s.key, s.title]), ...contract.keys.map(k => [k.key, k.does])];
  dialog.replaceChildren(el("h2", "", "Keys"), ...keys.map(([k, does]) => el("p", "", k + "  " + does)), el("p", "small", "Esc closes this."));
  dialog.showModal();
}

function command() {
  ask("Command: the name of a screen, or help", text => {
    const word = text.toLowerCase();
    const screen = contract.screens.find(s => s.title.toLowerCase().startsWith(word) || s.id.startsWith(word));
    if (screen) show(screen); else if ("help".startsWith(word)) help(); else say("There is no command " + text + ".");
  });
}

const keys = {
  a: r => r?.need?.requestId && choose(r.need, r.need.allow), d: r => r?.need?.requestId && choose(r.need, r.need.deny),
  t: r => r?.task && (r.need || contract.states[r.state] === "waits") && answer(r), r: r => (r?.item || r?.task && contract.states[r.state] === "bad") && again(r), e: r => r?.document && edit(r.document),
  c: r => r?.task && !done.has(r.state) && cancel(r), w: r => r?.agent && write(r),
  "/": () => { $("filter").hidden = false; $("filter").focus(); }, ":": command, "?": help,
  Enter: open, Escape: () => { if (state.open) close(); else { $("filter").value = ""; $("filter").hidden = true; } refilter(); $("list").focus(); },
  ArrowDown: () => move(1), ArrowUp: () => move(-1), j: () => move(1), k: () => move(-1), PageDown: () => move(10), PageUp: () => move(-10),
  Home: () => move(-1e9), End: () => move(1e9), G: () => move(1e9),
};

document.addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey || $("ask").open || $("help").open) {
    if (e.key === "Enter" && $("ask").open && !e.shiftKey && e.target.tagName !== "BUTTON") { e.preventDefault(); $("ok").click(); }
    return;
  }
  if (e.target.tagName === "TEXTAREA") {
    if (e.key === "Escape") { e.preventDefault(); $("list").focus(); }
    return;
  }
  if (e.target === $("filter") && !["Escape", "Enter", "ArrowDown", "ArrowUp"].includes(e.key)) return;
  if (e.target.tagName === "BUTTON" && e.key === "Enter") return;
  if (e.key === "Enter" && e.target === $("filter")) { e.preventDefault(); $("list").focus(); return; }
  const screen = contract.screens.find(s => s.key === e.key);
  if (screen) { e.preventDefault(); show(screen); return; }
  if (Object.hasOwn(keys, e.key)) { e.preventDefault(); keys[e.key](state.shown[state.at]); }
});
$("filter").addEventListener("input", refilter);
$("list").addEventListener("scroll", () => requestAnimationFrame(paint));
addEventListener("resize", paint);

// What happens is loaded once for many events.
let due = false;
state.events = [];
follow(e => {
  state.events.push(eventRow(e));
  if (e.kind === "document.changed" && state.editors?.name === e.subject) refreshDocument();
  if (state.events.length > 5000) state.events.splice(0, 1000);
  if (due) return;
  due = true;
  setTimeout(() => { due = false; load(); }, 250);
}, up => {
  const away = $("link");
  if (up && !away.hidden) load();
  away.hidden = up;
  away.textContent = "The hub is away. This page continues when it is back.";
});

setInterval(() => { if (state.shown.some(r => r.until)) paint(); }, 1000);
setInterval(() => { if (!document.hidden) load(); }, 15000);

show(contract.screens.find(s => "#" + s.id === location.hash) ?? contract.screens[0]);
