//go:build interop

package yjs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/crdt/ysync"
)

// Unmodified y-websocket clients edit a document of this server, one of them with an interruption, and end with
// the server's bytes; awareness is set and removed.
func TestYWebsocketClients(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		unmet(t, "node is not in PATH")
	}
	scripts := install(t, "yjs", "y-websocket", "ws")
	r, err := replica.New(replica.Options{Agent: "hub", State: "plan"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Edit(t.Context(), func(d *crdt.Doc) error { return d.Text("t").Insert(0, "from the server") }); err != nil {
		t.Fatal(err)
	}
	rooms := ysync.NewServer(ysync.Options{Open: func(*http.Request) (ysync.Document, string, error) { return r, "browser", nil }})
	mux := http.NewServeMux()
	mux.Handle("/documents/plan", rooms)
	server := httptest.NewServer(mux)
	defer server.Close()
	defer rooms.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, filepath.Join(scripts, "ywebsocket.mjs"))
	cmd.Env = append(os.Environ(), "SYNC_URL="+strings.Replace(server.URL, "http", "ws", 1)+"/documents", "SYNC_PROTOCOLS="+ysync.Subprotocol)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ State []byte }
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if err := r.View(t.Context(), func(d *crdt.Doc) {
		if state := d.Snapshot(); !bytes.Equal(state, got.State) {
			t.Errorf("the server has\n%x, the clients\n%x", state, got.State)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
