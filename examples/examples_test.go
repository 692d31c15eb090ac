//go:build unix

// Package examples tests the examples in Go and Python against a hub; test/interop tests those in JavaScript, which
// need npm packages.
package examples

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
)

// patience bounds an operation of other processes.
const patience = 2 * time.Minute

const token = "0123456789abcdef0123456789abcdef"

// home is the directory of a user with a hub, which requires a token and has an agent that asks for permission.
type home struct {
	dir, url string
	env      []string
}

func start(t *testing.T) home {
	t.Helper()
	dir, err := os.MkdirTemp("", "parley-examples-") // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	h := home{dir: dir, env: append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "PARLEY_DATA_DIR="+dir+"/hub", "PARLEY_SOCKET="+dir+"/hub.sock",
		"PARLEY_HTTP_PORT=0", "PARLEY_TOKEN="+token, "PATH="+dir+string(filepath.ListSeparator)+os.Getenv("PATH"))}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for name, pkg := range map[string]string{"parley": "cmd/parley", "asker": "internal/testbed/asker", "a2a": "examples/a2a/go", "mcp": "examples/mcp/go"} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), "github.com/parleyhub/parley/"+pkg).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", pkg, err, out)
		}
	}
	config := fmt.Sprintf("version: 1\nhttp: {token: %s}\nbus: {durability: fast}\nagents:\n  asker: {driver: acp, command: %q}\n", token, dir+"/asker")
	if err := os.Mkdir(dir+"/hub", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/hub/config.yaml", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.run(t, "", dir+"/parley", "stop") })
	h.url = regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(h.run(t, "", dir+"/parley", "start"))
	if h.url == "" {
		t.Fatal("the hub does not show its address")
	}
	return h
}

// run runs a program with an input and returns what it prints.
func (h home) run(t *testing.T, input string, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience) // also for cleanups
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env, cmd.Stdin = h.env, strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("%q: %v\n%s%s", command, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.String()
}

func TestExamples(t *testing.T) {
	h := start(t)
	a2a, mcp := map[string][]string{"Go": {h.dir + "/a2a"}}, map[string][]string{"Go": {h.dir + "/mcp"}}
	// Python is not required. Where it is missing, the examples in Python are not tested; nothing is skipped, because
	// in continuous integration a skipped test is a failure.
	if python, err := exec.LookPath("python3"); err == nil {
		a2a["Python"], mcp["Python"] = []string{python, "a2a/python/client.py"}, []string{python, "mcp/python/client.py"}
	} else {
		t.Log("there is no python3: the examples in Python are not tested")
	}
	for language, command := range a2a {
		for _, c := range []struct {
			name, agent, input string
			want               []string
		}{
			{"message", "echo", "", []string{"agent: Echo", "Hello.", "state: TASK_STATE_COMPLETED"}},
			{"allowed", "asker", "", []string{"question: Allow Run make clean?", "answer: allow", "You chose allow.", "state: TASK_STATE_COMPLETED"}},
			{"rejected", "asker", "reject\n", []string{"answer: reject", "You chose reject."}},
		} {
			t.Run("A2A in "+language+"/"+c.name, func(t *testing.T) {
				h.expect(t, h.run(t, c.input, append(command, h.url+"/agents/"+c.agent, "Hello.")...), c.want...)
			})
		}
	}
	for language, command := range mcp {
		greeting := "Hello from " + language + "."
		t.Run("MCP in "+language+"/stdio", func(t *testing.T) {
			h.expect(t, h.run(t, "", command...), "server: nats-mcp-server", "tool: send_message", greeting)
		})
		t.Run("MCP in "+language+"/HTTP", func(t *testing.T) {
			h.expect(t, h.run(t, "", append(command, h.url+"/mcp")...), "server: parley", "tool: send_message", greeting)
		})
	}
}

func (h home) expect(t *testing.T, output string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(output, text) {
			t.Errorf("the output has no %q:\n%s", text, output)
		}
	}
}
