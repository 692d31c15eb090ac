//go:build interop

package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/dialect"
	"github.com/parleyhub/parley/test/interop/npm"
	"github.com/parleyhub/parley/test/interop/rig"
)

const everything = "@modelcontextprotocol/server-everything"

// The inspector sees and calls the tools of a foreign server that the hub has taken
// in, beside those by which agents hand work to each other.
func TestTheInspectorUsesASharedServer(t *testing.T) {
	main := filepath.Join(npm.Modules(t, everything, inspectorPackage), filepath.FromSlash(everything), "dist", "index.js")
	i := inspector{programs.NewHome(t), "legacy"}
	project := i.home.Project(t, "a", "")
	node := npm.Node(t.Context(), t, main)
	config := fmt.Sprintf("http: {port: 0}\nmcpServers: {every: {command: %q, args: [%q, stdio]}}\n", node.Path, main)
	data := filepath.Join(i.home.Dir, "hub")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	startHub(t, i.home)
	awaitServers(t, i.home)
	list, err := i.run(t, project, "--method", "tools/list")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"every.echo", "delegate_task", "send_message"} {
		if got := names(t, list, "tools"); !strings.Contains(got, want) {
			t.Errorf("%s is not in %s", want, got)
		}
	}
	for call, want := range map[string][]string{
		"Echo: hello": {"--tool-name", "every.echo", "--tool-arg", "message=hello"},
		"**echo**":    {"--tool-name", "list_agents"},
		"completed":   {"--tool-name", "delegate_task", "--tool-arg", "agent=echo", "--tool-arg", "task=hello"},
	} {
		result, err := i.run(t, project, append([]string{"--method", "tools/call"}, want...)...)
		said, _ := json.Marshal(result) // what was decoded can be encoded
		if err != nil || !strings.Contains(string(said), call) {
			t.Errorf("%v: %v %s", want, err, said)
		}
	}
}

// awaitServers waits until the hub has taken in its MCP servers, which it does not
// wait for when it starts. A session that is there before is told of their tools; the
// inspector's commands do not listen.
func awaitServers(t *testing.T, h rig.Home) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		out, err := output(t, func(ctx context.Context) *exec.Cmd {
			cmd := exec.CommandContext(ctx, programs.Path("parley"), "status", "--format", "json")
			cmd.Env = h.Env
			return cmd
		})
		var hub dialect.Status
		if err == nil {
			err = json.Unmarshal([]byte(out), &hub)
		}
		if err == nil && len(hub.MCPServers) > 0 && !slices.ContainsFunc(hub.MCPServers, func(s dialect.MCPServerStatus) bool { return !s.Connected }) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the hub's MCP servers are not connected: %v\n%s", err, out)
		}
	}
}
