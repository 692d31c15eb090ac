// Texts of agents are data: they become text nodes only, and characters that a reader does not see are shown by their code.

import contract from "./contract.js";

const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** The most characters of one text that are shown. */
export const maxText = 100000;

/** Shows control characters and those that change the direction of text by their code, and cuts what is too long. */
export function visible(text) {
  text = String(text ?? "");
  const shown = text.slice(0, maxText).replaceAll("\r\n", "\n").replace(hidden, c => "\u27e8U+" + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + "\u27e9");
  return text.length > maxText ? shown + "\n\u2026 " + (text.length - maxText) + " more characters" : shown;
}

/** The text on one line. */
export function line(text) {
  return visible(String(text ?? "").slice(0, 400).replace(/\s+/g, " ").trim());
}

/** Makes an element with a class, a text and children. */
export function el(tag, cls, text, ...children) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  if (text !== undefined) e.textContent = visible(text);
  e.append(...children);
  return e;
}

/** A value of JSON, for people: a member a line, texts as they are. */
export function json(value) {
  if (typeof value === "string") return value;
  if (value === null || typeof value !== "object" || Array.isArray(value)) return JSON.stringify(value, null, 2);
  return Object.entries(value).map(([k, v]) => k + ": " + (typeof v === "string" ? v : JSON.stringify(v, null, 2))).join("\n");
}

/** What people read instead of the hub's name of an event, a state, or a kind of what waits for them. */
export const word = name => Object.hasOwn(contract.words, name) ? contract.words[name] : name;

/** How long a time in milliseconds is. */
export function span(ms) {
  const s = Math.max(0, ms / 1000);
  return s < 10 ? s.toFixed(1) + "s" : s < 60 ? Math.round(s) + "s" : s < 3600 ? Math.floor(s / 60) + "m" : s < 86400 ? Math.floor(s / 3600) + "h" : Math.floor(s / 86400) + "d";
}

/** How long ago a time was. */
export function age(at) {
  const ms = Date.now() - Date.parse(at);
  return !at || Number.isNaN(ms) ? "" : span(Math.round(Math.max(0, ms) / 1000) * 1000).replace(".0", "");
}

/** The time of day. */
export function clock(at) {
  const d = new Date(at);
  return !at || Number.isNaN(d.getTime()) ? "" : [d.getHours(), d.getMinutes(), d.getSeconds()].map(n => String(n).padStart(2, "0")).join(":");
}

/** How long a lease still lasts. */
export const left = until => { const ms = Date.parse(until) - Date.now(); return ms <= 0 ? "expired" : span(Math.ceil(ms / 1000) * 1000).replace(".0", "") + " left"; };

/** A cost, "" if there is none. */
export const dollars = usd => usd ? "$" + (usd < 0.01 ? usd.toFixed(4) : usd.toFixed(2)) : "";

/** The number of things. */
export const count = (n, thing) => n + " " + thing + (n === 1 ? "" : "s");

/** What is not empty, on one line. */
export const join = (...texts) => texts.filter(Boolean).join(" \u00b7 ");

/** The text of a message's parts. */
export function words(message) {
  return (message?.parts ?? []).map(p => p.text ?? (p.file ? "[file " + (p.file.name ?? "") + "]" : "")).filter(Boolean).join("\n");
}
