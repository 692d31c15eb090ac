//go:build interop

package interop_test

import (
	"context"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/conformance"
	"github.com/parleyhub/parley/test/interop/rig"
)

// The official JavaScript clients of both protocol generations, @a2a-js/sdk 1.x and 0.3.x, use the hub's A2A server.
func TestJavaScriptClients(t *testing.T) {
	scripts := rig.Scripts(t, []string{"client10.mjs", "client03.mjs"}, "@a2a-js/sdk", "a2a-js-sdk-0.3")
	suite, err := conformance.New(t.Context(), conformance.Options{DataDir: t.TempDir(), StreamingTimeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(suite.Handler())
	t.Cleanup(func() {
		server.Close()
		if err := suite.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct{ name, script, address string }{
		{"1.x", "client10.mjs", server.URL + "/agents/" + conformance.AgentID + "/a2a"},
		{"0.3.x", "client03.mjs", server.URL},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := rig.Node(ctx, t, "--test", c.script)
			cmd.Dir = scripts
			cmd.Env = append(os.Environ(), "A2A_ADDRESS="+c.address)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
