package sharing_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/channel/transporttest"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/documents/sharing"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm"
	"github.com/parleyhub/parley/transport/memory"
	natslink "github.com/parleyhub/parley/transport/nats"
	"github.com/parleyhub/parley/transport/websocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// patience bounds waits on a busy machine.
const patience = 30 * time.Second

// keeper is the part of a hub that keeps documents: a library, and a node with a sharing service.
type keeper struct {
	bus     *bus.Bus
	listens []func(t *testing.T) transport.Listener
	speaks  func(string) error
	options parley.Options
	logs    lines

	library *documents.Library
	node    *parley.Node
	service *sharing.Service
}

// node adapts a parley.Node to the service's interface.
type node struct{ *parley.Node }

func (n node) Parley() *parley.Node { return n.Node }

func newKeeper(t *testing.T, listens ...func(t *testing.T) transport.Listener) *keeper {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{DataDir: t.TempDir(), Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	k := &keeper{bus: b, listens: listens}
	t.Cleanup(func() { k.close(t) })
	return k
}

func (k *keeper) open(t *testing.T) {
	t.Helper()
	var err error
	log := slog.New(slog.NewTextHandler(&k.logs, nil))
	if k.library, err = documents.Open(t.Context(), documents.Options{Bus: k.bus, Name: "hub", Logger: log}); err != nil {
		t.Fatal(err)
	}
	if k.node, err = parley.New(k.options); err != nil {
		t.Fatal(err)
	}
	k.service = sharing.New(k.library, log)
	if err := k.service.Serve(node{k.node}, sharing.CardID, k.speaks); err != nil {
		t.Fatal(err)
	}
	for _, listen := range k.listens {
		if err := k.node.Listen(listen(t)); err != nil {
			t.Fatal(err)
		}
	}
}

func (k *keeper) close(t *testing.T) {
	t.Helper()
	if k.service == nil {
		return
	}
	k.service.Close()
	if err := k.node.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := k.library.Close(context.Background()); err != nil {
		t.Error(err)
	}
	k.service = nil
}

func (k *keeper) share(t *testing.T, document, agentID string, role documents.Role) {
	t.Helper()
	if err := k.library.Share(t.Context(), document, agentID, role); err != nil {
		t.Fatal(err)
	}
}

// lines collects log output.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// program is a process with one agent.
type program struct {
	id     string
	by     agent.Transport
	at     agent.Endpoint
	faults *transporttest.Faults
	saved  *replica.Saved

	node     *parley.Node
	received chan *envelope.Envelope
	replica  *replica.Replica
	stop     context.CancelFunc
	keeping  sync.WaitGroup
}

func newProgram(t *testing.T, id string, at agent.Endpoint, d transport.Dialer) *program {
	t.Helper()
	p := &program{id: id, by: at.Transport, at: at, faults: transporttest.NewFaults(d)}
	p.start(t)
	t.Cleanup(func() { p.end(t) })
	return p
}

func (p *program) start(t *testing.T) {
	t.Helper()
	var err error
	p.node, err = parley.New(parley.Options{Channels: channel.Options{
		Dialers: map[agent.Transport]transport.Dialer{p.by: p.faults}, ReconnectDelay: 10 * time.Millisecond,
	}})
	if err != nil {
		t.Fatal(err)
	}
	p.received = make(chan *envelope.Envelope, 64)
	received := p.received
	card := agent.Card{ID: p.id, Name: p.id, Version: "1", Tier: agent.L3, Protocols: []string{"a2a/1.0"}, Capabilities: []agent.Capability{}}
	if _, err := p.node.Join(card, func(_ context.Context, e *envelope.Envelope) {
		if e.Type == envelope.StreamData {
			return // for the replica
		}
		select {
		case received <- e:
		default:
		}
	}); err != nil {
		t.Fatal(err)
	}
	p.replica, err = replica.New(replica.Options{Agent: p.id, State: "plan", Saved: p.saved, Interval: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.keeping.Go(func() {
		_ = p.replica.KeepConnected(ctx, func(ctx context.Context) (*channel.Channel, error) {
			return p.node.Connect(ctx, p.id, sharing.CardID, p.at)
		}) // the link ends with ctx
	})
}

func (p *program) end(t *testing.T) {
	t.Helper()
	if p.stop == nil {
		return
	}
	p.stop()
	p.stop = nil
	p.keeping.Wait()
	saved, err := p.replica.Save(context.Background())
	if err != nil {
		t.Error(err)
	}
	p.saved = &saved
	if err := p.replica.Close(); err != nil {
		t.Error(err)
	}
	if err := p.node.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func (p *program) edit(t *testing.T, f func(d *crdt.Doc) error) {
	t.Helper()
	if err := p.replica.Edit(t.Context(), f); err != nil {
		t.Error(err)
	}
}

// content returns a replica's bytes and its JSON.
func content(t *testing.T, v interface {
	View(context.Context, func(*crdt.Doc)) error
}) (bytes, shown string) {
	t.Helper()
	if err := v.View(context.Background(), func(d *crdt.Doc) {
		bytes = string(d.Snapshot())
		b, err := d.JSON()
		if err != nil {
			t.Error(err)
		}
		shown = string(b)
	}); err != nil {
		t.Fatal(err)
	}
	return bytes, shown
}

func (k *keeper) document(t *testing.T) *documents.Document {
	t.Helper()
	d, err := k.library.Ensure(t.Context(), "plan")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// same waits until the hub and the programs have the same bytes.
func (k *keeper) same(t *testing.T, programs ...*program) {
	t.Helper()
	defer func() {
		if t.Failed() {
			_, shown := content(t, k.document(t))
			t.Logf("the hub has %s", shown)
			for _, p := range programs {
				_, shown := content(t, p.replica)
				s, err := p.replica.Status(context.Background())
				t.Logf("%s has %s, %+v, %v", p.id, shown, s, err)
			}
			t.Log(k.logs.String())
		}
	}()
	wait.Eventually(t, "the same bytes everywhere", func() bool {
		want, _ := content(t, k.document(t))
		for _, p := range programs {
			if got, _ := content(t, p.replica); got != want {
				return false
			}
		}
		return true
	})
}

// pair returns a keeper and a program in memory, whose agent has a role.
func pair(t *testing.T, role documents.Role) (*keeper, *program) {
	t.Helper()
	var local memory.Network
	k := newKeeper(t, func(t *testing.T) transport.Listener {
		l, err := local.Listen("hub")
		if err != nil {
			t.Fatal(err)
		}
		return l
	})
	k.open(t)
	if role != "" {
		k.share(t, "plan", "mars", role)
	}
	return k, newProgram(t, "mars", agent.Endpoint{Transport: agent.TransportLocal, Address: "hub"}, &local)
}

// Agents over WebSocket, NATS and Hyperswarm keep replicas of a hub's document while connections break and they
// and the hub restart. In the end all replicas have the same bytes, with every edit (Req 9.1, 9.2, 9.3).
func TestAgentsOnThreeTransportsShareADocument(t *testing.T) {
	const token = "a long random token"
	var address string
	overHTTP := func(t *testing.T) transport.Listener {
		at := address
		if at == "" {
			at = "127.0.0.1:0"
		}
		l, err := websocket.Listen(at, websocket.ListenOptions{Authenticate: websocket.Tokens(map[string]string{"venus": token})})
		if err != nil {
			t.Fatal(err)
		}
		address = strings.TrimPrefix(l.Endpoint().Address, "ws://")
		return l
	}
	hubKey, jupiterKey, saturnKey := identity.Generate(), identity.Generate(), identity.Generate()
	server := testbed.StartNATS(t, testbed.WithoutJetStream)
	hubConn, jupiterConn := connect(t, server), connect(t, server)
	overNATS := func(t *testing.T) transport.Listener {
		l, err := natslink.Listen(hyperswarmtest.Context(t), natslink.ListenOptions{
			Options: natslink.Options{Conn: hubConn, Pair: hubKey}, Allow: func(k identity.PublicKey) bool { return k == jupiterKey.Public() },
		})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	options := hyperdht.Options{Bootstrap: bootstrap, Stream: secretstream.Options{MaxMessage: new(transport.Codec).MaxMessage()}}
	hubMember, saturnMember := hyperswarmtest.Node(t, options), hyperswarmtest.Node(t, options)
	overDHT := func(t *testing.T) transport.Listener {
		l, err := hyperswarm.Listen(hyperswarmtest.Context(t), hyperswarm.ListenOptions{
			Node: hubMember, Pair: hubKey, Allow: func(k identity.PublicKey) bool { return k == saturnKey.Public() },
		})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	k := newKeeper(t, overHTTP, overNATS, overDHT)
	k.open(t)
	for _, id := range []string{"venus", "jupiter", "saturn"} {
		k.share(t, "plan", id, documents.RoleWriter)
	}
	programs := []*program{
		newProgram(t, "venus", agent.Endpoint{Transport: agent.TransportWebSocket, Address: "ws://" + address}, &websocket.Dialer{Token: websocket.TokenFor(address, token)}),
		newProgram(t, "jupiter", agent.Endpoint{Transport: agent.TransportNATS, Address: natslink.Address("", hubKey.Public())},
			&natslink.Dialer{Options: natslink.Options{Conn: jupiterConn, Pair: jupiterKey}}),
		newProgram(t, "saturn", agent.Endpoint{Transport: agent.TransportHyperswarm, Address: hubKey.Public().String()}, &hyperswarm.Dialer{Node: saturnMember, Pair: saturnKey}),
	}
	const rounds, edits = 3, 25
	for round := range rounds {
		var writers sync.WaitGroup
		for _, p := range programs {
			writers.Go(func() {
				for i := range edits {
					p.edit(t, func(d *crdt.Doc) error {
						if err := d.Array("list").Append(fmt.Sprintf("%s-%d-%d", p.id, round, i)); err != nil {
							return err
						}
						return d.Text("text").Insert(i%(d.Text("text").Len()+1), "x")
					})
					if i == edits/2 {
						p.faults.Cut()
					}
				}
			})
		}
		if err := k.document(t).Change(t.Context(), []documents.Edit{{Op: documents.OpIncrement, Path: []string{"rounds"}}}); err != nil {
			t.Error(err)
		}
		writers.Wait()
		switch round {
		case 0:
			k.close(t)
			k.open(t)
		case 1:
			// Edits that a process has sent are everywhere before it restarts with another client id.
			k.same(t, programs...)
			for _, p := range programs {
				p.end(t)
				p.start(t)
			}
		}
	}
	k.same(t, programs...)
	_, shown := content(t, k.document(t))
	for _, p := range programs {
		for round := range rounds {
			for i := range edits {
				if value := fmt.Sprintf("%q", fmt.Sprintf("%s-%d-%d", p.id, round, i)); strings.Count(shown, value) != 1 {
					t.Errorf("%s is there %d times", value, strings.Count(shown, value))
				}
			}
		}
	}
	if !strings.Contains(shown, `"rounds"`) {
		t.Errorf("the hub's own edits are missing: %s", shown)
	}
}

func connect(t *testing.T, s *testbed.Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// problem returns the next error that the program received.
func (p *program) problem(t *testing.T) (problem struct{ Code, Message, Remedy string }) {
	t.Helper()
	select {
	case e := <-p.received:
		if e.Type != envelope.ErrorMessage || json.Unmarshal(e.Payload, &problem) != nil {
			t.Fatalf("the program received %s %s", e.Type, e.Payload)
		}
	case <-time.After(patience):
		t.Fatal("the program received no error")
	}
	return problem
}

// An agent without a role receives the same refusal whether or not the document exists. A granted role works on
// the existing channel, and a revoked one ends access at once.
func TestAccessNeedsARole(t *testing.T) {
	k, p := pair(t, "")
	first := p.problem(t)
	if first.Code != sharing.CodeDenied || !strings.Contains(first.Remedy, "parley doc share plan mars") {
		t.Errorf("the error is %+v", first)
	}
	if names, err := k.library.Documents(t.Context()); err != nil || len(names) != 0 {
		t.Errorf("the documents are %v, %v", names, err)
	}
	if err := k.document(t).Change(t.Context(), []documents.Edit{{Op: documents.OpSet, Path: []string{"m", "k"}, Value: "secret"}}); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the same answer", func() bool { return p.problem(t) == first })
	if _, shown := content(t, p.replica); strings.Contains(shown, "secret") {
		t.Fatalf("the replica has %s", shown)
	}
	if text := k.logs.String(); !strings.Contains(text, "agent=mars") || !strings.Contains(text, "document=plan") {
		t.Errorf("the log output is\n%s", text)
	}

	k.share(t, "plan", "mars", documents.RoleReader)
	k.same(t, p)
	k.share(t, "plan", "mars", documents.RoleWriter)
	p.edit(t, func(d *crdt.Doc) error { return d.Map("m").Set("l", 1) })
	wait.Eventually(t, "the edit is at the hub", func() bool { _, shown := content(t, k.document(t)); return strings.Contains(shown, `"l":1`) })

	k.share(t, "plan", "mars", "")
	if err := k.document(t).Change(t.Context(), []documents.Edit{{Op: documents.OpSet, Path: []string{"m", "k"}, Value: "another secret"}}); err != nil {
		t.Fatal(err)
	}
	p.end(t)
	p.start(t)
	if again := p.problem(t); again.Code != sharing.CodeDenied {
		t.Errorf("the error is %+v", again)
	}
	if _, shown := content(t, p.replica); strings.Contains(shown, "another") {
		t.Errorf("the replica has %s", shown)
	}
}

// Edits of a reader are not distributed.
func TestReadersOnlyRead(t *testing.T) {
	k, p := pair(t, documents.RoleReader)
	if err := k.document(t).Change(t.Context(), []documents.Edit{{Op: documents.OpSet, Path: []string{"m", "k"}, Value: 1}}); err != nil {
		t.Fatal(err)
	}
	k.same(t, p)
	p.edit(t, func(d *crdt.Doc) error { return d.Map("m").Set("k", "mine") })
	wait.Eventually(t, "the replica receives the refusal", func() bool {
		err := p.replica.Edit(t.Context(), func(d *crdt.Doc) error { return d.Map("m").Set("k", "again") })
		return err != nil
	})
	if _, shown := content(t, k.document(t)); shown != `{"m":{"k":1}}` {
		t.Errorf("the hub has %s", shown)
	}
	if !strings.Contains(k.logs.String(), "source=mars") {
		t.Errorf("the log does not say who was refused:\n%s", k.logs.String())
	}
}

// An owner can grant roles; requests of other agents are refused.
func TestOwnersShare(t *testing.T) {
	k, p := pair(t, documents.RoleOwner)
	p.edit(t, func(d *crdt.Doc) error { return d.Map("m").Set("k", 1) })
	wait.Eventually(t, "the edit is at the hub", func() bool { _, shown := content(t, k.document(t)); return shown != "{}" })
	mars, err := p.node.Router().Attach("mars", func(context.Context, *envelope.Envelope) {})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(payload any) *envelope.Envelope {
		t.Helper()
		if _, err := mars.Send(t.Context(), sharing.CardID, envelope.Request, payload); err != nil {
			t.Fatal(err)
		}
		select {
		case e := <-p.received:
			return e
		case <-time.After(patience):
			t.Fatal("no answer")
			return nil
		}
	}
	// The agent does not know the hub's card yet; the channel's handshake introduced it.
	if e := ask(map[string]any{"document": "plan", "agent": "venus", "role": "writer"}); e.Type != envelope.Response || string(e.Payload) != `{"document":"plan","roles":{"mars":"owner","venus":"writer"}}` {
		t.Errorf("the owner received %s %s", e.Type, e.Payload)
	}
	if e := ask(map[string]any{"document": "plan", "agent": "venus", "role": ""}); string(e.Payload) != `{"document":"plan","roles":{"mars":"owner"}}` {
		t.Errorf("the owner received %s", e.Payload)
	}
	if e := ask(map[string]any{"document": "plan"}); string(e.Payload) != `{"document":"plan","roles":{"mars":"owner"}}` {
		t.Errorf("the owner received %s", e.Payload)
	}
	for name, payload := range map[string]any{
		"no document":    map[string]any{"agent": "venus", "role": "writer"},
		"no role":        map[string]any{"document": "plan", "agent": "venus"},
		"an unknown one": map[string]any{"document": "plan", "agent": "venus", "role": "king"},
		"the hub":        map[string]any{"document": "plan", "agent": "hub", "role": "writer"},
		"another's":      map[string]any{"document": "other", "agent": "mars", "role": "owner"},
		"a text":         "share it",
	} {
		if e := ask(payload); e.Type != envelope.ErrorMessage {
			t.Errorf("%s: the owner received %s %s", name, e.Type, e.Payload)
		}
	}
	k.share(t, "plan", "mars", documents.RoleWriter)
	if e := ask(map[string]any{"document": "plan", "agent": "mars", "role": "owner"}); e.Type != envelope.ErrorMessage || !strings.Contains(string(e.Payload), sharing.CodeDenied) {
		t.Errorf("the writer received %s %s", e.Type, e.Payload)
	}
}

// A role has no effect for an agent that the node does not authenticate or that the sandbox rules exclude.
func TestRulesOverrideRoles(t *testing.T) {
	t.Run("another node's agent", func(t *testing.T) {
		k, p := pair(t, documents.RoleOwner)
		k.close(t)
		k.speaks = func(id string) error { return fmt.Errorf("%s is not a local agent", id) }
		k.open(t)
		if got := p.problem(t); got.Code == "" {
			t.Errorf("the error is %+v", got)
		}
	})
	t.Run("a sandbox", func(t *testing.T) {
		k, p := pair(t, documents.RoleWriter)
		p.edit(t, func(d *crdt.Doc) error { return d.Map("m").Set("k", 1) })
		wait.Eventually(t, "the edit is at the hub", func() bool { _, shown := content(t, k.document(t)); return shown != "{}" })
		k.node.Router().SetSandboxConfig(router.SandboxConfig{Enforced: true})
		card, err := k.node.Registry().Get("mars")
		if err != nil {
			t.Fatal(err)
		}
		card.SandboxID = "jail"
		if _, err := k.node.Registry().Hold(card, k.node.Registry().Source("mars")); err != nil {
			t.Fatal(err)
		}
		p.edit(t, func(d *crdt.Doc) error { return d.Map("m").Set("from", "jail") })
		if err := p.replica.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		ch, ok := p.node.Channels().Between("mars", sharing.CardID)
		if !ok {
			t.Fatal("the channel is closed")
		}
		if err := ch.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, shown := content(t, k.document(t)); strings.Contains(shown, "jail") {
			t.Errorf("the hub has %s", shown)
		}
	})
}

// Linked replicas follow to a new epoch of the document without a new channel, and their concurrent edits are
// kept.
func TestReplicasFollowToANewEpoch(t *testing.T) {
	k, p := pair(t, documents.RoleWriter)
	p.edit(t, func(d *crdt.Doc) error { return d.Map("m").Set("k", 1) })
	wait.Eventually(t, "the edit is at the hub", func() bool { _, shown := content(t, k.document(t)); return strings.Contains(shown, `"k":1`) })
	p.faults.Refuse(true)
	p.faults.Cut()
	p.edit(t, func(d *crdt.Doc) error { return d.Map("m").Set("late", 2) })
	if _, _, err := k.library.Compact(t.Context(), "plan"); err != nil {
		t.Fatal(err)
	}
	p.faults.Refuse(false)
	wait.Eventually(t, "the replica has followed", func() bool { return p.replica.Epoch() == 1 })
	k.same(t, p)
	if _, shown := content(t, k.document(t)); shown != `{"m":{"k":1,"late":2}}` {
		t.Errorf("the hub has %s", shown)
	}
}
