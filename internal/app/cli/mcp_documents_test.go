//go:build unix

package cli_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
)

// front is between a hub and its clients, and answers the next request of a method itself.
type front struct {
	hub string // where the hub's socket is now

	mu     sync.Mutex
	method string
	answer *jsonrpc.Error // nil to close the connection without an answer
	seen   int            // requests of the method
}

// openFront begins a front at the path of the hub's socket.
func (p setup) openFront(t *testing.T) *front {
	t.Helper()
	f := &front{hub: p.socket + "2"}
	if err := os.Rename(p.socket, f.hub); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { f.serve(client) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		conns.Wait()
	})
	return f
}

func (f *front) serve(client net.Conn) {
	defer client.Close()
	hub, err := net.Dial("unix", f.hub)
	if err != nil {
		return
	}
	var back sync.WaitGroup
	defer back.Wait()
	defer hub.Close()
	back.Go(func() { _, _ = io.Copy(client, hub); client.Close() })
	for lines := bufio.NewReader(client); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		answered, answer := f.meet(line)
		switch {
		case !answered:
			_, err = hub.Write(line)
		case answer == nil:
			return
		default:
			_, err = client.Write(answer)
		}
		if err != nil {
			return
		}
	}
}

// meet reports whether a request is answered here, and how.
func (f *front) meet(line []byte) (answered bool, answer []byte) {
	var req jsonrpc.Request
	if json.Unmarshal(line, &req) != nil {
		return false, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if req.Method != f.method {
		return false, nil
	}
	f.seen++
	if f.seen > 1 || f.answer == nil {
		return f.seen == 1, nil
	}
	return true, append(jsonrpc.AppendError(nil, req.ID, f.answer), '\n')
}

// next sets what is answered, and returns how many requests of the former method there were.
func (f *front) next(method string, answer *jsonrpc.Error) (seen int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, f.seen, f.method, f.answer = f.seen, 0, method, answer
	return seen
}

// A read that meets a hub that stops is made again at the next one; an edit is not, since it may have been made.
func TestCallsOfDocumentsMeetAHubThatStops(t *testing.T) {
	p := newHub(t)
	project(t)
	f := p.openFront(t)
	s := p.serveMCP(t, nil)
	const edit = `{"name":"plan","edits":[{"op":"set","path":["plan","status"],"value":"open"}]}`
	s.call("edit_document", edit, "open")
	stops := jsonrpc.NewError(dialect.CodeAgentUnavailable, "The request was interrupted because the hub stops", jsonrpc.Details{Code: "AGENT_UNAVAILABLE"})
	damaged := jsonrpc.NewError(jsonrpc.CodeInternalError, "the document is damaged", jsonrpc.Details{Code: "DOCUMENT_DAMAGED"})
	for _, tt := range []struct {
		name, tool, arguments, method string
		answer                        *jsonrpc.Error
		want                          string
		requests                      int
	}{
		{"a list", "list_documents", `{}`, dialect.MethodDocumentsList, stops, `"plan"`, 2},
		{"a list without an answer", "list_documents", `{}`, dialect.MethodDocumentsList, nil, `"plan"`, 2},
		{"a document", "read_document", `{"name":"plan"}`, dialect.MethodDocumentsGet, stops, "open", 2},
		{"an edit", "edit_document", edit, dialect.MethodDocumentsEdit, stops, "UncertainError: The hub stopped before it answered", 1},
		{"an edit without an answer", "edit_document", edit, dialect.MethodDocumentsEdit, nil, "UncertainError: The hub stopped before it answered", 1},
		{"a damaged document", "read_document", `{"name":"plan"}`, dialect.MethodDocumentsGet, damaged, "StorageError: the document is damaged", 1},
	} {
		f.next(tt.method, tt.answer)
		s.call(tt.tool, tt.arguments, tt.want)
		if got := f.next("", nil); got != tt.requests {
			t.Errorf("%s: %d requests, want %d", tt.name, got, tt.requests)
		}
	}
	s.in.Close()
	if code := s.drain(); code != 0 {
		t.Errorf("exit %d, the log:\n%s", code, s.logged())
	}
}
