package toolbox_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/toolbox"
)

// A call to a server that has just gone away waits until it is back, unless it stays away.
func TestACallWaitsForAServerThatHasJustGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := toolbox.New(toolbox.Options{})
		must(t, provider(t, far, "venus").AddTool(plus(), func(context.Context, *toolbox.Call) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{StructuredContent: map[string]any{"sum": 3}}, nil
		}))
		var session *mcp.ServerSession
		gate := make(chan struct{}, 1)
		gate <- struct{}{}
		near := toolbox.New(toolbox.Options{})
		m, err := near.Mount(toolbox.MountOptions{Name: "hub", AsIs: true, Patience: 10 * time.Second, MaxRedial: time.Second, Dial: func(ctx context.Context) (mcp.Transport, error) {
			select {
			case <-gate:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			s := mcp.NewServer(me, nil)
			far.Serve(s, "")
			here, there := mcp.NewInMemoryTransports()
			var err error
			session, err = s.Connect(context.Background(), there, nil)
			return here, err
		}})
		must(t, err)
		defer m.Close()
		<-m.Tried()
		tool := near.Tools("")[0].Name
		call := func() error {
			_, err := near.Call(t.Context(), "", tool, []byte(`{"a":1,"b":2}`), nil)
			return err
		}
		must(t, call())

		must(t, session.Close())
		synctest.Wait()
		result := make(chan error, 1)
		go func() { result <- call() }()
		time.Sleep(3 * time.Second)
		gate <- struct{}{}
		must(t, <-result)

		must(t, session.Close())
		synctest.Wait()
		wantCode(t, call(), toolbox.CodeUnavailable)
		began := time.Now()
		wantCode(t, call(), toolbox.CodeUnavailable)
		if waited := time.Since(began); waited > 0 {
			t.Errorf("a call to a server that stays away waits %s", waited)
		}
	})
}
