// Texts of a document are edited in place, at the same time as others do: what both have changed is merged.

/** The one splice that makes b of a, in UTF-16 units; it splits no pair. */
export function diff(a, b) {
  let at = 0, end = 0;
  const most = Math.min(a.length, b.length);
  while (at < most && a[at] === b[at]) at++;
  while (end < most - at && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  if (at > 0 && /[\ud800-\udbff]/.test(a[at - 1])) at--;
  if (end > 0 && /[\udc00-\udfff]/.test(a[a.length - end])) end--;
  return { at, count: a.length - at - end, text: b.slice(at, b.length - end) };
}

/** The splices for theirs that do what mine does to the base; what they have written is kept. */
export function rebase(mine, theirs) {
  const end = mine.at + mine.count, theirEnd = theirs.at + theirs.count, delta = theirs.text.length - theirs.count;
  const list = [];
  const from = Math.max(mine.at, theirEnd);
  if (from < end) list.push({ at: from + delta, count: end - from, text: "" });
  const at = mine.at <= theirs.at ? mine.at : mine.at >= theirEnd ? mine.at + delta : theirs.at + theirs.text.length;
  const count = Math.max(0, Math.min(end, theirs.at) - mine.at);
  if (count || mine.text) list.push({ at, count, text: mine.text });
  return list;
}

/** Applies splices, one after the other. */
export function apply(text, splices) {
  for (const s of splices) text = text.slice(0, s.at) + s.text + text.slice(s.at + s.count);
  return text;
}

const size = splice => splice.count + splice.text.length;
const most = 32; // edits of which it is not known whether they were made

/** Edits a text of a document in a field; save sends edits for a version and returns the new content. */
export class Editor {
  constructor(field, root, content, save, load, say) {
    Object.assign(this, { field, root, save, load, say, base: String(content.content[root] ?? ""), version: content.version, busy: false, sent: [] });
    field.value = this.base;
    // A field shows line ends as LF only: another end of line must not be an edit.
    if (field.value !== this.base) { field.readOnly = true; return; }
    field.addEventListener("input", () => this.push());
  }

  /** Takes over what others have written; what was typed meanwhile stays. */
  adopt(content) {
    if (content.version === this.version) return;
    const theirs = String(content.content[this.root] ?? ""), field = this.field;
    // The answer to an edit may come later than what it has changed, or be lost. The edit was made if theirs is closer to it.
    for (const sent of this.sent) if (size(diff(sent, theirs)) < size(diff(this.base, theirs))) this.base = sent;
    this.sent = [];
    const change = diff(this.base, theirs);
    const merged = apply(theirs, rebase(diff(this.base, field.value), change));
    if (merged !== field.value) {
      const moved = p => p <= change.at ? p : Math.max(change.at, p + change.text.length - change.count);
      const [from, to] = [moved(field.selectionStart), moved(field.selectionEnd)];
      field.value = merged;
      field.setSelectionRange(from, to);
    }
    this.base = theirs;
    this.version = content.version;
  }

  async push() {
    if (this.busy) return;
    this.busy = true;
    try {
      while (this.field.value !== this.base) {
        const mine = this.field.value, splice = diff(this.base, mine);
        if (this.sent.push(mine) > most) this.sent.splice(1, 1); // the first is the likeliest
        try {
          const content = await this.save(this.version, [{ op: "text", path: [this.root], index: splice.at, ...splice.count && { count: splice.count }, ...splice.text && { text: splice.text } }]);
          if (!this.sent.length) { this.adopt(await this.load()); continue; } // a later content was taken over before
          this.sent = [];
          this.base = mine;
          this.adopt(content);
        } catch (e) {
          if (e.code !== "DOCUMENT_CHANGED") throw e;
          this.adopt(await this.load());
        }
      }
    } catch (e) { this.say("This was not saved: " + e.message); }
    this.busy = false;
  }
}
