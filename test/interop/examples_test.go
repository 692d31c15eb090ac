//go:build interop && linux

package interop_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/test/interop/rig"
)

// The examples in JavaScript work as their documentation says; examples/examples_test.go tests the others.
func TestJavaScriptExamples(t *testing.T) {
	const token = "0123456789abcdef0123456789abcdef"
	programs := rig.Programs(t.TempDir())
	if err := programs.Build("github.com/parleyhub/parley/cmd/parley", "github.com/parleyhub/parley/internal/testbed/asker"); err != nil {
		t.Fatal(err)
	}
	h := programs.NewHome(t)
	dataDir := filepath.Join(h.Dir, "hub")
	config := fmt.Sprintf("version: 1\nhttp: {token: %s}\nagents:\n  asker: {driver: acp, command: %q}\n", token, programs.Path("asker"))
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dataDir, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(h.Env, "PARLEY_TOKEN="+token, "PATH="+filepath.Dir(programs.Path("parley"))+":"+os.Getenv("PATH"))
	run := func(cmd *exec.Cmd, input string) string {
		t.Helper()
		var stderr bytes.Buffer
		cmd.Env, cmd.Stdin, cmd.Stderr = env, strings.NewReader(input), &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%v\n%s%s", err, out, stderr.Bytes())
		}
		return string(out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	url := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(run(exec.CommandContext(ctx, programs.Path("parley"), "start"), ""))
	for _, c := range []struct {
		name, script, module string
		args                 []string
		input                string
		want                 []string
	}{
		{"message", "a2a", "@a2a-js/sdk", []string{url + "/agents/echo", "Hello."}, "", []string{"agent: Echo", "Hello.", "state: TASK_STATE_COMPLETED"}},
		{"allowed", "a2a", "@a2a-js/sdk", []string{url + "/agents/asker", "Clean up."}, "", []string{"question: Allow Run make clean?", "You chose allow."}},
		{"rejected", "a2a", "@a2a-js/sdk", []string{url + "/agents/asker", "Clean up."}, "reject\n", []string{"answer: reject", "You chose reject."}},
		{"stdio", "mcp", "@modelcontextprotocol/client", nil, "", []string{"server: nats-mcp-server", "tool: send_message", "Hello from JavaScript."}},
		{"HTTP", "mcp", "@modelcontextprotocol/client", []string{url + "/mcp"}, "", []string{"server: parley", "tool: send_message", "Hello from JavaScript."}},
	} {
		dir := rig.Scripts(t, []string{filepath.Join("..", "..", "examples", c.script, "javascript", "client.mjs")}, c.module)
		cmd := rig.Node(ctx, t, append([]string{filepath.Join(dir, "client.mjs")}, c.args...)...)
		cmd.Dir = h.Project(t, "project", "")
		out := run(cmd, c.input)
		for _, text := range c.want {
			if !strings.Contains(out, text) {
				t.Errorf("%s %s: the output has no %q:\n%s", c.script, c.name, text, out)
			}
		}
	}
}
