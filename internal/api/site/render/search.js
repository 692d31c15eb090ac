"use strict";
// The search of the documentation: without a server, in the sections of sections.js.

// stem removes what makes a word a plural or another form, so that "queues" finds "queue", and "wake" finds "waking".
function stem(word) {
  if (word.length > 4 && word.endsWith("ies")) word = word.slice(0, -3) + "y";
  else if (/(s|x|z|ch|sh)es$/.test(word) && word.length > 4) word = word.slice(0, -2);
  else if (word.length > 3 && word.endsWith("s") && !/(ss|us|is)$/.test(word)) word = word.slice(0, -1);
  if (word.length > 5) word = word.replace(/(ing|ed)$/, "");
  return word.length > 3 ? word.replace(/e$/, "") : word;
}

// common are words of questions that say nothing of what is looked for.
const common = new Set("a about an and are at be by can do does for from how i if in into is it its my of on or out that the there this to up use was we what when where which who why with you your".split(" "));

function tokens(text) {
  return text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || [];
}

function words(text) {
  return tokens(text).map(stem);
}

// prepare splits the sections into words, once, and counts in how many sections each word is.
function prepare(sections) {
  if (sections.frequency) return sections.frequency;
  const frequency = new Map();
  for (const s of sections) {
    s.words = { t: words(s.t), h: words(s.h), b: words(s.b) };
    s.text = " " + [...s.words.t, "|", ...s.words.h, "|", ...s.words.b].join(" ") + " ";
    for (const w of new Set([...s.words.t, ...s.words.h, ...s.words.b])) frequency.set(w, (frequency.get(w) || 0) + 1);
  }
  return (sections.frequency = frequency);
}

// rank returns how well a section has the words: a rare word counts more than a frequent one, the page's title and the heading more than
// the text, a guide more than a reference. The last word may be the beginning of
// one while it is being typed.
function rank(section, wanted, weight, typing) {
  let sum = 0, have = 0;
  for (const [i, want] of wanted.entries()) {
    const last = typing && i === wanted.length - 1;
    const count = (list) => list.reduce((n, w) => n + (w === want ? 1 : last && want.length > 1 && w.startsWith(want) ? 0.5 : 0), 0);
    const { t, h, b } = section.words;
    const inBody = count(b);
    const found = 6 * Math.min(1, count(t)) + 8 * Math.min(1, count(section.h ? h : t)) + 4 * inBody / (inBody + 2 + b.length / 150);
    if (found > 0) have++;
    sum += found * weight[i];
  }
  if (wanted.length > 1 && section.text.includes(" " + wanted.join(" ") + " ")) sum *= 1.5;
  return sum * (have / wanted.length) ** 3 * [1, 0.7, 0.5][section.g];
}

// search returns the sections that have most of the words of a query, best first.
function search(sections, query) {
  const frequency = prepare(sections), all = tokens(query), telling = all.filter((w) => !common.has(w));
  const wanted = (telling.length > 0 ? telling : all).map(stem);
  if (wanted.length === 0) return [];
  const typing = telling.at(-1) === all.at(-1);
  const weight = wanted.map((w) => Math.log(1 + sections.length / (1 + (frequency.get(w) || 0))));
  return sections.map((section) => ({ section, score: rank(section, wanted, weight, typing) })).filter((r) => r.score > 0)
    .sort((a, b) => b.score - a.score).slice(0, 20).map((r) => r.section);
}

// excerpt returns the part of a text that has the first word of the query, or else its beginning.
function excerpt(text, query) {
  const wanted = new Set(tokens(query).filter((w) => !common.has(w)).map(stem));
  for (const m of text.matchAll(/[\p{L}\p{N}_]+/gu)) {
    if (!wanted.has(stem(m[0].toLowerCase()))) continue;
    if (m.index < 120) break;
    return "… " + text.slice(text.indexOf(" ", m.index - 60) + 1, m.index + 120).replace(/\s\S*$/, " …");
  }
  return text.slice(0, 160);
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
    text.textContent = excerpt(s.b, query);
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

// load returns the sections. They are a script, since a page that is opened as a file must not fetch another one.
function load() {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "sections.js";
    script.onload = () => resolve(globalThis.sections);
    script.onerror = reject;
    document.head.append(script);
  });
}

function begin() {
  const box = document.getElementById("results"), input = document.getElementById("search");
  let loading;
  const update = async () => {
    const sections = await (loading ??= load());
    show(box, search(sections, input.value), input.value);
  };
  input.addEventListener("input", update);
  if (input.value) update(); // it was typed before this script was here
  if (matchMedia("(max-width: 48rem)").matches) document.getElementById("pages").open = false;
  if (location.protocol !== "file:" && !location.pathname.startsWith("/docs/")) chooseVersion(document.getElementById("version"));
}

if (typeof document === "undefined") module.exports = { search, stem };
else begin();
