// The hub's methods.

let last = 0;

/** Calls a method of the hub. */
export async function call(method, params = {}) {
  const answer = await fetch("/", {
    method: "POST", headers: { "Content-Type": "application/json" }, credentials: "same-origin",
    body: JSON.stringify({ jsonrpc: "2.0", id: String(++last), method, params }),
  });
  const body = await answer.json();
  if (body.error) throw Object.assign(new Error([body.error.message, body.error.data?.remedy].filter(Boolean).join(". ")), { code: body.error.data?.code });
  return body.result;
}

/** Sends a message; it does not wait for the agent. */
export function send(message) {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(16)), b => b.toString(16).padStart(2, "0")).join("");
  return call("message/send", { message: { kind: "message", messageId: id, role: "user", ...message }, configuration: { blocking: false } });
}

/** Follows the hub's events, beginning with those of the last day. The browser connects again by itself, after the last event that it has. */
export function follow(onEvent, onLink) {
  const source = new EventSource("/events?follow=true&since=" + encodeURIComponent(new Date(Date.now() - 86400000).toISOString()));
  source.onopen = () => onLink(true);
  source.onerror = () => onLink(false);
  source.onmessage = m => onEvent(JSON.parse(m.data));
}
