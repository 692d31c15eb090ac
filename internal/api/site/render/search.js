"use strict";
// The search of the documentation: without a server, in the sections of search.json.

// stem removes what makes a word a plural, so that "queues" finds "queue".
function stem(word) {
  if (word.length > 4 && word.endsWith("ies")) return word.slice(0, -3) + "y";
  if (/(s|x|z|ch|sh)es$/.test(word) && word.length > 4) return word.slice(0, -2);
  if (word.length > 3 && word.endsWith("s") && !/(ss|us|is)$/.test(word)) return word.slice(0, -1);
  return word;
}

function words(text) {
  return (text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || []).map(stem);
}

// rank returns how well a section has all words: those of the page's title count most, then those of the heading. The last word may
// be the beginning of one.
function rank(section, wanted) {
  section.words ||= { t: words(section.t), h: words(section.h), b: words(section.b) };
  let sum = 0;
  for (const [i, want] of wanted.entries()) {
    const last = i === wanted.length - 1;
    const count = (list) => list.reduce((n, w) => n + (w === want ? 1 : last && w.startsWith(want) ? 0.5 : 0), 0);
    const { t, h, b } = section.words;
    const found = 100 * Math.min(1, count(t)) + 30 * Math.min(1, count(h)) + Math.min(10, count(b));
    if (found === 0) return 0;
    sum += found;
  }
  return sum;
}

function search(sections, query) {
  const wanted = words(query);
  if (wanted.length === 0) return [];
  return sections.map((section) => ({ section, score: rank(section, wanted) })).filter((r) => r.score > 0)
    .sort((a, b) => b.score - a.score).slice(0, 20).map((r) => r.section);
}

function show(box, found, query) {
  box.replaceChildren();
  box.hidden = query.trim() === "";
  if (box.hidden) return;
  const list = document.createElement("ol");
  for (const s of found) {
    const item = document.createElement("li"), link = document.createElement("a"), text = document.createElement("p");
    link.href = s.p + (s.a ? "#" + s.a : "");
    link.textContent = s.h ? `${s.t} › ${s.h}` : s.t;
    text.textContent = s.b.slice(0, 160);
    item.append(link, text);
    list.append(item);
  }
  box.append(found.length > 0 ? list : "Nothing was found.");
}

// chooseVersion lets the reader choose among the versions beside this one, if there are any.
async function chooseVersion(place) {
  const answer = await fetch("../versions.json").catch(() => null);
  if (!answer?.ok) return;
  const select = document.createElement("select");
  select.setAttribute("aria-label", "Version");
  for (const v of await answer.json()) select.add(new Option(v, v, false, v === place.textContent));
  select.onchange = () => { location.href = "../" + select.value + "/index.html"; };
  place.replaceChildren(select);
}

function begin() {
  const box = document.getElementById("results"), input = document.getElementById("search");
  let sections;
  input.addEventListener("input", async () => {
    sections ??= await (await fetch("search.json")).json();
    show(box, search(sections, input.value), input.value);
  });
  if (matchMedia("(max-width: 48rem)").matches) document.getElementById("pages").open = false;
  if (!location.pathname.startsWith("/docs/")) chooseVersion(document.getElementById("version"));
}

if (typeof document === "undefined") module.exports = { search, stem };
else begin();
