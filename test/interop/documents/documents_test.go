//go:build interop && linux

// Package documents_test edits a hub's documents concurrently from a page in a real
// browser with stock yjs and y-websocket, from agents, and from the command line, while
// connections break and the hub is killed.
//
//	npm install --prefix test/interop
//	go test -tags interop ./test/interop/documents
package documents_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/test/interop/rig"
)

var programs rig.Programs

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "parley-interop-")
	if err == nil {
		programs = rig.Programs(dir)
		err = programs.Build(rig.Parley...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := errors.Join(os.RemoveAll(dir), goleak.Find()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// patience bounds operations of other processes.
const patience = 30 * time.Second

const token = "0123456789abcdef0123456789abcdef"

// hub is a hub in its own process. After a restart it has the same address.
type hub struct {
	home rig.Home
	port int
}

// newHub starts a hub that admits pages of an origin.
func newHub(t *testing.T, origin, more string) *hub {
	t.Helper()
	h := &hub{home: programs.NewHome(t), port: freePort(t)}
	h.home.Env = append(h.home.Env, "PARLEY_HTTP_PORT="+strconv.Itoa(h.port))
	data := filepath.Join(h.home.Dir, "hub")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("http: {token: %q, allowedOrigins: [%q]}\n%s", token, origin, more)
	if err := os.WriteFile(filepath.Join(data, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start(t)
	return h
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (h *hub) start(t *testing.T) { h.parley(t, "start") }

// parley runs a command to its end.
func (h *hub) parley(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, programs.Path("parley"), args...)
	cmd.Env = h.home.Env
	var out, rest bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &rest
	if err := cmd.Run(); err != nil {
		t.Fatalf("parley %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), rest.String())
	}
	return out.String()
}

// kill ends the hub without cleanup, as a power failure would.
func (h *hub) kill(t *testing.T) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.home.Dir, "hub", "hub.json"))
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ PID int }
	if err := json.Unmarshal(raw, &info); err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(info.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the hub is dead", func() bool { return !alive(info.PID) })
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

func (h *hub) socket() string { return filepath.Join(h.home.Dir, "hub.sock") }

// agent edits a document over the hub's socket until all edits are acknowledged, and
// retries those that fail. It returns the acknowledged values.
func (h *hub) agent(ctx context.Context, name, room string, edits int) ([]string, error) {
	var done []string
	for i := range edits {
		value := fmt.Sprintf("%s-%d", name, i)
		for {
			err := h.edit(ctx, room, []documents.Edit{
				{Op: documents.OpInsert, Path: []string{"list"}, Values: []any{value}},
				{Op: documents.OpSet, Path: []string{"map", fmt.Sprint("key", i%10)}, Value: value},
				{Op: documents.OpText, Path: []string{"text"}, Text: "é"},
			})
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return done, err
			}
			// The hub has ended or is starting. An edit without acknowledgment may have been stored:
			// it is repeated with another value.
			value += "'"
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		done = append(done, value)
	}
	return done, nil
}

func (h *hub) edit(ctx context.Context, room string, edits []documents.Edit) error {
	c, err := client.Dial(ctx, h.socket())
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.EditDocument(ctx, room, edits)
	return err
}

// content returns a document as the command line shows it.
func (h *hub) content(t *testing.T, room string) (c struct {
	List []string
	Text string
}) {
	t.Helper()
	if err := json.Unmarshal([]byte(h.parley(t, "doc", "show", room)), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// wire is a proxy to the hub whose connections the test can break.
type wire struct {
	address string
	mu      sync.Mutex
	conns   map[net.Conn]bool
}

func newWire(t *testing.T, port int) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{address: l.Addr().String(), conns: map[net.Conn]bool{}}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err != nil {
				in.Close()
				continue
			}
			w.mu.Lock()
			w.conns[in], w.conns[out] = true, true
			w.mu.Unlock()
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				open.Go(func() {
					_, _ = io.Copy(pair[0], pair[1]) // the two ends see how it ended
					in.Close()
					out.Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.cut()
		open.Wait()
	})
	return w
}

// cut breaks all connections; new ones are possible at once.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		c.Close()
	}
	clear(w.conns)
}

// A page in a real browser, which needs the hub's token, agents over the socket, and an agent with a
// replica over a channel edit one document. The page loses its connection, and the hub is killed twice. In
// the end the page, the replica and a second page, which started empty, have the same bytes, with all
// values that were written or acknowledged.
func TestABrowserEditsWithAgents(t *testing.T) {
	origin := servePage(t)
	h := newHub(t, origin, "")
	w := newWire(t, h.port)
	server := "ws://" + w.address + "/documents"
	b := rig.StartBrowser(t)

	stranger := open(t, b, origin)
	stranger.Eval(t, opening(server, "plan", "not-the-token"), nil)

	page := open(t, b, origin)
	page.Eval(t, opening(server, "plan", token), nil)
	wait.Eventually(t, "the page is in step", func() bool {
		var synced bool
		page.Eval(t, "page.provider.synced", &synced)
		return synced
	})
	h.parley(t, "doc", "share", "plan", "mars", "writer")
	mars := keepReplica(t, h, "mars", "plan").Replica
	const pageEdits, agentEdits = 150, 30
	page.Eval(t, fmt.Sprintf("void (window.editing = edit(%d))", pageEdits), nil)

	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var agents sync.WaitGroup
	written := make([][]string, 3)
	for i := range written {
		agents.Go(func() {
			var err error
			if written[i], err = h.agent(ctx, fmt.Sprint("agent", i), "plan", agentEdits); err != nil {
				t.Error(err)
			}
		})
	}
	var byMars []string
	for range 2 {
		wait.Eventually(t, "the page has connected and written", func() bool {
			var n int
			page.Eval(t, "page.doc.getArray('list').length", &n)
			return n > 20
		})
		w.cut()
		h.kill(t)
		byMars = append(byMars, appendAll(t, mars, fmt.Sprint("mars", len(byMars)), 20)...) // while the hub is down
		h.start(t)
		byMars = append(byMars, appendAll(t, mars, fmt.Sprint("mars", len(byMars)), 20)...)
	}
	page.Eval(t, "editing", nil)
	agents.Wait()
	h.parley(t, "doc", "edit", "plan", "--text", "text=!")

	var all []string
	for i := range pageEdits {
		all = append(all, fmt.Sprint("page-", i))
	}
	all = append(all, slices.Concat(written...)...)
	all = append(all, byMars...)
	wait.Eventually(t, "the hub has everything", func() bool { return missing(all, h.content(t, "plan").List) == nil })
	var refused int
	if stranger.Eval(t, "page.provider.synced ? 0 : page.refused", &refused); refused == 0 {
		t.Error("a page without the token was admitted")
	}

	late := open(t, b, origin)
	late.Eval(t, opening(server, "plan", token), nil)
	wait.Eventually(t, "the pages and the agent have the same bytes", func() bool {
		bytes := bytesOf(t, mars)
		return state(t, page) == bytes && state(t, late) == bytes
	})
	content := h.content(t, "plan")
	var values string
	late.Eval(t, "values()", &values)
	var list []string
	if err := json.Unmarshal([]byte(values), &list); err != nil || !slices.Equal(list, content.List) {
		t.Errorf("%v: the page has %d values, the hub %d", err, len(list), len(content.List))
	}
	if !strings.Contains(content.Text, "!") {
		t.Errorf("the text is %q", content.Text)
	}
}

// missing returns the values of want that are not in list, or nil.
func missing(want, list []string) (lost []string) {
	there := map[string]bool{}
	for _, value := range list {
		there[value] = true
	}
	for _, value := range want {
		if !there[value] {
			lost = append(lost, value)
		}
	}
	return lost
}

// state returns the encoded state of a page's document.
func state(t *testing.T, p *rig.Page) string {
	t.Helper()
	var text string
	p.Eval(t, "state()", &text)
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
