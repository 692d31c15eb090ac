// Texts of agents are data: they become text nodes only, and characters that a reader does not see are shown by their code.

const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** The most characters of one text that are shown. */
export const maxText = 100000;

/** Shows control characters and those that change the direction of text by their code, and cuts what is too long. */
export function visible(text) {
  text = String(text ?? "");
  const shown = text.slice(0, maxText).replace(hidden, c => "\u27e8U+" + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + "\u27e9");
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

/** How long ago a time was. */
export function age(at) {
  const s = Math.max(0, Math.round((Date.now() - Date.parse(at)) / 1000));
  if (!at || Number.isNaN(s)) return "";
  return s < 60 ? s + "s" : s < 3600 ? Math.floor(s / 60) + "m" : s < 86400 ? Math.floor(s / 3600) + "h" : Math.floor(s / 86400) + "d";
}

/** The text of a message's parts. */
export function words(message) {
  return (message?.parts ?? []).map(p => p.text ?? (p.file ? "[file " + (p.file.name ?? "") + "]" : "")).filter(Boolean).join("\n");
}
