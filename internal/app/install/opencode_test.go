//go:build unix

package install_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/app/install"
)

// answersHooks is a program that answers the plugin's hooks, with the file of a bell in the place of BELL.
const answersHooks = `#!/bin/sh
input=$(cat)
case "$3" in
chat.message) case "$input" in *'"prompt":"review this"'*) ;; *) exit 1 ;; esac; echo '{"hookSpecificOutput":{"additionalContext":"1 new message","watchPaths":["BELL"]}}' ;;
parley.bell) echo '{"decision":"wake","reason":"something is waiting"}' ;;
tool.execute.before) echo '{"decision":"deny","reason":"held"}' ;;
esac
`

// usesPlugin is a program that calls the plugin as OpenCode does.
const usesPlugin = `import { writeFileSync } from "node:fs"
import { Parley } from "./parley.mjs"
setInterval(() => {}, 1000)
let begin
const turn = new Promise((resolve) => (begin = resolve))
const p = await Parley({ directory: "/p", client: { session: { promptAsync: async (t) => begin(t) } } })
await p["chat.message"]({ sessionID: "s1", agent: "plan", model: { providerID: "x", modelID: "y" } }, { parts: [{ type: "text", text: "review this" }] })
const system = []
await p["experimental.chat.system.transform"]({ sessionID: "s1" }, { system })
writeFileSync(process.env.BELL, "now")
console.log(JSON.stringify(await turn), system)
await p["tool.execute.before"]({ tool: "edit", sessionID: "s1" }, { args: {} }).catch((err) => console.log(err.message))
process.exit(0)
`

// The plugin tells a session what is new, begins a turn with what its user has chosen when the bell's file changes, and refuses a tool.
func TestThePluginOfOpenCode(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not here")
	}
	d := newHome(t)
	bell := filepath.Join(d.Home, "bell")
	d.Program = filepath.Join(d.Home, "answers")
	for _, p := range install.Programs() {
		if p.Name != "opencode" {
			continue
		}
		changes, err := p.Enter(d.Place)
		if err == nil {
			err = install.Apply(changes, d.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	d.write(t, "answers", strings.Replace(answersHooks, "BELL", bell, 1))
	if err := os.Chmod(d.Program, 0o700); err != nil {
		t.Fatal(err)
	}
	d.write(t, "bell", "")
	d.write(t, "parley.mjs", d.files(t)[".config/opencode/plugins/parley.js"])
	d.write(t, "main.mjs", usesPlugin)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "main.mjs")
	cmd.Dir, cmd.Env = d.Home, append(os.Environ(), "BELL="+bell)
	out, err := cmd.CombinedOutput()
	turn := `{"path":{"id":"s1"},"body":{"agent":"plan","model":{"providerID":"x","modelID":"y"},"parts":[{"type":"text","text":"something is waiting"}]}}`
	if want := fmt.Sprintf("%s [ '1 new message' ]\nheld\n", turn); err != nil || string(out) != want {
		t.Errorf("%v\n got %s\nwant %s", err, out, want)
	}
}
