//go:build unix

package daemon_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/crdt/ysync"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/documents/sharing"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/transport"
	wslink "github.com/parleyhub/parley/transport/websocket"
)

// A page that presents the hub's token as a subprotocol edits a document with y-websocket's protocol. Without the token,
// or from another origin, it is refused. The edits are stored across a restart.
func TestBrowsersEditDocuments(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	const token = "0123456789abcdef0123456789abcdef"
	hub := run(t, mustLoad(t, dir, "http.token="+token))
	url := strings.TrimSuffix(hub.info.HTTP, "/") + "/documents/plan"
	dial := func(header http.Header, protocols ...string) (*websocket.Conn, int) {
		ws, res, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{Subprotocols: protocols, HTTPHeader: header})
		if err == nil {
			return ws, 101
		}
		return nil, res.StatusCode
	}
	for name, c := range map[string]struct {
		header    http.Header
		protocols []string
		status    int
	}{
		"no token":       {nil, []string{ysync.Subprotocol}, 401},
		"a wrong token":  {nil, []string{ysync.Subprotocol, "parley.token.wrong"}, 401},
		"a foreign page": {http.Header{"Origin": {"http://evil.example"}}, []string{ysync.Subprotocol, "parley.token." + token}, 403},
	} {
		if _, status := dial(c.header, c.protocols...); status != c.status {
			t.Errorf("%s: status %d, want %d", name, status, c.status)
		}
	}
	// A request that any page can make a browser send creates no document.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(hub.info.HTTP, "/")+"/documents/ghost", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("a request without an upgrade: status %d", res.StatusCode)
	}
	// An invalid name is refused, and creates no document.
	for _, name := range []string{"a.b", "a%2Fb", "..%2F..%2Fhub", "%00", "%20plan", "-plan", "plan%0A", "=plan", "SHOP=plan", "a=b=c", "*", "plan.%3E", strings.Repeat("n", 65), "", "plan/more"} {
		_, res, err := websocket.Dial(t.Context(), strings.TrimSuffix(hub.info.HTTP, "/")+"/documents/"+name, &websocket.DialOptions{Subprotocols: []string{ysync.Subprotocol, "parley.token." + token}})
		if err == nil || res == nil || res.StatusCode != http.StatusBadRequest && res.StatusCode != http.StatusNotFound {
			t.Errorf("the name %q: %v", name, err)
		}
	}
	ws, status := dial(nil, ysync.Subprotocol, "parley.token."+token)
	if status != 101 || ws.Subprotocol() != ysync.Subprotocol {
		t.Fatalf("with the token: status %d", status)
	}
	defer ws.CloseNow()
	page := crdt.New(crdt.Options{Client: 5})
	update, err := page.Transact(nil, func() error { return page.Text("t").Insert(0, "from a page") })
	if err != nil {
		t.Fatal(err)
	}
	frame := append([]byte{0, 2, byte(len(update))}, update...)
	if err := ws.Write(t.Context(), websocket.MessageBinary, frame); err != nil {
		t.Fatal(err)
	}
	for { // the hub returns an update once it is applied
		_, b, err := ws.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(b, frame) {
			break
		}
	}
	hub.end(t)

	hub = run(t, mustLoad(t, dir))
	defer hub.end(t)
	c, err := client.Dial(t.Context(), dir+"/hub.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if names, err := c.Documents(t.Context()); err != nil || len(names) != 1 {
		t.Errorf("the documents are %v, %v", names, err)
	}
	d, err := c.Document(context.Background(), "plan")
	if err != nil || string(d.Content) != `{"t":"from a page"}` {
		t.Fatalf("after the restart: %+v, %v", d, err)
	}
	after, err := c.EditDocument(t.Context(), "plan", []documents.Edit{{Op: documents.OpText, Path: []string{"t"}, Text: "!"}})
	if err != nil || string(after.Content) != `{"t":"from a page!"}` {
		t.Fatalf("after an edit: %+v, %v", after, err)
	}
	if now, err := c.AwaitDocument(t.Context(), "plan", d.Version); err != nil || now.Version != after.Version {
		t.Errorf("wait: %+v, %v", now, err)
	}
	// After a new epoch, a page with a copy of the old one is refused permanently.
	if _, err := c.CompactDocument(t.Context(), "plan"); err != nil {
		t.Fatal(err)
	}
	url = strings.TrimSuffix(hub.info.HTTP, "/") + "/documents/plan"
	stale, _ := dial(nil, ysync.Subprotocol)
	defer stale.CloseNow()
	if _, _, err := stale.Read(t.Context()); websocket.CloseStatus(err) != 4409 {
		t.Errorf("a page of the old epoch ends with %v", err)
	}
	url += "?epoch=1"
	fresh, _ := dial(nil, ysync.Subprotocol)
	defer fresh.CloseNow()
	if _, _, err := fresh.Read(t.Context()); err != nil {
		t.Errorf("a page of the new epoch ends with %v", err)
	}
}

// An agent of another process keeps a replica, over HTTP, of a document that is shared with it. An agent with the name
// of a peer's agent gets none.
func TestAgentsOfOtherProcessesKeepReplicas(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	hub := run(t, mustLoad(t, dir))
	defer hub.end(t)
	c, err := client.Dial(t.Context(), dir+"/hub.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.EditDocument(t.Context(), "plan", []documents.Edit{{Op: documents.OpText, Path: []string{"t"}, Text: "hello"}}); err != nil {
		t.Fatal(err)
	}
	peer := "mars@" + identity.Generate().Public().String()
	for _, id := range []string{"mars", peer} {
		if roles, err := c.ShareDocument(t.Context(), "plan", id, documents.RoleWriter); err != nil || roles[id] != documents.RoleWriter {
			t.Fatalf("the roles are %v, %v", roles, err)
		}
	}
	if roles, err := c.DocumentShares(t.Context(), "plan"); err != nil || len(roles) != 2 {
		t.Errorf("the roles are %v, %v", roles, err)
	}
	at := agent.Endpoint{Transport: agent.TransportWebSocket, Address: strings.Replace(hub.info.HTTP, "http", "ws", 1) + node.Path}
	join := func(id string) (*replica.Replica, <-chan *envelope.Envelope) {
		n, err := parley.New(parley.Options{Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{at.Transport: &wslink.Dialer{}}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		heard := make(chan *envelope.Envelope, 16)
		card := agent.Card{ID: id, Name: id, Version: "1", Tier: agent.L3, Protocols: []string{"a2a/1.0"}, Capabilities: []agent.Capability{}}
		if _, err := n.Join(card, func(_ context.Context, e *envelope.Envelope) {
			if e.Type == envelope.ErrorMessage {
				heard <- e
			}
		}); err != nil {
			t.Fatal(err)
		}
		r, err := replica.New(replica.Options{Agent: id, State: "plan"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		ch, err := n.Connect(t.Context(), id, sharing.CardID, at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Attach(ch); err != nil {
			t.Fatal(err)
		}
		return r, heard
	}
	mars, _ := join("mars")
	changed := make(chan struct{}, 1)
	defer mars.OnUpdate(func(replica.Update) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	for text := ""; text != "hello"; {
		if err := mars.View(t.Context(), func(d *crdt.Doc) { text = d.Text("t").String() }); err != nil {
			t.Fatal(err)
		}
		if text != "hello" {
			<-changed
		}
	}
	if err := mars.Edit(t.Context(), func(d *crdt.Doc) error { return d.Text("t").Append("!") }); err != nil {
		t.Fatal(err)
	}
	for seen := ""; ; {
		d, err := c.AwaitDocument(t.Context(), "plan", seen)
		if err != nil {
			t.Fatal(err)
		}
		if string(d.Content) == `{"t":"hello!"}` {
			break
		}
		seen = d.Version
	}
	stranger, heard := join(peer)
	if e := <-heard; e.Sender != sharing.CardID {
		t.Errorf("got %s from %s", e.Payload, e.Sender)
	}
	if err := stranger.View(t.Context(), func(d *crdt.Doc) {
		if d.Items() != 0 {
			t.Error("an agent with the name of a peer's agent has the document")
		}
	}); err != nil {
		t.Fatal(err)
	}
}
