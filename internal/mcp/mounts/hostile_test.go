package mounts_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/mcp/mounts"
	"github.com/parleyhub/parley/toolbox"
)

// hostile is a server that breaks the protocol in one way.
func hostile(way string) {
	in := bufio.NewReader(os.Stdin)
	reply := func(id any, result string) { fmt.Printf(`{"jsonrpc":"2.0","id":%v,"result":%s}`+"\n", id, result) }
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var req struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				ProtocolVersion string `json:"protocolVersion"`
			} `json:"params"`
		}
		if json.Unmarshal(line, &req) != nil || len(req.ID) == 0 {
			continue
		}
		if way == "dies at "+req.Method {
			os.Exit(1)
		}
		if way == "silent at "+req.Method {
			continue
		}
		if way == "deaf" && req.Method == "tools/call" {
			_, _ = io.Copy(io.Discard, neverRead{}) // no more input is read
		}
		switch req.Method {
		case "initialize":
			version := req.Params.ProtocolVersion
			if version == "" {
				version = "2025-06-18"
			}
			reply(string(req.ID), `{"protocolVersion":"`+version+`","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"hostile","version":"1"}}`)
		case "tools/list":
			if way == "floods" {
				for range 5000 {
					fmt.Println(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
					fmt.Println(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
				}
			}
			reply(string(req.ID), `{"tools":[`+strings.Join(hostileTools(way), ",")+`]}`)
		case "tools/call":
			text := "ok"
			if way == "giant" {
				text = strings.Repeat("x", 17<<20)
			}
			reply(string(req.ID), `{"content":[{"type":"text","text":"`+text+`"}]}`)
		default:
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`+"\n", req.ID)
		}
	}
}

// neverRead is a reader that blocks forever.
type neverRead struct{}

func (neverRead) Read([]byte) (int, error) { select {} }

func hostileTools(way string) []string {
	tool := func(name, description, schema string) string {
		n, _ := json.Marshal(name)
		d, _ := json.Marshal(description)
		return fmt.Sprintf(`{"name":%s,"description":%s,"inputSchema":%s}`, n, d, schema)
	}
	const object = `{"type":"object"}`
	list := []string{tool("good", "Good", object)}
	switch way {
	case "thousands":
		for i := range 5000 {
			list = append(list, tool(fmt.Sprintf("t%d", i), "", object))
		}
	case "twice":
		list = append(list, tool("good", "Another", object))
	case "schemas":
		list = append(list, tool("a", "", `{"type":"array"}`), tool("b", "", `{"type":5}`),
			tool("c", "", `{"type":"object","properties":{"x":{"$ref":"file:///etc/passwd"}}}`), tool("d", "", `{"type":"object","pattern":7,"required":"x"}`))
	case "names":
		list = append(list, tool("", "", object), tool("a b", "", object), tool("x\x1b[2J", "", object), tool("../up", "", object),
			tool("a..b", "", object), tool(strings.Repeat("n", 200), "", object), tool("long", strings.Repeat("d", 65<<10), object))
	}
	return list
}

// Whatever one server does, another one still answers, no call hangs, and the valid tools
// of the hostile one can be used (Req 5.3, 5.4).
func TestAHostileServerDoesNotAffectOthers(t *testing.T) {
	for way, want := range map[string]struct {
		tools int // tools of it that are listed; 0: it never connects
		code  toolbox.Code
	}{
		"silent at initialize": {0, ""},
		"dies at initialize":   {0, ""},
		"dies at tools/list":   {0, ""},
		"dies at tools/call":   {1, toolbox.CodeUnavailable},
		"silent at tools/call": {1, toolbox.CodeTimeout},
		"deaf":                 {1, toolbox.CodeTimeout},
		"giant":                {1, toolbox.CodeUnavailable},
		"floods":               {1, ""},
		"thousands":            {toolbox.MaxMounted, ""},
		"twice":                {1, ""},
		"schemas":              {1, ""},
		"names":                {1, ""},
	} {
		t.Run(way, func(t *testing.T) {
			bad := child(way, nil)
			bad.CallTimeout = time.Minute // for slow machines
			if want.code == toolbox.CodeTimeout {
				bad.CallTimeout = time.Second
			}
			tools := open(t, mounts.Options{Servers: map[string]config.MCPServer{"bad": bad, "neighbour": child("yes", nil)}})
			wait.Eventually(t, "the neighbour is there", connected(tools, "neighbour"))
			if want.tools > 0 {
				wait.Eventually(t, "it is there", func() bool {
					n := 0
					for _, tool := range tools.Box().Tools("") {
						if strings.HasPrefix(tool.Name, "bad.") {
							n++
						}
					}
					return n == want.tools
				})
				if _, err := call(t, tools, "", "bad.good"); toolbox.CodeOf(err) != want.code || want.code == "" && err != nil {
					t.Errorf("%v", err)
				}
			}
			if way == "deaf" { // more than the pipe's buffer
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				big := json.RawMessage(`{"x":"` + strings.Repeat("x", 500<<10) + `"}`)
				if _, err := tools.Box().Call(ctx, "", "bad.good", big, nil); err == nil || ctx.Err() != nil {
					t.Errorf("%v", err)
				}
			}
			if _, err := call(t, tools, "", "neighbour.pid"); err != nil {
				t.Errorf("the other server fails: %v", err)
			}
		})
	}
}

func TestAGiantAnswerOverHTTPIsRefused(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		chunk := strings.Repeat("x", 1<<20)
		for range 64 {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	tools := open(t, mounts.Options{Servers: map[string]config.MCPServer{"big": {URL: server.URL}}})
	wait.Eventually(t, "it is refused for its size", func() bool { return strings.Contains(tools.Status()[0].Why, "larger than 16 MiB") })
}

// The size of an event is bounded, also of one with many lines; the size of a stream of
// small events is not (Req 5.3).
func TestEachEventOfAStreamIsBounded(t *testing.T) {
	answer := func(w io.Writer, id json.RawMessage, result string) {
		fmt.Fprintf(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", id, result)
	}
	ended := make(chan int, 8) // bytes of a giant event that were written
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				Name string `json:"name"`
			} `json:"params"`
		}
		if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&req) != nil {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		if len(req.ID) == 0 {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		switch req.Method {
		case "initialize":
			answer(w, req.ID, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`)
		case "tools/list":
			answer(w, req.ID, `{"tools":[`+strings.Join(hostileTools("")[:1], ",")+`,{"name":"line","inputSchema":{"type":"object"}},{"name":"lines","inputSchema":{"type":"object"}},{"name":"crlf","inputSchema":{"type":"object"}}]}`)
		case "tools/call":
			piece, end := "", "\n"
			switch req.Params.Name {
			case "line":
				fmt.Fprint(w, "data: ")
				piece, end = strings.Repeat("x", 1<<20), ""
			case "lines":
				piece = "data: " + strings.Repeat("x", 1<<20)
			case "crlf":
				piece, end = "data: "+strings.Repeat("x", 1<<20), "\r\n"
			default: // 20 events of 1 MiB
				for range 20 {
					fmt.Fprintf(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":\"%s\"}}\n\n", strings.Repeat("x", 1<<20))
				}
				answer(w, req.ID, `{"content":[{"type":"text","text":"ok"}]}`)
				return
			}
			sent := 0
			for range 200 {
				if _, err := io.WriteString(w, piece+end); err != nil {
					break
				}
				sent += len(piece)
			}
			ended <- sent
		default:
			fmt.Fprintf(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":{\"code\":-32601,\"message\":\"no\"}}\n\n", req.ID)
		}
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	tools := open(t, mounts.Options{Servers: map[string]config.MCPServer{"far": {URL: server.URL}}})
	wait.Eventually(t, "connected", connected(tools, "far"))
	if got, err := call(t, tools, "", "far.good"); err != nil || got != "ok" {
		t.Errorf("a long stream of small events: %q %v", got, err)
	}
	for _, way := range []string{"line", "lines", "crlf"} {
		wait.Eventually(t, "connected again", connected(tools, "far"))
		if _, err := call(t, tools, "", "far."+way); err == nil {
			t.Errorf("%s: a giant event was accepted", way)
		}
		if sent := <-ended; sent > 64<<20 { // including buffered bytes
			t.Errorf("%s: %d bytes of one event were read", way, sent)
		}
	}
}
