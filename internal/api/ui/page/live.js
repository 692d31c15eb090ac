// The answer of a task as it streams.
import { stream } from "./hub.js";
import { el, line, maxText, visible, words } from "./text.js";

/** Shows what an agent writes, in an element that outlives the page around it. */
export class Live {
  constructor(task, onChange) {
    Object.assign(this, { task, onChange, element: el("div", "live"), artifacts: new Map(), pending: new Map(), abort: new AbortController(), running: false });
    this.element.setAttribute("role", "log");
    this.element.setAttribute("aria-label", "Answer");
  }

  /** Follows the task until it ends or close is called. */
  async follow() {
    if (this.running) return;
    this.running = true;
    try {
      await stream(this.task, e => this.take(e), this.abort.signal);
    } catch { /* the page says when the hub is away, and asks again */ }
    this.running = false;
    if (!this.abort.signal.aborted) this.onChange();
  }

  close() { this.abort.abort(); }

  /** Replaces all by the task's artifacts. */
  set(artifacts) {
    const shown = JSON.stringify(artifacts);
    if (this.running || shown === this.shown) return;
    this.shown = shown;
    this.artifacts.clear();
    this.element.replaceChildren();
    for (const a of artifacts) this.add(a, false);
    this.flush();
  }

  take(e) {
    if (e.kind === "task") {
      this.artifacts.clear();
      this.pending.clear();
      this.element.replaceChildren();
      for (const a of e.artifacts ?? []) this.add(a, false);
    } else if (e.kind === "artifact-update") this.add(e.artifact, e.append);
    else if (e.status?.state !== "working") this.onChange();
  }

  add(artifact, append) {
    let a = this.artifacts.get(artifact.artifactId);
    if (!a) {
      a = { pre: el("pre", ""), length: 0 };
      this.artifacts.set(artifact.artifactId, a);
      this.element.append(el("p", "small", line(artifact.name || "answer")), a.pre);
    } else if (!append) {
      a.pre.replaceChildren();
      a.length = 0;
      this.pending.delete(a);
    }
    this.pending.set(a, ((this.pending.get(a) ?? "") + (append ? (artifact.parts ?? []).map(p => p.text ?? "").join("") : words(artifact))).slice(-2 * maxText));
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => this.flush());
  }

  /** Shows what has come since the last frame. Of a long answer the end is kept. */
  flush() {
    this.due = false;
    const box = this.element.parentElement, end = box && box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    for (const [a, text] of this.pending) {
      const piece = text.length > maxText ? "\u2026 " + (text.length - maxText) + " characters before\n" + text.slice(-maxText) : text;
      const shown = visible(piece);
      a.pre.append(shown);
      a.length += shown.length;
      while (a.length > maxText && a.pre.childNodes.length > 1) {
        a.length -= a.pre.firstChild.length;
        a.pre.firstChild.remove();
      }
    }
    this.pending.clear();
    if (end) box.scrollTop = box.scrollHeight;
  }
}
