//go:build interop && linux

package documents_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/test/interop/rig"
)

// Req 9.1, 9.2, 9.3: agents over WebSocket, NATS and Hyperswarm, an agent over MCP and a browser page with
// stock yjs edit one document of a hub. Each loses its connection; the hub is killed while all of them write,
// and one agent restarts with another client id while the hub is down. In the end the page, the agents and
// a new page, which has the hub's state, have the same bytes, state vector and content, with every value
// exactly once.
func TestAgentsOnThreeTransportsAndAPageEndByteIdentical(t *testing.T) {
	const room = "shop=plan" // of the project of the agent over MCP
	origin := servePage(t)
	server := testbed.StartNATS(t)
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	h := newHub(t, origin, fmt.Sprintf("bus: {url: %q}\npeers: {enabled: true, hyperswarm: {listen: %q, bootstrap: [\"%s\"]}}\n",
		server.URL(), freeUDPAddress(t), strings.Join(bootstrap, `", "`)))
	hubKey, jupiterKey, saturnKey := h.key(t), identity.Generate(), identity.Generate()
	h.parley(t, "peers", "pair", jupiterKey.Public().String(), "--name", "jupiter")
	h.parley(t, "peers", "pair", saturnKey.Public().String(), "--name", "saturn")
	for _, id := range []string{"venus", signedcard.ID("jupiter", jupiterKey.Public()), signedcard.ID("saturn", saturnKey.Public())} {
		h.parley(t, "doc", "share", room, id, "writer")
	}
	venus := keepReplica(t, h, "venus", room)
	jupiter := keepPeersReplica(t, server.URL(), jupiterKey, "jupiter", hubKey.Public(), room)
	saturn := keepSwarmReplica(t, bootstrap, saturnKey, "saturn", hubKey, room)
	members := []*member{venus, jupiter, saturn}
	w := newWire(t, h.port)
	pages := "ws://" + w.address + "/documents"
	b := rig.StartBrowser(t)
	page := open(t, b, origin)
	page.Eval(t, opening(pages, room, token), nil)
	mars := startMCP(t, h, "shop")
	mars.edit(t, edit{"op": "make", "path": []string{"plan", "owners"}, "type": "map"})
	for _, m := range members {
		wait.Eventually(t, m.id+" has what there is", func() bool { return owners(t, m) != nil })
	}

	const pageEdits, each = 120, 20
	page.Eval(t, fmt.Sprintf("void (window.editing = edit(%d))", pageEdits), nil)
	var byMCP, again []string
	var calling sync.WaitGroup
	end := make(chan struct{})
	calling.Go(func() { byMCP, again = mars.work(t, end) })
	endCalls := sync.OnceFunc(func() { close(end); calling.Wait() })
	defer endCalls()
	all := together(t, members, "before", each)
	wait.Eventually(t, "the page has written", func() bool {
		var n int
		page.Eval(t, "page.doc.getArray('list').length", &n)
		return n > 20
	})
	w.cut()
	h.kill(t)
	all = append(all, together(t, members, "meanwhile", each)...)
	before := clientOf(t, saturn)
	saturn.end(t)
	saturn.start(t)
	if clientOf(t, saturn) == before {
		t.Error("a restarted agent writes with its former client id")
	}
	h.start(t) // unless the agent's MCP server has started it already
	all = append(all, together(t, members, "after", each)...)
	page.Eval(t, "editing", nil)
	mars.edit(t, edit{"op": "set", "path": []string{"plan", "done"}, "value": true})
	endCalls()
	for i := range pageEdits {
		all = append(all, fmt.Sprint("page-", i))
	}
	all = append(all, byMCP...)
	wait.Eventually(t, "the hub has everything", func() bool { return missing(all, h.content(t, room).List) == nil })

	late := open(t, b, origin)
	late.Eval(t, opening(pages, room, token), nil)
	wait.Eventually(t, "the same bytes everywhere", func() bool {
		want := state(t, late) + vector(t, late)
		return state(t, page)+vector(t, page) == want && !slices.ContainsFunc(members, func(m *member) bool { return bytesOf(t, m.Replica)+vectorOf(t, m) != want })
	})
	want := decode(t, h.parley(t, "doc", "show", room))
	contents := map[string]any{"the page": shown(t, page), "the page that came last": shown(t, late), "the agent over MCP": decode(t, mars.read(t))}
	for _, m := range members {
		contents[m.id] = contentOf(t, m)
	}
	for who, got := range contents {
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s has\n%v\nthe hub\n%v", who, got, want)
		}
	}
	list := h.content(t, room).List
	slices.Sort(list)
	for _, value := range again { // the first one was returned by a page or replica, or was lost
		if i, ok := slices.BinarySearch(list, value); ok && i+1 < len(list) && list[i+1] == value {
			list = slices.Delete(list, i, i+1)
		}
	}
	if n := len(slices.Compact(slices.Clone(list))); n != len(list) {
		t.Errorf("of %d values %d are duplicates: %v", len(list), len(list)-n, list)
	}
}

// together lets all members edit concurrently; each loses its connection half-way. It
// returns the values that they wrote.
func together(t *testing.T, members []*member, name string, n int) (values []string) {
	written := make([][]string, len(members))
	var writers sync.WaitGroup
	for i, m := range members {
		who, _, _ := strings.Cut(m.id, "@")
		writers.Go(func() {
			for k := range n {
				value := fmt.Sprintf("%s-%s-%d", who, name, k)
				if k == n/2 {
					m.faults.Cut()
				}
				if err := m.Edit(t.Context(), func(d *crdt.Doc) error { return editAll(d, who, value, k) }); err != nil {
					t.Errorf("%s: %v", m.id, err)
				}
				written[i] = append(written[i], value)
			}
		})
	}
	writers.Wait()
	return slices.Concat(written...)
}

// editAll edits each kind of root and a nested type.
func editAll(d *crdt.Doc, who, value string, k int) error {
	if err := d.Array("list").Append(value); err != nil {
		return err
	}
	text := d.Text("text")
	if err := text.Insert(k%(text.Len()+1), "é😀"); err != nil {
		return err
	}
	if k%5 == 4 {
		if err := text.Delete(0, 1); err != nil {
			return err
		}
	}
	if err := d.Map("map").Set(fmt.Sprint("key", k%10), map[string]any{"by": who, "i": k}); err != nil {
		return err
	}
	nested, _ := d.Map("plan").Get("owners")
	return nested.(*crdt.Map).Set(who, value)
}

// owners returns the nested map of the document, or nil if it does not exist.
func owners(t *testing.T, m *member) (in any) {
	t.Helper()
	if err := m.View(t.Context(), func(d *crdt.Doc) { in, _ = d.Map("plan").Get("owners") }); err != nil {
		t.Fatal(err)
	}
	return in
}

func clientOf(t *testing.T, m *member) uint64 {
	t.Helper()
	s, err := m.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Client
}

func vectorOf(t *testing.T, m *member) (vector string) {
	t.Helper()
	if err := m.View(t.Context(), func(d *crdt.Doc) { vector = string(d.StateVector().Encode()) }); err != nil {
		t.Fatal(err)
	}
	return vector
}

func contentOf(t *testing.T, m *member) any {
	t.Helper()
	var content []byte
	var err error
	if e := m.View(t.Context(), func(d *crdt.Doc) { content, err = d.JSON() }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return decode(t, string(content))
}

// vector returns a page's state vector.
func vector(t *testing.T, p *rig.Page) string {
	t.Helper()
	var text string
	p.Eval(t, "vector()", &text)
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// shown returns the content that a page shows.
func shown(t *testing.T, p *rig.Page) any {
	t.Helper()
	var text string
	p.Eval(t, "content()", &text)
	return decode(t, text)
}

func decode(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// edit is one edit in the form of the tool's arguments.
type edit map[string]any

// mcpAgent is an agent that edits with the tools of an MCP server.
type mcpAgent struct{ session *mcp.ClientSession }

// startMCP starts an agent's MCP server in a project.
func startMCP(t *testing.T, h *hub, project string) *mcpAgent {
	t.Helper()
	cmd := exec.Command(programs.Path("nats-mcp-server"))
	cmd.Dir = h.home.Project(t, project, fmt.Sprintf(`{"namespace": %q}`, project))
	cmd.Env = h.home.Env
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	})
	return &mcpAgent{session}
}

// call calls a tool and returns its text and whether it succeeded.
func (a *mcpAgent) call(t *testing.T, tool string, arguments map[string]any) (text string, ok bool) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	result, err := a.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		t.Errorf("%s: %v", tool, err)
		return err.Error(), false
	}
	return result.Content[0].(*mcp.TextContent).Text, !result.IsError
}

func (a *mcpAgent) edit(t *testing.T, edits ...edit) {
	t.Helper()
	if text, ok := a.call(t, "edit_document", map[string]any{"name": "plan", "edits": edits}); !ok {
		t.Fatal(text)
	}
}

func (a *mcpAgent) read(t *testing.T) string {
	t.Helper()
	text, ok := a.call(t, "read_document", map[string]any{"name": "plan"})
	if !ok {
		t.Fatal(text)
	}
	return text
}

// work edits until end is closed, and returns the values. After an edit without an answer it reads the
// document, as the tool's error says, and repeats the edit if the value is missing. A killed hub may have sent
// such an edit to others without having stored it, so values of again may be in the document twice.
func (a *mcpAgent) work(t *testing.T, end <-chan struct{}) (values, again []string) {
	pause := time.NewTicker(25 * time.Millisecond)
	defer pause.Stop()
	unknown := false // an edit has no known outcome
	for {
		select {
		case <-end:
			if unknown {
				t.Error("the last edit of the agent over MCP still has no known outcome")
			}
			return values, again
		case <-pause.C:
		}
		value := fmt.Sprint("mcp-", len(values))
		if unknown {
			text, ok := a.call(t, "read_document", map[string]any{"name": "plan"})
			if !ok {
				continue
			}
			if unknown = false; strings.Contains(text, `"`+value+`"`) {
				values = append(values, value)
				continue
			}
			again = append(again, value)
		}
		text, ok := a.call(t, "edit_document", map[string]any{"name": "plan", "edits": []edit{
			{"op": "insert", "path": []string{"list"}, "values": []string{value}},
			{"op": "set", "path": []string{"plan", "owners", "mcp"}, "value": value},
			{"op": "text", "path": []string{"text"}, "text": "é"},
		}})
		if ok {
			values = append(values, value)
			continue
		}
		if unknown = strings.HasPrefix(text, "UncertainError"); !unknown && !strings.HasPrefix(text, "ConnectionError") {
			t.Errorf("%s is answered with %s", value, text)
		}
	}
}

// freeUDPAddress returns a free address of the loopback interface that a hub can use after each restart.
func freeUDPAddress(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().String()
}
