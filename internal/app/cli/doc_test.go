//go:build unix

package cli_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/cli"
)

// The commands list, read and edit documents; the edits of one call are atomic.
func TestDocuments(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	want(t, p.run(t, "doc", "list"), 0, "No documents.")
	want(t, p.run(t, "doc", "edit", "plan", "--set", "plan.status=open", "--set", "plan.n=3", "--text", "notes=first"), 0, `"status": "open"`)
	o := p.runWith(t, strings.NewReader(`[{"op":"insert","path":["todo"],"values":["test it"]},{"op":"increment","path":["runs"]}]`), nil, "doc", "edit", "plan", "-")
	want(t, o, 0, "test it")
	shown := decode[struct {
		Name    string
		Version string
		Content struct {
			Plan  map[string]any
			Notes string
			Todo  []string
		}
	}](t, p.run(t, "--format", "json", "doc", "show", "plan"))
	if shown.Name != "plan" || shown.Version == "" || shown.Content.Notes != "first" || shown.Content.Plan["n"] != 3.0 || len(shown.Content.Todo) != 1 {
		t.Errorf("doc show: %+v", shown)
	}
	if names := decode[[]string](t, p.run(t, "--format", "json", "doc", "list")); len(names) != 1 || names[0] != "plan" {
		t.Errorf("the documents are %v", names)
	}
	want(t, p.run(t, "doc", "list"), 0, "plan\n")
	for _, args := range [][]string{
		{"doc"}, {"doc", "show"}, {"doc", "edit", "plan"}, {"doc", "edit", "plan", "no JSON"}, {"doc", "edit", "plan", `[{"up":1}]`},
		{"doc", "edit", "plan", "--set", "x"}, {"doc", "edit", "plan", "--text", "x"}, {"doc", "edit"},
		{"doc", "edit", "plan", `[{"op":"increment","path":["n"]}] [{"op":"increment","path":["lost"]}]`}, {"doc", "edit", "plan", "[]", "[]"},
	} {
		if o := p.run(t, args...); o.code != 2 || o.stdout != "" {
			t.Errorf("%q: %+v", args, o)
		}
	}
	for args, message := range map[string]string{
		"show none":                 "there is no document none",
		"show a.b":                  "a document's name",
		"edit plan --set notes.x=1": "no shared map",
		"edit plan --set x=1":       "needs a key",
		"watch none":                "there is no document none",
	} {
		o := p.run(t, append([]string{"doc"}, strings.Fields(args)...)...)
		if o.code == 0 || !strings.Contains(o.stderr, message) {
			t.Errorf("%s: %+v", args, o)
		}
	}
	if o := p.run(t, "--format", "json", "doc", "show", "none"); o.code != 4 || !strings.Contains(o.stderr, `"code":"document-not-found"`) {
		t.Errorf("no such document: %+v", o)
	}
	if o := p.runWith(t, strings.NewReader(strings.Repeat(" ", 9<<20)), nil, "doc", "edit", "plan", "-"); o.code != 2 || !strings.Contains(o.stderr, "larger than 8 MiB") {
		t.Errorf("too large: %+v", o)
	}
	want(t, p.run(t, "doc", "edit", "odd", "--set", "m.k=1]"), 0, `"k": "1]"`)
	want(t, p.run(t, "doc", "edit", "churn", "--set", "m.k=1"), 0, "")
	want(t, p.run(t, "doc", "edit", "churn", "--set", "m.k=2", "--set", "m.l=1"), 0, "")
	want(t, p.run(t, "doc", "compact", "churn"), 0, "2 of 3 items left")
	want(t, p.run(t, "doc", "show", "churn"), 0, `"k": 2`)
	after := p.run(t, "--format", "json", "doc", "show", "plan")
	var again struct{ Version string }
	if err := json.Unmarshal([]byte(after.stdout), &again); err != nil || again.Version != shown.Version {
		t.Errorf("edits that failed changed it: %+v", after)
	}
}

// A document is shared with remote agents by role; by default nobody has a role.
func TestDocumentsAreShared(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	want(t, p.run(t, "doc", "edit", "plan", "--set", "m.k=1"), 0, "")
	want(t, p.run(t, "doc", "share", "plan"), 0, "Not shared with any remote agent.")
	want(t, p.run(t, "doc", "share", "plan", "mars", "writer"), 0, "mars\twriter\n")
	want(t, p.run(t, "doc", "share", "plan", "venus", "reader"), 0, "mars\twriter\nvenus\treader\n")
	if roles := decode[map[string]string](t, p.run(t, "--format", "json", "doc", "share", "plan")); len(roles) != 2 || roles["mars"] != "writer" {
		t.Errorf("the roles are %v", roles)
	}
	want(t, p.run(t, "doc", "share", "plan", "mars", "none"), 0, "venus\treader\n")
	want(t, p.run(t, "doc", "share", "new", "mars", "owner"), 0, "mars\towner\n")
	want(t, p.run(t, "doc", "show", "new"), 0, "{}")
	for args, message := range map[string]string{
		"share":                 "share needs a document",
		"share plan mars":       "share needs a document",
		"share plan mars king":  "the roles are reader, writer, owner",
		"share plan hub writer": "no agent of another process",
		"share none":            "there is no document none",
		"share none mars none":  "there is no document none",
		"share a.b mars writer": "a document's name",
		"share plan * writer":   "every agent",
	} {
		o := p.run(t, append([]string{"doc"}, strings.Fields(args)...)...)
		if o.code == 0 || !strings.Contains(o.stderr, message) {
			t.Errorf("%s: %+v", args, o)
		}
	}
}

// dyingHub listens on the socket of p. It passes each request's method to answer and writes the result as the hub's
// response; for "" it closes the connection, as a hub that crashes does.
func dyingHub(t *testing.T, p setup, answer func(method string) string) {
	t.Helper()
	ln, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { ln.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					var request struct {
						ID     json.RawMessage
						Method string
					}
					if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
						t.Error(err)
					}
					if request.Method == dialect.MethodStatus { // which hub it is
						fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%s,"result":{}}`+"\n", request.ID) //nolint:errcheck // the next read fails
						continue
					}
					result := answer(request.Method)
					if result == "" {
						return
					}
					if _, err := fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%s,%s}`+"\n", request.ID, result); err != nil {
						return
					}
				}
			})
		}
	})
}

// If the hub crashes during an edit, the command reports, in words and in JSON, that the outcome is unknown, and how
// to check it.
func TestAnEditDuringACrashHasAnUnknownOutcome(t *testing.T) {
	p := newSetup(t)
	p.dir = ""
	dyingHub(t, p, func(string) string { return "" })
	for _, c := range []struct {
		args          []string
		message, look string
	}{
		{[]string{"doc", "edit", "plan", "--set", "m.k=1"}, "all of the edits may be in the document, or none", "parley doc show plan"},
		{[]string{"doc", "share", "plan", "mars", "writer"}, "may have the new role or the former", "parley doc share plan"},
		{[]string{"doc", "compact", "plan"}, "may have a new epoch", "parley doc show --format json plan"},
	} {
		o := p.run(t, c.args...)
		if o.code != 1 || o.stdout != "" || !strings.Contains(o.stderr, c.message) || !strings.Contains(o.stderr, "see: "+c.look) {
			t.Errorf("%v: %+v", c.args, o)
		}
		o = p.run(t, append([]string{"--format", "json"}, c.args...)...)
		var notified struct {
			Error struct {
				ExitCode              int
				Code, Message, Remedy string
			}
		}
		if err := json.Unmarshal([]byte(o.stderr), &notified); err != nil || o.code != 1 || notified.Error.ExitCode != 1 ||
			notified.Error.Code != "outcome-unknown" || notified.Error.Remedy != "see: "+c.look {
			t.Errorf("%v: %+v, %v", c.args, o, err)
		}
	}
	if o := p.run(t, "--format", "json", "doc", "show", "plan"); o.code != 1 || !strings.Contains(o.stderr, `"code":"connection-lost"`) {
		t.Errorf("reading: %+v", o)
	}
}

// A hub that stops before an edit is stored reports that itself; Ctrl-C does not wait for the response.
func TestAnEditWithoutAResponseHasAnUnknownOutcome(t *testing.T) {
	p := newSetup(t)
	p.dir = ""
	asked, end := make(chan struct{}), make(chan struct{})
	var stops sync.Once
	dyingHub(t, p, func(string) string {
		answer := ""
		stops.Do(func() {
			answer = `"error":{"code":-32603,"message":"the edit was not confirmed","data":{"code":"OUTCOME_UNKNOWN","remedy":"look"}}`
		})
		if answer == "" {
			close(asked)
			<-end
		}
		return answer
	})
	if o := p.run(t, "--format", "json", "doc", "edit", "plan", "--set", "m.k=1"); o.code != 1 || !strings.Contains(o.stderr, `"code":"outcome-unknown"`) {
		t.Errorf("a stopping hub: %+v", o)
	}
	signals := make(chan os.Signal, 1)
	go func() { <-asked; signals <- syscall.SIGINT }()
	o := p.runWith(t, strings.NewReader(""), signals, "doc", "edit", "plan", "--set", "m.k=1")
	close(end)
	if o.code != 130 || !strings.Contains(o.stderr, "all of the edits may be in the document") || !strings.Contains(o.stderr, "parley doc show plan") {
		t.Errorf("Ctrl-C: %+v", o)
	}
}

// doc watch continues after the hub was killed and restarted.
func TestWatchingSurvivesAHubRestart(t *testing.T) {
	p := newSetup(t)
	p.dir = ""
	var mu sync.Mutex
	calls := 0
	dyingHub(t, p, func(string) string {
		mu.Lock()
		defer mu.Unlock()
		calls++
		switch calls {
		case 1:
			return `"result":{"name":"plan","version":"a","content":{"n":1}}`
		case 2, 3: // it crashes, and again right after its restart
			return ""
		case 4: // nothing new
			return `"result":{"name":"plan","version":"a","content":{"n":1}}`
		default:
			return `"result":{"name":"plan","version":"b","content":{"n":2}}`
		}
	})
	r, w := io.Pipe()
	signals := make(chan os.Signal, 1)
	ended := make(chan int)
	var notified strings.Builder
	go func() {
		code := cli.Run(t.Context(), "parley", p.args("--format", "json", "doc", "watch", "plan"), strings.NewReader(""), w, &notified, nil, signals)
		w.Close()
		ended <- code
	}()
	var seen []string
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var d struct{ Version string }
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			t.Fatal(err)
		}
		if seen = append(seen, d.Version); d.Version == "b" {
			signals <- syscall.SIGINT
		}
	}
	if code := <-ended; code != 0 || len(seen) != 2 || notified.Len() > 0 {
		t.Errorf("exit %d, seen %v, stderr %q", code, seen, notified.String())
	}
}
