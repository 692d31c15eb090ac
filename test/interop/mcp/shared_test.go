//go:build interop

package mcp_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/test/interop/npm"
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
