//go:build interop && linux

package interop_test

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/test/interop/rig"
)

// mcpClient is a CLI and the commands with which a user adds the MCP server to it.
type mcpClient struct {
	id  string
	add []string // the server's command line is appended
	// hides is set if the server gets no environment except the variables
	// added with --env.
	hides bool
	list  []string
	// listed is the text by which the list shows a working server.
	listed string
	// ask runs one turn in which the server's tools may be used.
	ask func(prompt string) []string
	env []string
}

var mcpClients = []mcpClient{
	{
		id:   "claude-code",
		add:  []string{"mcp", "add", "parley", "--"},
		list: []string{"mcp", "list"}, listed: "Connected",
		ask: func(prompt string) []string { return []string{"-p", prompt, "--allowedTools", "mcp__parley"} },
		env: []string{"ENABLE_TOOL_SEARCH=false"}, // otherwise the model must search for tools first
	},
	{
		id:   "gemini",
		add:  []string{"mcp", "add", "--scope", "user", "parley"},
		list: []string{"mcp", "list"}, listed: "Connected",
		ask: func(prompt string) []string {
			return []string{"--skip-trust", "--yolo", "-m", "gemini-2.5-flash", "-p", prompt}
		},
		env: []string{"GEMINI_CLI_TRUST_WORKSPACE=true"},
	},
	{
		id:    "codex",
		add:   []string{"mcp", "add", "parley", "--"},
		hides: true,
		list:  []string{"mcp", "list"}, listed: "enabled",
		// Codex begins a turn without the tools of a server that does not answer within a second, unless it is required.
		ask: func(prompt string) []string {
			return []string{"exec", "--skip-git-repo-check", "-c", "mcp_servers.parley.required=true", "-c", "mcp_servers.parley.startup_timeout_sec=60", prompt}
		},
	},
}

// cli is such a CLI with a home directory and a stub model of its own.
type cli struct {
	mcpClient
	def runner.Definition
	dir string // its working directory
	env []string
}

func (c cli) run(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.def.Command, args...)
	cmd.Dir, cmd.Env = c.dir, c.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", c.def.Command, args, err, out)
	}
	return string(out)
}

// addServer adds the MCP server as a user would, but with the test's hub.
func (c cli) addServer(t *testing.T, home rig.Home, server string) {
	t.Helper()
	args := slices.Clone(c.add)
	for _, kv := range home.Env {
		if c.hides && strings.HasPrefix(kv, "PARLEY_") {
			args = slices.Insert(args, len(args)-1, "--env", kv)
		}
	}
	c.run(t, append(args, server)...)
}

// use runs one turn that uses tools, and returns the CLI's answer about the last one. A CLI on a busy machine may begin the
// turn before it knows the tools of its MCP server; then it used none, and is asked again.
func (c cli) use(t *testing.T, directives string) string {
	t.Helper()
	for range 3 {
		out := c.run(t, c.ask(directives)...)
		if _, said, found := strings.Cut(out, "tool said: "); found {
			return said
		}
		t.Logf("%s used no tool for %s: %s", c.id, directives, out)
	}
	t.Fatalf("%s used no tool in three turns", c.id)
	return ""
}

// Each CLI is set up with one command. CLIs of different vendors in one directory see
// each other's messages; a CLI in another directory does not.
func TestCLIsCommunicateThroughTheMCPServer(t *testing.T) {
	programs := rig.Programs(t.TempDir())
	if err := programs.Build(rig.Parley...); err != nil {
		t.Fatal(err)
	}
	server := programs.Path("nats-mcp-server")
	home := programs.NewHome(t)
	project := home.Project(t, "project", "")
	var clis []cli
	for _, m := range mcpClients {
		def := definition(m.id, runner.Builtin()[m.id].Driver)
		need(t, def.Command)
		def = atStub(t, def)
		c := cli{mcpClient: m, def: def, dir: project, env: append(home.Env, m.env...)}
		for k, v := range def.Env.Set {
			c.env = append(c.env, k+"="+v)
		}
		clis = append(clis, c)
	}
	together := func(name string, do func(t *testing.T, c cli)) {
		t.Run(name, func(t *testing.T) {
			for _, c := range clis {
				t.Run(c.id, func(t *testing.T) {
					t.Parallel()
					do(t, c)
				})
			}
		})
	}
	together("speak", func(t *testing.T, c cli) {
		c.addServer(t, home, server)
		if out := c.run(t, c.list...); !strings.Contains(out, "parley") || !strings.Contains(out, c.listed) {
			t.Errorf("the server is not listed: %s", out)
		}
		// Each turn is a new session, which has no handle yet.
		if out := c.use(t, `USE:send_message {"channel":"errors","message":"x"}`); !strings.Contains(out, "set_handle") {
			t.Errorf("without a handle: %s", out)
		}
		out := c.use(t, fmt.Sprintf("USE:set_handle {\"handle\":%q}\nUSE:send_message {\"channel\":\"roadmap\",\"message\":\"I am %s\"}", c.id, c.id))
		if !strings.Contains(out, "roadmap") || !strings.Contains(out, c.id) {
			t.Errorf("with a handle: %s", out)
		}
	})
	together("hear", func(t *testing.T, c cli) {
		out := c.use(t, `USE:read_messages {"channel":"roadmap","limit":10}`)
		for _, other := range clis {
			if !strings.Contains(out, "I am "+other.id) {
				t.Errorf("no message of %s: %s", other.id, out)
			}
		}
	})
	stranger := clis[0]
	stranger.dir = home.Project(t, "elsewhere", "")
	stranger.addServer(t, home, server)
	if out := stranger.use(t, `USE:read_messages {"channel":"roadmap"}`); strings.Contains(out, "I am") || !strings.Contains(out, "roadmap") {
		t.Errorf("message of another project: %s", out)
	}
}
