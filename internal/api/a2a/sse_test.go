package a2a_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
	"github.com/parleyhub/parley/internal/base/wait"
)

// sseReader returns a function that returns the data of the next event, or "" at the end.
func sseReader(r io.Reader) func() string {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	return func() string {
		for scanner.Scan() {
			if data, ok := strings.CutPrefix(scanner.Text(), "data: "); ok {
				return data
			}
		}
		return ""
	}
}

func TestSilentStreamIsKeptAlive(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.KeepAlive = time.Millisecond })
	task := r.task("wait")
	subscribe := map[string]string{
		one:       `{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"` + string(task.ID) + `"}}`,
		one + "/": `{"jsonrpc":"2.0","id":1,"method":"tasks/resubscribe","params":{"id":"` + string(task.ID) + `"}}`,
		one + "/tasks/" + string(task.ID) + ":subscribe":    "",
		one + "/v1/tasks/" + string(task.ID) + ":subscribe": "",
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for path, body := range subscribe {
		req, err := http.NewRequest(http.MethodPost, r.http.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		scanner := bufio.NewScanner(resp.Body)
		for scanner.Scan() && scanner.Text() != ": keep-alive" {
		}
		if scanner.Text() != ": keep-alive" {
			t.Errorf("%s: the stream ended without a comment", path)
		}
		resp.Body.Close()
	}
	r.gate <- struct{}{}
}

// smallBuffers accepts connections with small write buffers, so that writes soon block.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return c, c.(*net.TCPConn).SetWriteBuffer(4 << 10)
}

// Closing the server waits for its requests, so this test ends only because writes have
// a deadline.
func TestClientThatReadsNothingIsDisconnected(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.WriteTimeout = time.Second }) // long enough to fill the buffers on a busy machine
	server := httptest.NewUnstartedServer(r.http.Config.Handler)
	server.Listener = smallBuffers{server.Listener}
	server.Start()
	prompt := strings.Repeat("x", 900<<10)
	rpc := `{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"` + prompt + `"}]}}}`
	rest := `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"` + prompt + `"}]}}`
	for path, body := range map[string]string{one: rpc, one + "/message:stream": rest} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 15)); err != nil { // the response has started
			t.Fatal(err)
		}
	}
	server.Close()
}

// slowWriter calls wrote after its first write, which returns when wrote does, and counts the events of each write.
type slowWriter struct {
	*httptest.ResponseRecorder
	wrote  func()
	events []int
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.events = append(w.events, strings.Count(string(p), "data: "))
	if len(w.events) == 1 {
		w.wrote()
	}
	return w.ResponseRecorder.Write(p)
}

// Events that are there already are one write; one that nothing follows yet does not wait.
func TestEventsThatAreThereAreWrittenTogether(t *testing.T) {
	r := newRig(t)
	subscribed := func(task string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"` + task + `"}}`
	}
	for name, body := range map[string]func() string{
		"SendStreamingMessage": func() string {
			return `{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"wait"}]}}}`
		},
		"SubscribeToTask": func() string { return subscribed(string(r.task("wait").ID)) },
	} {
		w := &slowWriter{ResponseRecorder: httptest.NewRecorder(), wrote: func() {
			r.gate <- struct{}{}
			wait.Eventually(t, "the task has ended", func() bool { return r.hub.Status().ActiveTasks == 0 })
		}}
		req := httptest.NewRequest(http.MethodPost, one, strings.NewReader(body()))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("A2A-Version", "1.0")
		r.a2a.ServeHTTP(w, req)
		if len(w.events) != 2 || w.events[0] != 1 || w.events[1] < 2 || !strings.Contains(w.Body.String(), "TASK_STATE_COMPLETED") {
			t.Errorf("%s: the writes have %v events, want 1 and then all others: %s", name, w.events, w.Body)
		}
	}
}
