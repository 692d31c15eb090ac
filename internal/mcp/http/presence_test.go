package http_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	mcphttp "github.com/parleyhub/parley/internal/mcp/http"
)

// pipes is a listener whose connections are in memory, so that time can be virtual.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	p.conns <- near
	return far, nil
}

// watched is a session in virtual time, and what is said of its client.
type watched struct {
	raw
	gone    atomic.Bool
	changes atomic.Int32
}

func watch(t *testing.T) *watched {
	w := &watched{}
	r := &resting{url: "http://hub"}
	listener := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	r.dial = listener.dial
	web := &http.Server{Handler: r.open(t, mcphttp.Options{
		SuspendAfter: 10 * time.Second, SessionTimeout: 24 * time.Hour,
		Gone: func(*mcp.Server) (*atomic.Bool, func()) { return &w.gone, func() { w.changes.Add(1) } },
	})}
	go web.Serve(listener) // until the end
	r.closeWith(t, func() { web.Close() })
	w.raw = r.begin(t, initialize)
	return w
}

// open opens the stream for notifications, and reads it.
func (w *watched) open(t *testing.T) (lose func()) {
	stream, lose := w.openUnread(t)
	go io.Copy(io.Discard, stream) // until its end
	return lose
}

func (w *watched) openUnread(t *testing.T) (stream io.Reader, lose func()) {
	ctx, cancel := context.WithCancel(t.Context())
	answer := w.request(ctx, t, http.MethodGet, "", "")
	if answer.StatusCode != http.StatusOK {
		t.Errorf("the stream: %d", answer.StatusCode)
	}
	return answer.Body, func() {
		cancel()
		answer.Body.Close()
		synctest.Wait()
	}
}

func (w *watched) call(t *testing.T) {
	t.Helper()
	answer := w.request(t.Context(), t, http.MethodPost, echo, "")
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(text), `"hi"`) {
		t.Errorf("a call: %s %v", text, err)
	}
}

// is fails the test unless the client is gone, or is not, after some changes.
func (w *watched) is(t *testing.T, gone bool, changes int32) {
	t.Helper()
	synctest.Wait()
	if w.gone.Load() != gone || w.changes.Load() != changes {
		t.Errorf("gone is %v after %d changes, not %v after %d", w.gone.Load(), w.changes.Load(), gone, changes)
	}
}

const waits = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"wait","arguments":{}}}`

// A client that has closed its stream is gone if it is silent for two minutes.
func TestAClientThatIsGoneIsNoticed(t *testing.T) {
	for name, tc := range map[string]func(*testing.T, *watched){
		"its stream is closed": func(t *testing.T, w *watched) {
			lose := w.open(t)
			time.Sleep(time.Hour)
			lose()
			before := w.restored.Load()
			time.Sleep(2*time.Minute - time.Second)
			w.is(t, false, 0)
			time.Sleep(2 * time.Second)
			w.is(t, true, 1)
			if n := w.restored.Load() - before; n != 0 || w.suspended.Load() == 0 {
				t.Errorf("the suspended session was restored %d times", n)
			}
			time.Sleep(time.Hour)
			w.is(t, true, 1)
			w.call(t)
			w.is(t, false, 2)
			time.Sleep(time.Hour) // as a client without a stream
			w.is(t, false, 2)
		},
		"it opens its stream again when it is gone": func(t *testing.T, w *watched) {
			w.open(t)()
			time.Sleep(3 * time.Minute)
			w.is(t, true, 1)
			lose := w.open(t)
			w.is(t, false, 2)
			time.Sleep(time.Hour)
			w.is(t, false, 2)
			lose()
			time.Sleep(3 * time.Minute)
			w.is(t, true, 3)
		},
		"its computer does not read any more": func(t *testing.T, w *watched) {
			_, lose := w.openUnread(t)
			time.Sleep(mcphttp.DefaultWriteTimeout + 3*time.Minute)
			w.is(t, true, 1)
			lose()
		},
		"a proxy closes its stream each minute": func(t *testing.T, w *watched) {
			for range 10 {
				lose := w.open(t)
				time.Sleep(time.Minute)
				lose()
				time.Sleep(5 * time.Second)
			}
			w.is(t, false, 0)
		},
		"it makes requests without a stream": func(t *testing.T, w *watched) {
			w.open(t)()
			time.Sleep(time.Minute)
			w.call(t)
			time.Sleep(time.Hour)
			w.is(t, false, 0)
		},
		"it never opens a stream": func(t *testing.T, w *watched) {
			w.call(t)
			time.Sleep(20 * time.Hour)
			w.is(t, false, 0)
		},
		"it has a call in progress": func(t *testing.T, w *watched) {
			lose := w.open(t)
			_, m := w.only(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				answer := w.request(t.Context(), t, http.MethodPost, waits, "")
				defer answer.Body.Close()
				_, _ = io.ReadAll(answer.Body)
			}()
			<-m.began
			lose()
			time.Sleep(time.Hour)
			w.is(t, false, 0)
			close(m.end)
			<-done
			time.Sleep(2*time.Minute - time.Second)
			w.is(t, false, 0)
			time.Sleep(5 * time.Second)
			w.is(t, true, 1)
		},
		"its call goes on without it": func(t *testing.T, w *watched) {
			lose := w.open(t)
			_, m := w.only(t)
			ctx, cancel := context.WithCancel(t.Context())
			call := w.request(ctx, t, http.MethodPost, waits, "")
			<-m.began
			cancel()
			call.Body.Close()
			lose()
			time.Sleep(time.Hour)
			w.is(t, false, 0)
			close(m.end)
			time.Sleep(5 * time.Second)
			w.is(t, true, 1)
		},
		"it ends its session": func(t *testing.T, w *watched) {
			lose := w.open(t)
			answer := w.request(t.Context(), t, http.MethodDelete, "", "")
			answer.Body.Close()
			lose()
			time.Sleep(time.Hour)
			w.is(t, false, 0)
		},
		"the hub stops": func(t *testing.T, w *watched) {
			lose := w.open(t)
			if err := w.handler.Close(); err != nil {
				t.Error(err)
			}
			lose()
			time.Sleep(time.Hour)
			w.is(t, false, 0)
		},
		"the hub stops while it may be gone": func(t *testing.T, w *watched) {
			w.open(t)()
			if err := w.handler.Close(); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Hour)
			w.is(t, false, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { tc(t, watch(t)) })
		})
	}
}
