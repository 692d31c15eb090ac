// The screens. Everything that an agent wrote reaches the page as text nodes only; see text.js.
import contract from "./contract.js";
import { call, send, follow, past } from "./hub.js";
import { age, clock, el, json, left, line, word } from "./text.js";
import { Editor } from "./document.js";
import { Live } from "./live.js";
import * as draw from "./draw.js";
import * as load from "./rows.js";
import * as detail from "./detail.js";

const $ = id => document.getElementById(id);
const rowHeight = 56;
/** Who may change nothing sees no button that would be refused. */
const viewOnly = document.documentElement.classList.contains("view");
const state = { screen: null, rows: [], shown: [], at: 0, open: null, waiting: 0, by: "day", events: [], replay: null };

// A screen's load returns its rows.
const loads = {
  needs: load.needs, agents: load.agents, tasks: () => load.tasks(rows => { if (state.screen.id === "tasks") adopt(rows); }), conversations: load.conversations,
  swarms: async () => { await before(); return load.swarms(state.events); }, network: load.network, documents: load.documents, timeline, costs: () => load.costs(state.by),
};

// What is above the list: pictures, and the controls of the timeline and of the costs.
const pictures = {
  network: rows => rows.links ? [draw.network(rows.links, rows.agents)] : [],
  timeline: replayed,
  costs: rows => {
    const money = rows.some(r => r.total.costUsd), sum = { tasks: 0, failed: 0, cost: 0 };
    for (const { total } of rows) { sum.tasks += total.tasks; sum.failed += total.failed; sum.cost += total.costUsd; }
    return [
      detail.buttons(["day", "agent", "project"].map(by => [(by === state.by ? "\u2713 by " : "by ") + by, () => group(by)])),
      el("p", "sum", "Today: " + (load.sums(rows.today) || "no tasks") + (rows.today && !rows.today.costUsd ? ", no cost reported" : "")),
      el("p", "sum small", "In all " + sum.tasks + " tasks, " + sum.failed + " failed, " + (sum.cost ? "$" + sum.cost.toFixed(2) : "no cost reported")),
      draw.bars(rows.slice(0, 12).map(r => money ? { name: r.title, value: r.total.costUsd, text: r.side } : { name: r.title, value: r.total.tasks, bad: r.total.failed, text: r.total.tasks + " tasks" }), "Costs by " + state.by),
    ];
  },
};

function group(by) {
  state.by = by;
  reload();
}

function pictured() {
  const box = $("picture"), made = pictures[state.screen.id]?.(state.rows);
  box.hidden = !made;
  if (!made) return;
  const scrolled = [box.scrollLeft, box.scrollTop];
  const focused = box.contains(document.activeElement) ? [...box.querySelectorAll("button, input, .picture")].indexOf(document.activeElement) : -1;
  box.replaceChildren(...made.filter(Boolean));
  [box.scrollLeft, box.scrollTop] = scrolled;
  if (focused >= 0) box.querySelectorAll("button, input, .picture")[focused]?.focus();
}

// The timeline can be looked at as it was at any time of the last day.

async function timeline() {
  const until = state.replay?.at ?? Infinity, rows = [];
  await Promise.all([load.titles(), before()]);
  for (let i = state.events.length; i-- > 0;) if (state.events[i].time <= until) rows.push(state.events[i]);
  return rows;
}

function replayed() {
  const events = state.events, now = Date.now(), from = events[0]?.time ?? now - 3600000, at = state.replay?.at ?? now;
  const slider = el("input", "");
  Object.assign(slider, { type: "range", min: 0, max: 1000, value: Math.round((at - from) / Math.max(1, now - from) * 1000) });
  slider.setAttribute("aria-label", "The time that is shown");
  slider.setAttribute("aria-valuetext", state.replay ? clock(at) : "now");
  slider.oninput = () => replay(slider.value >= 1000 ? null : { at: from + slider.value / 1000 * (now - from) });
  const states = new Map();
  for (const e of events) if (e.time <= at && e.show.kind === "task.state") states.set(e.task, e.state);
  const counts = {};
  for (const s of states.values()) counts[s] = (counts[s] ?? 0) + 1;
  return [
    draw.histogram(events.map(e => e.time), from, now, at), slider,
    detail.buttons([[state.replay?.plays ? "Pause (p)" : "Replay (p)", play], ["Now", () => replay(null)]]),
    el("p", "sum", (state.replay ? "At " + clock(at) : "Now") + ": " + (Object.entries(counts).map(([s, n]) => n + " " + word(s)).join(", ") || "no tasks")),
  ];
}

function replay(to) {
  clearInterval(state.replay?.timer);
  state.replay = to;
  state.at = 0;
  reload();
}

/** Shows the events one after the other: the whole time in half a minute, in steps that have an event. */
function play() {
  if (state.replay?.plays) return replay({ at: state.replay.at });
  const first = state.events[0]?.time ?? 0, last = state.events.at(-1)?.time ?? 0;
  const at = state.replay && state.replay.at < last ? state.replay.at : first - 1, step = Math.max(1, (last - first) / 120);
  replay({ at, plays: true, timer: setInterval(() => {
    const next = state.events.find(e => e.time > state.replay.at);
    if (!next || state.screen.id !== "timeline") return replay(null);
    state.replay.at = Math.max(state.replay.at + step, next.time);
    reload();
  }, 250) });
}

// The list: only the rows in sight are elements.

function paint() {
  const list = $("list"), rows = $("rows");
  rows.style.height = state.shown.length * rowHeight + "px";
  const first = Math.max(0, Math.floor(list.scrollTop / rowHeight) - 4);
  const last = Math.min(state.shown.length, first + Math.ceil(list.clientHeight / rowHeight) + 8);
  rows.replaceChildren(...state.shown.slice(first, last).map((r, i) => rowOf(r, first + i)));
  if (state.at >= first && state.at < last) list.setAttribute("aria-activedescendant", "row" + state.at);
  else list.removeAttribute("aria-activedescendant");
}

let painting = false;

/** Paints once in the next frame. */
function repaint() {
  if (painting) return;
  painting = true;
  requestAnimationFrame(() => { painting = false; paint(); });
}

function rowOf(r, i) {
  const role = contract.states[r.state] ?? "plain";
  const mark = el("span", role, contract.marks[role]);
  mark.title = word(r.state);
  const side = el("span", "small", r.until ? left(r.until) : line(r.side ?? age(r.at)));
  const e = el("div", "row", undefined, mark, el("div", "", undefined, el("p", "", line(r.title)), el("p", "small", line(r.about))), side);
  e.id = "row" + i;
  e.style.top = i * rowHeight + "px";
  e.setAttribute("role", "option");
  e.setAttribute("aria-selected", String(i === state.at));
  e.setAttribute("aria-setsize", String(state.shown.length));
  e.setAttribute("aria-posinset", String(i + 1));
  e.onclick = () => { state.at = i; paint(); open(state.shown[i]); };
  return e;
}

const textOf = r => r.find ??= [r.id, r.title, r.about, r.state, r.also].join(" ").toLowerCase();

function refilter() {
  const wanted = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const selected = state.shown[state.at]?.id;
  state.shown = wanted.length ? state.rows.filter(r => wanted.every(w => textOf(r).includes(w))) : state.rows;
  const again = state.shown[state.at]?.id === selected ? state.at : state.shown.findIndex(r => r.id === selected);
  state.at = state.at === 0 && !state.open ? 0 : again >= 0 ? again : Math.min(state.at, Math.max(0, state.shown.length - 1));
  $("none").hidden = state.shown.length > 0 || !state.loaded;
  $("none").textContent = state.rows.length ? "Nothing has these words." : state.screen.none;
  $("many").textContent = wanted.length ? state.shown.length + " of " + state.rows.length : state.rows.length > 1 ? String(state.rows.length) : "";
  paint();
}

function move(by) {
  state.at = Math.max(0, Math.min(state.shown.length - 1, state.at + by));
  const list = $("list"), top = state.at * rowHeight;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + rowHeight > list.scrollTop + list.clientHeight) list.scrollTop = top + rowHeight - list.clientHeight;
  paint();
  if (state.open) open(state.shown[state.at]); // keys act on what is open
}

function adopt(rows) {
  state.rows = rows;
  state.loaded = true;
  pictured();
  refilter();
}

// Loads follow the events, but never faster than the hub and the page can: one at a time, then a pause of four times its length.

const shortest = 500, longest = 10000, busy = 3000; // milliseconds between two loads; busy: while more than 50 events come between them
const loading = { now: false, again: false, next: 0, timer: 0, needs: true, events: 0 };

/** Loads soon. */
function soon() {
  if (loading.timer || document.hidden) { loading.again ||= document.hidden; return; }
  loading.timer = setTimeout(() => { loading.timer = 0; reload(); }, Math.max(0, loading.next - performance.now()));
}

/** Loads at once, or after the load that runs. */
async function reload() {
  if (loading.now) { loading.again = true; return; }
  loading.now = true;
  do {
    loading.again = false;
    const screen = state.screen, begun = performance.now(), least = loading.events > 50 ? busy : shortest, first = !state.loaded;
    loading.events = 0;
    try {
      const rows = await loads[screen.id]();
      if (screen === state.screen) adopt(rows); else loading.again = true;
      if (screen.id === "needs") state.waiting = rows.waiting;
      else if (loading.needs) state.waiting = (await call("hub/needs")).total;
      loading.needs = false;
      tabs();
    } catch (e) { say(e.message); if (screen !== state.screen) loading.again = true; }
    loading.next = performance.now() + (first ? least : Math.min(longest, Math.max(least, 4 * (performance.now() - begun))));
  } while (loading.again && !document.hidden);
  loading.now = false;
  if (state.screen.id === "tasks" && load.behind()) soon();
}

function show(screen) {
  state.screen = screen;
  state.rows = state.shown = [];
  state.at = 0;
  state.loaded = false;
  close();
  clearInterval(state.replay?.timer);
  state.replay = null;
  $("filter").value = "";
  $("filter").hidden = true;
  $("title").firstChild.data = screen.title + " ";
  document.title = screen.title + " \u00b7 Parley";
  history.replaceState(null, "", "#" + screen.id);
  tabs();
  pictured();
  refilter();
  $("list").scrollTop = 0;
  $("list").focus();
  reload();
}

let tabbed = "";

function tabs() {
  const now = state.screen.id + " " + state.waiting;
  if (now === tabbed) return;
  tabbed = now;
  document.body.classList.toggle("waiting", state.waiting > 0);
  for (const s of contract.screens) {
    let b = $("go-" + s.id);
    if (!b) {
      b = el("button", "");
      Object.assign(b, { type: "button", id: "go-" + s.id, title: s.shows, onclick: () => show(s) });
      $("screens").append(b);
    }
    b.textContent = s.key + " " + s.title + (s.id === "needs" && state.waiting ? " (" + state.waiting + ")" : "");
    if (s !== state.screen) b.removeAttribute("aria-current");
    else if (!b.hasAttribute("aria-current")) { b.setAttribute("aria-current", "page"); b.scrollIntoView({ block: "nearest", inline: "nearest" }); }
  }
}

// One thing in full.

function open(r) {
  if (!r) return;
  close();
  state.open = r;
  if (r.task) state.live = new Live(r.task, () => fresh(r));
  document.body.classList.add("open");
  fill(r);
}

function close() {
  state.live?.close();
  state.open = state.editors = state.live = null;
  $("detail").hidden = true;
  $("detail").replaceChildren();
  document.body.classList.remove("open");
}

const filling = { now: false, again: false, timer: 0 };

/** Shows what is open as it is now, soon. */
function fresh(r, delay = 400) {
  if (state.open !== r || filling.timer || r.document) return;
  filling.timer = setTimeout(() => { filling.timer = 0; if (state.open) fill(state.open); }, delay);
}

async function fill(r) {
  if (filling.now) { filling.again = true; return; }
  filling.now = true;
  do {
    filling.again = false;
    r = state.open;
    try {
      const content = r && await contentOf(r);
      if (state.open !== r) filling.again = Boolean(state.open);
      else if (r) replace(content);
    } catch (e) {
      say(e.message);
      if (state.open === r && $("detail").hidden) replace([el("h2", "", line(r.title)), el("p", "bad", e.message), ...detail.plain(r)]);
    }
  } while (filling.again);
  filling.now = false;
  if (state.live && !state.open?.ended) state.live.follow();
}

/** Replaces what is shown of one thing: what was unfolded, the place and the focus stay. */
function replace(content) {
  const box = $("detail"), top = box.scrollTop, was = !box.hidden;
  const unfolded = new Set([...box.querySelectorAll("details[open]")].map(d => d.dataset.key));
  const focused = [...box.querySelectorAll("button, summary, textarea")].indexOf(document.activeElement);
  box.replaceChildren(el("div", "actions back", undefined, backButton()), ...content);
  for (const d of box.querySelectorAll("details")) if (unfolded.has(d.dataset.key)) d.open = true;
  box.hidden = false;
  if (focused >= 0) box.querySelectorAll("button, summary, textarea")[focused]?.focus();
  box.scrollTop = was ? top : 0;
  repaint();
}

function backButton() {
  const b = el("button", "", "\u2190 Back (Esc)");
  b.type = "button";
  b.onclick = back;
  return b;
}

function back() {
  if (state.open) close();
  else { $("filter").value = ""; $("filter").hidden = true; }
  refilter();
  $("list").focus();
}

async function contentOf(r) {
  const parts = [el("h2", "", line(r.title)), ...r.about ? [el("p", "small", line(r.about))] : []];
  if (r.document) return [...parts, ...await editors(r.document)];
  if (r.thread) return [...parts, ...await detail.thread(r, actions)];
  if (r.conversation) return [...parts, ...await detail.conversation(r, open, actions)];
  if (r.swarm) return [...parts, ...await detail.swarm(r, state.events.map(e => e.show))];
  if (r.task && !r.place) return [...parts, ...await detail.task(r, state.live, actions, choices)];
  if (r.agent) return [...parts, ...await detail.agent(r, open, actions)];
  return [...parts, detail.buttons(actions(r)), ...r.claim ? detail.claim(r.claim) : detail.plain(r)];
}

// A document: its texts can be edited in place, the rest with e.
async function editors(name) {
  const get = () => call("hub/documents/get", { name });
  const save = (seen, edits) => call("hub/documents/edit", { name, seen, edits });
  const content = await get();
  const parts = [];
  state.editors = { name, get, list: [], rest: [] };
  for (const [root, value] of Object.entries(content.content)) {
    parts.push(el("h3", "", line(root)));
    if (typeof value !== "string") {
      const shown = el("pre", "", json(value));
      state.editors.rest.push([root, shown]);
      parts.push(shown);
      continue;
    }
    const field = el("textarea", "text");
    field.rows = Math.min(20, value.split("\n").length + 2);
    field.setAttribute("aria-label", line(root));
    field.spellcheck = false;
    field.readOnly = viewOnly;
    state.editors.list.push(new Editor(field, root, content, save, get, say));
    parts.push(field);
  }
  if (!parts.length) parts.push(el("p", "small", "The document is empty."));
  return viewOnly ? parts : [...parts, detail.buttons([["Edit (e)", () => edit(name)]])];
}

async function refreshDocument() {
  const editors = state.editors;
  try {
    const content = await editors.get();
    const known = new Set([...editors.list.map(e => e.root), ...editors.rest.map(([root]) => root)]);
    if (Object.keys(content.content).some(root => !known.has(root))) return void (state.editors === editors && state.open && fill(state.open));
    for (const e of editors.list) e.adopt(content);
    for (const [root, shown] of editors.rest) shown.replaceChildren(el("span", "", json(content.content[root])));
  } catch (e) { say(e.message); }
}

const edit = name => ask("An edit of " + name + ", such as: plan.title = the new title", text => {
  const at = text.indexOf("="), path = text.slice(0, Math.max(at, 0)).trim().split(".");
  if (at < 0 || path.length < 2 || path.includes("")) return say("An edit is such as: plan.title = the new title");
  let value = text.slice(at + 1).trim();
  try { value = JSON.parse(value); } catch { /* it is a text */ }
  run("Changed.", () => call("hub/documents/edit", { name, edits: [{ op: "set", path, value }] }));
});

// What keys and buttons do.

const done = new Set(["completed", "failed", "canceled", "rejected"]);
const canAnswer = r => r.task && !r.place && (contract.states[r.state] === "waits");
const canRepeat = r => r.item || r.task && !r.place && (r.state === "failed" || r.state === "rejected" || r.state === "canceled");
const canCancel = r => r.task && !r.place && !r.item && r.state && !done.has(r.state);

function actions(r) {
  const list = [];
  if (viewOnly) return list;
  if (r.claim) list.push(["Break (b)", () => breakClaim(r)]);
  if (canAnswer(r)) list.push(["Answer (t)", () => answer(r)]);
  if (canRepeat(r)) list.push(["Retry (r)", () => again(r)]);
  if (r.item) list.push(["Discard (d)", () => discard(r)]);
  if (r.need?.list) list.push(["Dismiss (d)", () => dismiss(r)]);
  if (canCancel(r)) list.push(["Cancel (c)", () => cancel(r)]);
  if (r.agent || mayWriteIn(r)) list.push(["Write (w)", () => write(r)]);
  if (mailable(r)) list.push(["Mail (m)", () => mail(r)]);
  return list;
}

async function run(text, f) {
  try { await f(); say(text); } catch (e) { say("This was not done: " + e.message); }
  loading.needs = true;
  reload();
  if (state.open) fresh(state.open);
}

function choices(need) {
  return viewOnly ? "" : detail.buttons(need.options.map(o => [(o.name || o.id) + (o.id === need.allow ? " (a)" : o.id === need.deny ? " (d)" : ""), () => choose(need, o.id)]));
}

function choose(need, optionId) {
  if (!optionId) return say("The agent offers no such answer; t answers in words.");
  if (state.screen.id === "needs") close();
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

const breakClaim = r => ask("End the claim of " + r.claim.holder + "? It is told by mail, and others may change the files.", () => { close(); run("Ended; its holder has mail.", () => call("hub/claims/break", { claimId: r.claim.claimId })); }, true);
const answer = r => ask("Answer " + (r.agent ?? ""), text => run("Answered.", () => send({ taskId: r.task, parts: [{ kind: "text", text }] })));
const mayWriteIn = r => r.thread && (r.thread.kind === "channel" || r.thread.between.some(b => b.you));
const mailable = r => r.place && r.show?.guid && r.show.kind === "session";
const into = (threadId, label) => ask(label, text => run("Written.", async () => {
  const written = await call("hub/threads/write", { threadId, text });
  if (written.warning) throw new Error("it is written, but: " + written.warning);
}));
const mail = r => into("mail:" + r.show.guid, "Mail to " + r.title);
const write = r => r.thread ? into(r.thread.id, "In " + r.title) : ask("To " + r.agent, text => run("Sent.", () => send({ ...r.conversation && { contextId: r.conversation }, parts: [{ kind: "text", text }], metadata: { targetAgent: r.agent } })));
const cancel = r => ask("Cancel this task?", () => run("Canceled.", () => call("tasks/cancel", { id: r.task })), true);
const discard = r => ask("Discard this work for good?", () => { close(); run("Discarded.", () => call("hub/work/discard", { taskId: r.item })); }, true);
const dismiss = r => { close(); run("Dismissed.", () => call("hub/loop/dismiss", { list: r.need.list })); };
const again = r => r.item ? run("It is in its queue again.", () => call("hub/work/retry", { taskId: r.item })) : run("Sent again.", async () => {
  const task = await call("tasks/get", { id: r.task });
  if (!task.history?.length) throw new Error("the task has no message");
  await send({ contextId: task.contextId, parts: task.history[0].parts, metadata: { targetAgent: r.agent } });
});

function say(text) { $("notice").textContent = line(text); }

function help() {
  const dialog = $("help");
  const keys = [...contract.screens.map(s => [s.key, s.title]), ...contract.keys.filter(k => !viewOnly || !k.writes).map(k => [k.key, k.does]), ["g", "costs: by day, agent or project"], ["p", "timeline: replay, pause"]];
  dialog.replaceChildren(el("h2", "", "Keys"), ...keys.map(([k, does]) => el("p", "", undefined, el("kbd", "", k), "  " + does)), el("p", "small", "Esc closes this."));
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
  a: r => r?.need?.requestId && choose(r.need, r.need.allow), d: r => r?.item ? discard(r) : r?.need?.list ? dismiss(r) : r?.need?.requestId && choose(r.need, r.need.deny),
  t: r => r && canAnswer(r) && answer(r), r: r => r && canRepeat(r) && again(r), e: r => r?.document && edit(r.document),
  b: r => r?.claim && breakClaim(r), c: r => r && canCancel(r) && cancel(r), w: r => (r?.agent || r && mayWriteIn(r)) && write(r), m: r => r && mailable(r) && mail(r),
  g: () => state.screen.id === "costs" && group({ day: "agent", agent: "project", project: "day" }[state.by]), p: () => state.screen.id === "timeline" && play(),
  "/": () => { $("filter").hidden = false; $("filter").focus(); }, ":": command, "?": help, Enter: () => open(state.shown[state.at]), Escape: back,
  ArrowDown: () => move(1), ArrowUp: () => move(-1), j: () => move(1), k: () => move(-1), PageDown: () => move(10), PageUp: () => move(-10),
  Home: () => move(-1e9), End: () => move(1e9), G: () => move(1e9),
};
const writes = new Set(contract.keys.filter(k => k.writes).map(k => k.key));
const moves = new Set(["ArrowDown", "ArrowUp", "PageDown", "PageUp", "Home", "End"]);

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
  if (["BUTTON", "SUMMARY"].includes(e.target.tagName) && e.key === "Enter") return;
  if (e.key === "Enter" && e.target === $("filter")) { e.preventDefault(); $("list").focus(); return; }
  // What is in full, pictures and the time of the timeline are moved by their own keys when they have the focus.
  if (moves.has(e.key) && ($("detail").contains(e.target) || $("picture").contains(e.target))) return;
  const screen = contract.screens.find(s => s.key === e.key);
  if (screen) { e.preventDefault(); show(screen); return; }
  if (viewOnly && writes.has(e.key)) { e.preventDefault(); return say("This browser may only look."); }
  if (Object.hasOwn(keys, e.key)) { e.preventDefault(); keys[e.key](state.open ?? state.shown[state.at]); }
});
$("filter").addEventListener("input", refilter);
$("list").addEventListener("scroll", repaint);
let width = innerWidth, another = false, resized = 0;

// Charts are as wide as the window lets them be.
addEventListener("resize", () => {
  repaint();
  another ||= innerWidth !== width; // also if it is as before again: something may be drawn between
  width = innerWidth;
  clearTimeout(resized);
  resized = setTimeout(() => {
    if (!another) return;
    another = false;
    $("go-" + state.screen.id).scrollIntoView({ block: "nearest", inline: "nearest" });
    pictured();
    if (state.open) fresh(state.open);
  }, 150);
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) reload(); });

const is = (kind, beginnings) => beginnings.some(b => kind.startsWith(b));
let number = 0;

/** Loads what happened before for the screens that show it, and what was left out of the stream while much happened. */
const earlier = { asked: false, missed: true, next: 0 };

async function before() {
  if (!earlier.missed || earlier.asked || performance.now() < earlier.next) return;
  earlier.asked = true;
  earlier.missed = false;
  try {
    const rows = (await past(5000)).filter(e => e.kind && e.kind !== "position").map(e => load.eventRow(e, number++));
    const have = new Set(rows.map(r => r.id)), last = rows.at(-1)?.time ?? 0;
    state.events = [...rows, ...state.events.filter(r => r.time >= last && !have.has(r.id) && !load.leftOut(r.show))];
  } catch (e) { earlier.missed = true; say(e.message); }
  earlier.asked = false;
  earlier.next = performance.now() + longest;
}

/** Takes note of events that the hub has left out: what is shown is loaded anew. */
function missed(e) {
  earlier.missed = true;
  load.missed(e);
  loading.events += e.data?.count ?? 0;
  loading.needs = true;
  soon();
  if (state.open && !state.open.ended) fresh(state.open, busy);
}

follow(e => {
  if (e.kind === "position") return;
  const latest = state.events.at(-1);
  if (load.leftOut(e) && latest && load.leftOut(latest.show)) e.data.count += latest.show.data.count, state.events.pop();
  state.events.push(load.eventRow(e, number++));
  if (state.events.length > 6000) state.events.splice(0, 1000);
  if (e.kind === "gap") return missed(e);
  load.changed(e);
  loading.events++;
  if (e.kind === "document.changed" && state.editors?.name === e.subject) refreshDocument();
  const open = state.open;
  if (open && (open.task && open.task === e.task || open.agent && open.agent === e.agent || open.swarm && open.swarm === e.subject || open.context && open.context === e.context || open.thread && is(e.kind, ["channel.", "mail."]))) fresh(open);
  const asks = is(e.kind, ["permission.", "deadletter.", "agent.health", "loop.", "mail.held"]) || e.kind === "task.state" && (state.waiting > 0 || contract.states[e.data?.state] === "waits");
  loading.needs ||= asks;
  if (asks || is(e.kind, load.changes[state.screen.id])) soon();
}, (up, refused) => {
  const away = $("link");
  if (up && !away.hidden) { load.forget(); earlier.missed = true; reload(); if (state.open) fresh(state.open); }
  away.hidden = up;
  const text = refused ? "The hub was started again and does not know this browser any more. Open a new link, here or in another tab: parley ui --web" : "The hub is away. This page continues when it is back.";
  if (away.textContent !== text) away.textContent = text; // it is read aloud
});

setInterval(() => { if (state.shown.some(r => r.until || r.at)) repaint(); }, 1000);
setInterval(() => { loading.needs = true; soon(); if (state.open?.thread) fresh(state.open); }, 15000); // receipts have no events

show(contract.screens.find(s => "#" + s.id === location.hash) ?? contract.screens[0]);
