//go:build interop

package mcp_test

import (
	"context"
	"os/exec"
	"testing"

	"github.com/parleyhub/parley/test/interop/rig"
)

// The TypeScript SDK of both generations, in both eras of the protocol, over stdio
// and over HTTP. Over stdio nothing is configured: the first server that
// starts also starts the hub.
func TestTypeScriptSDK(t *testing.T) {
	scripts := rig.Scripts(t, []string{"client.test.mjs", "sdk1.mjs", "sdk2.mjs"}, "@modelcontextprotocol/sdk", "@modelcontextprotocol/client")
	for _, c := range []struct{ sdk, revision, transport string }{
		{"sdk1", "2025-11-25", "stdio"},
		{"sdk2", "2025-11-25", "stdio"},
		{"sdk2", "2026-07-28", "stdio"},
		{"sdk1", "2025-11-25", "HTTP"},
		{"sdk2", "2025-11-25", "HTTP"},
		{"sdk2", "2026-07-28", "HTTP"},
	} {
		t.Run(c.sdk+"/"+c.revision+"/"+c.transport, func(t *testing.T) {
			h := programs.NewHome(t)
			env := append(h.Env, "MCP_SDK="+c.sdk, "MCP_REVISION="+c.revision, "PROJECT_A="+h.Project(t, "a", ""), "PROJECT_B="+h.Project(t, "b", ""))
			if c.transport == "HTTP" {
				env = append(env, "MCP_URL="+startHub(t, h)+"/mcp")
			} else {
				env = append(env, "MCP_SERVER="+programs.Path("nats-mcp-server"))
			}
			_, err := output(t, func(ctx context.Context) *exec.Cmd {
				cmd := rig.Node(ctx, t, "--test", "client.test.mjs")
				cmd.Dir, cmd.Env = scripts, env
				return cmd
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
