// Pictures, as SVG. Colours come from classes: the page's policy allows no styles in attributes.
import contract from "./contract.js";
import { clock, line, span } from "./text.js";

const role = state => contract.states[state] ?? "plain";

function shape(name, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, String(v));
  if (text !== undefined) e.textContent = line(text);
  return e;
}

/** A picture that scrolls if it is wider than the page. Its description is for those who do not see it. */
function picture(width, height, description, ...shapes) {
  const svg = shape("svg", { width, height, viewBox: "0 0 " + width + " " + height, role: "img", "aria-label": line(description) });
  svg.append(...shapes);
  const box = document.createElement("div");
  box.className = "picture";
  box.tabIndex = 0;
  box.append(svg);
  return box;
}

const clip = (text, n) => { text = line(text); return text.length > n ? text.slice(0, n - 1) + "\u2026" : text; };

function titled(e, text) {
  e.append(shape("title", {}, text));
  return e;
}

function node(x, y, width, state, title, about) {
  const g = shape("g", {});
  g.append(shape("rect", { x, y, width, height: 40, rx: 6, class: "box " + role(state) }),
    shape("text", { x: x + 8, y: y + 17 }, contract.marks[role(state)] + " " + clip(title, width / 8)),
    shape("text", { x: x + 8, y: y + 33, class: "dim" }, clip(about, width / 7)));
  return titled(g, title + " " + state + " " + about);
}

const curve = (x1, y1, x2, y2, cls) => shape("path", { d: "M" + x1 + " " + y1 + " C" + (x1 + x2) / 2 + " " + y1 + " " + (x1 + x2) / 2 + " " + y2 + " " + x2 + " " + y2, class: "edge " + cls });

const maxNodes = 300;

/** The width that a chart may have, and that of its labels. */
const room = () => Math.max(240, Math.min(720, (innerWidth < 900 ? innerWidth : innerWidth * 0.6) - 40));
const labels = () => innerWidth < 900 ? 104 : 160;

/** A plan as a graph: each part to the right of those that it waits for. */
export function plan(parts) {
  parts = parts.slice(0, maxNodes);
  const byId = new Map(parts.map(p => [p.id, p])), depth = new Map(parts.map(p => [p.id, 0]));
  for (let changed = true, rounds = 0; changed && rounds < parts.length; rounds++) {
    changed = false;
    for (const p of parts) for (const d of p.dependsOn ?? []) {
      if (!byId.has(d) || depth.get(p.id) > depth.get(d)) continue;
      depth.set(p.id, Math.min(depth.get(d) + 1, parts.length));
      changed = true;
    }
  }
  const rows = [], at = new Map();
  for (const p of parts) {
    const x = depth.get(p.id), y = rows[x] = (rows[x] ?? 0) + 1;
    at.set(p.id, [8 + x * 220, 8 + (y - 1) * 56]);
  }
  const edges = parts.flatMap(p => (p.dependsOn ?? []).filter(d => at.has(d)).map(d => curve(at.get(d)[0] + 176, at.get(d)[1] + 20, at.get(p.id)[0], at.get(p.id)[1] + 20, role(byId.get(d).status))));
  const nodes = parts.map(p => node(...at.get(p.id), 176, p.status, p.id, [p.assignedAgent, p.status, p.attempt > 1 && "attempt " + p.attempt].filter(Boolean).join(", ")));
  return picture(8 + rows.length * 220, 8 + Math.max(1, ...rows) * 56, "The plan: " + parts.map(p => p.id + " " + p.status).join(", "), ...edges, ...nodes);
}

/** Spans of time by row: rows are {label, spans: [{from, to, state, title}]}, times in milliseconds. */
export function gantt(rows, description) {
  rows = rows.filter(r => r.spans.length).slice(0, maxNodes);
  if (!rows.length) return undefined;
  const all = rows.flatMap(r => r.spans);
  const from = Math.min(...all.map(s => s.from)), to = Math.max(from + 1, ...all.map(s => s.to));
  const left = labels(), width = room() - left, x = t => left + (t - from) / (to - from) * width;
  const shapes = rows.flatMap((r, i) => [
    shape("text", { x: 4, y: 20 + i * 24 }, clip(r.label, left / 7.5)),
    ...r.spans.map(s => titled(shape("rect", { x: x(s.from), y: 8 + i * 24, width: Math.max(3, x(s.to) - x(s.from)), height: 16, rx: 3, class: "bar " + role(s.state) }), (s.title ?? r.label) + ", " + s.state + ", " + span(s.to - s.from))),
  ]);
  const foot = 24 + rows.length * 24;
  shapes.push(shape("text", { x: left, y: foot, class: "dim" }, clock(from)), shape("text", { x: left + width, y: foot, class: "dim end" }, clock(to) + " (" + span(to - from) + ")"));
  return picture(left + width + 8, foot + 8, description + ": " + rows.map(r => r.label + " " + r.spans.map(s => s.state + " " + span(s.to - s.from)).join(", ")).join("; "), ...shapes);
}

/** Bars with a name and a value each: {name, value, text, bad}. bad is the part of the value that failed. */
export function bars(list, description) {
  list = list.slice(0, 12);
  if (!list.length) return undefined;
  const most = Math.max(...list.map(b => b.value), 1e-9), left = labels(), width = Math.max(60, Math.min(240, room() - left - 90));
  const shapes = list.flatMap((b, i) => [
    shape("text", { x: 4, y: 17 + i * 22 }, clip(b.name, left / 7.5)),
    shape("rect", { x: left, y: 5 + i * 22, width: Math.max(1, b.value / most * width), height: 15, rx: 3, class: "bar busy" }),
    ...b.bad ? [shape("rect", { x: left, y: 5 + i * 22, width: Math.max(2, b.bad / most * width), height: 15, rx: 3, class: "bar bad" })] : [],
    shape("text", { x: left + 8 + b.value / most * width, y: 17 + i * 22, class: "dim" }, b.text),
  ]);
  return picture(left + width + 120, 8 + list.length * 22, description + ": " + list.map(b => b.name + " " + b.text).join(", "), ...shapes);
}

/** How many events there were, by time. Those after the time at are pale. */
export function histogram(times, from, to, at) {
  const n = 96, width = Math.min(768, innerWidth - 24), bar = width / n, counts = Array(n).fill(0);
  for (const t of times) if (t >= from && t <= to) counts[Math.min(n - 1, Math.floor((t - from) / (to - from) * n))]++;
  const most = Math.max(1, ...counts);
  const shapes = counts.map((c, i) => shape("rect", { x: i * bar, y: 40 - c / most * 36, width: bar * 0.85, height: Math.max(c ? 2 : 0.5, c / most * 36), class: "bar " + (from + (i + 0.5) / n * (to - from) <= at ? "busy" : "plain") }));
  return picture(width, 40, times.length + " events from " + clock(from) + " to " + clock(to), ...shapes);
}

/** The hub, what it is linked with, and the agents by computer and project. links are {name, state, about}. */
export function network(links, agents) {
  const shapes = [], edges = [], mid = links.length ? 230 : 8, right = mid + 190;
  const groups = Map.groupBy(agents.slice(0, maxNodes), a => (a.computer || "this computer") + (a.project ? " / " + a.project : ""));
  let y = 8;
  const homes = [];
  for (const [name, list] of [...groups].sort()) {
    const top = y;
    for (const a of list) {
      shapes.push(node(right + 220, y, 200, a.health?.status === "unhealthy" ? "unhealthy" : a.state, a.address || a.id, [a.kind, a.working ? a.working.title : a.state].filter(Boolean).join(", ")));
      y += 48;
    }
    homes.push([name, (top + y - 48) / 2, list, top]);
  }
  const height = Math.max(y, 8 + links.length * 48, 64), hub = height / 2 - 20;
  for (const [name, at, list, top] of homes) {
    const away = list.every(a => a.state === "offline");
    shapes.push(node(right, at, 184, away ? "offline" : "connected", name, list.length + (list.length === 1 ? " agent" : " agents")));
    edges.push(curve(mid + 150, hub + 20, right, at + 20, away ? "bad" : "good"));
    list.forEach((a, i) => edges.push(curve(right + 184, at + 20, right + 220, top + i * 48 + 20, a.state === "offline" || a.health?.status === "unhealthy" ? "bad" : role(a.state))));
  }
  const first = (height - links.length * 48) / 2;
  links.forEach((l, i) => {
    shapes.push(node(8, first + i * 48, 180, l.state, l.name, l.about));
    edges.push(curve(188, first + i * 48 + 20, mid, hub + 20, role(l.state)));
  });
  shapes.push(node(mid, hub, 150, "connected", "This hub", links.length + (links.length === 1 ? " link" : " links") + " to others"));
  return picture(right + 428, height + 8, "The network: " + [...links.map(l => l.name + " " + l.state), ...agents.map(a => (a.address || a.id) + " " + a.state)].join(", "), ...edges, ...shapes);
}
