//go:build interop

package mcp_test

import (
	"context"
	"os/exec"
	"testing"

	"github.com/parleyhub/parley/test/interop/npm"
)

// The TypeScript SDK of both generations, in both eras of the protocol. Nothing
// is configured: the first server that starts brings the hub with it.
func TestTypeScriptSDK(t *testing.T) {
	scripts := npm.Scripts(t, []string{"client.test.mjs", "sdk1.mjs", "sdk2.mjs"}, "@modelcontextprotocol/sdk", "@modelcontextprotocol/client")
	for _, c := range []struct{ sdk, revision string }{
		{"sdk1", "2025-11-25"},
		{"sdk2", "2025-11-25"},
		{"sdk2", "2026-07-28"},
	} {
		t.Run(c.sdk+"/"+c.revision, func(t *testing.T) {
			h := programs.NewHome(t)
			_, err := output(t, func(ctx context.Context) *exec.Cmd {
				cmd := npm.Node(ctx, t, "--test", "client.test.mjs")
				cmd.Dir = scripts
				cmd.Env = append(h.Env, "MCP_SDK="+c.sdk, "MCP_REVISION="+c.revision, "MCP_SERVER="+programs.Path("nats-mcp-server"),
					"PROJECT_A="+h.Project(t, "a", ""), "PROJECT_B="+h.Project(t, "b", ""))
				return cmd
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
