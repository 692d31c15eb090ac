// The hub's methods.

let last = 0;

function post(method, params, signal) {
  return fetch("/", {
    method: "POST", headers: { "Content-Type": "application/json" }, credentials: "same-origin", signal,
    body: JSON.stringify({ jsonrpc: "2.0", id: String(++last), method, params }),
  });
}

function result(body) {
  if (body.error) throw Object.assign(new Error([body.error.message, body.error.data?.remedy].filter(Boolean).join(". ")), { code: body.error.data?.code });
  return body.result;
}

/** Calls a method of the hub. */
export async function call(method, params = {}) {
  return result(await (await post(method, params)).json());
}

/** Sends a message; it does not wait for the agent. */
export function send(message) {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(16)), b => b.toString(16).padStart(2, "0")).join("");
  return call("message/send", { message: { kind: "message", messageId: id, role: "user", ...message }, configuration: { blocking: false } });
}

const again = 2000; // milliseconds until the page asks again for events that were refused

/** Follows the hub's events from now on; while much happens, a gap says how many are left out. The browser connects again by itself, after the last event that it has. onLink gets whether the hub is there, and whether it refuses this browser. */
export function follow(onEvent, onLink) {
  const source = new EventSource("/events?follow=true&brief=true");
  source.onopen = () => onLink(true);
  source.onerror = async () => {
    onLink(false, false);
    if (source.readyState !== EventSource.CLOSED) return;
    // Whatever has answered is no stream, and the browser gives up.
    const answer = await fetch("/events?follow=false&latest=0", { credentials: "same-origin" }).catch(() => undefined);
    if (answer?.status === 401 || answer?.status === 403) onLink(false, true);
    answer?.body?.cancel();
    setTimeout(() => follow(onEvent, onLink), again);
  };
  source.onmessage = m => onEvent(JSON.parse(m.data));
}

/** Returns the latest events of the last day, the oldest first. */
export async function past(most) {
  const since = new Date(Date.now() - 86400000).toISOString(), found = [];
  await read(await fetch("/events?follow=false&latest=" + most + "&since=" + encodeURIComponent(since), { credentials: "same-origin" }), data => found.push(JSON.parse(data)));
  return found;
}

const maxPending = 16 << 20; // characters of an event that is not complete

/** Follows a task until it ends, waits for its user, or signal aborts. */
export async function stream(id, onEvent, signal) {
  const answer = await post("tasks/resubscribe", { id }, signal);
  if (!answer.headers.get("Content-Type")?.startsWith("text/event-stream")) return result(await answer.json());
  await read(answer, data => onEvent(result(JSON.parse(data))));
}

/** Reads a stream of events. */
async function read(answer, onData) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let pending = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (pending + value).split("\n");
    pending = lines.pop();
    if (pending.length > maxPending) throw new Error("an event is too long");
    for (const l of lines) if (l.startsWith("data:")) onData(l.slice(5));
  }
}
