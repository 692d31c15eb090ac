package server

import (
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// quickClient is what a client reads from: it sends its next call once it has an answer's last byte, before the writer goes on.
type quickClient struct {
	to   io.Writer
	l    *lines
	next string
}

func (q *quickClient) Write(data []byte) (int, error) {
	if data[len(data)-1] == '\n' && q.next != "" {
		next := q.next
		q.next = ""
		if _, err := io.WriteString(q.to, next); err != nil {
			return 0, err
		}
		q.l.mu.Lock()
		for len(q.l.calls) == 0 {
			q.l.changed.Wait()
		}
		q.l.mu.Unlock()
	}
	return len(data), nil
}

// A call that was sent upon an answer knows that answer, even if the server has read the call before it has noted that the answer was written.
func TestACallUponAnAnswerKnowsIt(t *testing.T) {
	in, to := io.Pipe()
	client := &quickClient{to: to}
	l := newLines(in, client, func() {})
	client.l = l
	ended := make(chan struct{})
	go func() { defer close(ended); l.pump() }()
	if _, err := io.WriteString(to, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	first, err := l.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var written time.Time
	l.running().answered = []func(bool){func(bool) { written = time.Now() }}
	client.next = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"b"}}` + "\n"
	if err := l.Write(t.Context(), &jsonrpc.Response{ID: first.(*jsonrpc.Request).ID, Result: json.RawMessage(`{}`)}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if sent := l.running().read; written.IsZero() || sent.Before(written) {
		t.Errorf("the answer was written at %v, and the call that followed it was sent at %v", written, sent)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
}
