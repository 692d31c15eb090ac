// Parley's plugin for OpenCode. It tells the hub of sessions, tells sessions what is new for them, wakes the one that waits for its user if
// something arrives, and keeps tools from changing files that another agent has claimed. Without a running hub, and on any doubt, it does
// nothing.
import { spawn } from "node:child_process"
import { watch } from "node:fs"

const program = "PROGRAM"
const seconds = 3 // a hook takes two at most
const longest = 1 << 20 // characters of an answer

// hook reports an event, and returns what Parley answers.
function hook(event, input) {
  return new Promise((resolve) => {
    let out = ""
    const child = spawn(program, ["hook", "opencode", event], { stdio: ["pipe", "pipe", "ignore"] })
    const timer = setTimeout(() => child.kill(), seconds * 1000)
    const end = () => {
      clearTimeout(timer)
      try {
        resolve(JSON.parse(out))
      } catch {
        resolve({})
      }
    }
    child.on("error", end)
    child.on("close", end)
    child.stdin.on("error", () => {})
    child.stdout.on("data", (data) => {
      if (out.length < longest) out += data
    })
    child.stdin.end(JSON.stringify({ ...input, hook_event_name: event }))
  })
}

export const Parley = async ({ client, directory }) => {
  const notices = new Map() // what a session is told until its turn ends, by its id
  const bells = new Set() // files that the hub changes to wake a session
  let last // the session in which the user spoke last, with the agent and the model that were chosen there

  // ring begins a turn with the hub's text, if the hub has one. The user's choices and permissions stay.
  async function ring() {
    if (!last) return
    const { id, agent, model } = last
    const said = await hook("parley.bell", { session_id: id, cwd: directory })
    if (said.decision !== "wake") return
    const turn = { path: { id }, body: { agent, model, parts: [{ type: "text", text: said.reason }] } }
    await (client.session.promptAsync ? client.session.promptAsync(turn) : client.session.prompt(turn))
  }

  function listen(said) {
    for (const path of said.hookSpecificOutput?.watchPaths ?? []) {
      if (bells.has(path) || process.argv.includes("run") || process.argv.includes("serve")) continue // nobody sees those
      try {
        watch(path, { persistent: false }, () => ring().catch(() => {})).on("error", () => {})
        bells.add(path)
      } catch {}
    }
  }

  return {
    event: async ({ event }) => {
      const p = event.properties ?? {}
      const id = p.sessionID ?? p.info?.id
      if (!id || p.info?.parentID) return // a subagent's is no session of a person
      if (event.type === "session.idle") notices.delete(id)
      if (["session.created", "session.deleted", "session.idle"].includes(event.type)) {
        const notification = event.type === "session.idle" ? { notification_type: "idle_prompt" } : {}
        listen(await hook(event.type, { session_id: id, cwd: directory, ...notification }))
      }
    },
    "chat.message": async ({ sessionID, agent, model }, output) => {
      last = { id: sessionID, agent, model }
      const prompt = (output?.parts ?? []).map((part) => part.text ?? "").join("\n").slice(0, longest / 4)
      const said = await hook("chat.message", { session_id: sessionID, cwd: directory, prompt })
      const notice = said.hookSpecificOutput?.additionalContext
      listen(said)
      if (notice) notices.set(sessionID, notice)
    },
    "experimental.chat.system.transform": async ({ sessionID }, output) => {
      if (notices.has(sessionID)) output.system.push(notices.get(sessionID))
    },
    "tool.execute.before": async ({ tool, sessionID }, output) => {
      if (!["edit", "write", "multiedit", "patch", "apply_patch"].includes(tool)) return
      const said = await hook("tool.execute.before", { session_id: sessionID, cwd: directory, tool_name: tool, tool_input: output.args })
      if (said.decision === "deny") throw new Error(said.reason)
    },
  }
}
