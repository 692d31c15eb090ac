package ysync_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	gosync "sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/internal/lib0"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/crdt/ysync"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type rig struct {
	doc *replica.Replica
	url string
}

func newRig(t *testing.T, conns int) *rig { return newRigWith(t, conns, nil) }

// newRigWith returns a rig whose documents cannot be opened because of an error, unless that is nil.
func newRigWith(t *testing.T, conns int, fails error) *rig {
	t.Helper()
	r, err := replica.New(replica.Options{Agent: "hub", State: "plan"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	s := ysync.NewServer(ysync.Options{MaxConns: conns, Open: func(req *http.Request) (ysync.Document, string, error) {
		if fails != nil {
			return nil, "", fails
		}
		if !strings.HasSuffix(req.URL.Path, "/plan") {
			return nil, "", errors.New("there is no such document")
		}
		return r, req.URL.Query().Get("agent"), nil
	}})
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	t.Cleanup(s.Close)
	return &rig{r, server.URL}
}

// client is a WebSocket client that encodes frames by hand.
type client struct {
	t  *testing.T
	ws *websocket.Conn
}

func (r *rig) dial(t *testing.T, agent string) *client {
	t.Helper()
	ws, _, err := websocket.Dial(t.Context(), r.url+"/plan?agent="+agent, nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(-1)
	t.Cleanup(func() { ws.CloseNow() })
	return &client{t, ws}
}

func (c *client) send(b []byte) {
	c.t.Helper()
	if err := c.ws.Write(c.t.Context(), websocket.MessageBinary, b); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) receive() []byte {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	_, b, err := c.ws.Read(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	return b
}

// closed reads until the connection ends and returns the close code.
func (c *client) closed() websocket.StatusCode {
	c.t.Helper()
	for {
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
		_, _, err := c.ws.Read(ctx)
		cancel()
		if err != nil {
			return websocket.CloseStatus(err)
		}
	}
}

func sync(kind byte, payload []byte) []byte { return lib0.AppendBytes([]byte{0, kind}, payload) }

func textUpdate(t *testing.T, client uint64, s string) []byte {
	t.Helper()
	d := crdt.New(crdt.Options{Client: client})
	u, err := d.Transact(nil, func() error { return d.Text("t").Insert(0, s) })
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// longText returns an update with a string beyond the length limit.
func longText(t *testing.T, client uint64) []byte {
	t.Helper()
	d := crdt.New(crdt.Options{Client: client})
	for range 2 {
		if err := d.Text("t").Append(strings.Repeat("x", 200<<10)); err != nil {
			t.Fatal(err)
		}
	}
	return d.Snapshot()
}

// The server sends its state vector first, answers, applies updates and forwards them.
func TestSync(t *testing.T) {
	r := newRig(t, 0)
	a, b := r.dial(t, "ada"), r.dial(t, "bob")
	for _, c := range []*client{a, b} {
		if got := hex.EncodeToString(c.receive()); got != "00000100" {
			t.Fatalf("the first frame is %s", got)
		}
	}
	a.send(sync(0, []byte{0}))
	if got := hex.EncodeToString(a.receive()); got != "0001020000" {
		t.Fatalf("an empty state is answered by %s", got)
	}
	u := textUpdate(t, 5, "hi")
	a.send(sync(2, u))
	if got := b.receive(); !bytes.Equal(got, sync(2, u)) {
		t.Fatalf("the other client receives %x", got)
	}
	b.send(sync(1, textUpdate(t, 6, "yo"))) // edits made while disconnected
	a.receive()                             // its own update
	a.receive()
	if err := r.doc.View(t.Context(), func(d *crdt.Doc) {
		if got := d.Text("t").String(); got != "hiyo" {
			t.Errorf("the text is %q", got)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

func awareness(client, clock uint64, state string) []byte {
	b := lib0.AppendString(lib0.AppendUint(lib0.AppendUint([]byte{1}, client), clock), state)
	return lib0.AppendBytes([]byte{1}, b)
}

// Awareness reaches all clients, including the sender, and ends with the connection.
func TestAwareness(t *testing.T) {
	r := newRig(t, 0)
	a := r.dial(t, "ada")
	a.receive()
	here := awareness(5, 1, `{"n":1}`)
	if hex.EncodeToString(here) != "010b010501077b226e223a317d" {
		t.Fatalf("the frame is %x", here)
	}
	a.send(here)
	if got := a.receive(); !bytes.Equal(got, here) {
		t.Fatalf("the sender receives %x", got)
	}
	b := r.dial(t, "bob")
	b.receive()
	if got := b.receive(); !bytes.Equal(got, here) {
		t.Fatalf("a new client receives %x", got)
	}
	b.send(awareness(5, 9, `{"n":"forged"}`))
	b.send([]byte{3})
	if got := b.receive(); !bytes.Equal(got, here) {
		t.Fatalf("after a forgery it receives %x", got)
	}
	if err := a.ws.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	if got := b.receive(); !bytes.Equal(got, awareness(5, 1, "null")) {
		t.Fatalf("after a has left, b receives %x", got)
	}
}

// An invalid frame ends the connection with a code after which clients do not reconnect.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		frames [][]byte
		code   websocket.StatusCode
	}{
		"no frame":              {[][]byte{{9}}, 4400},
		"an unknown sync":       {[][]byte{{0, 7, 0}}, 4400},
		"trailing bytes":        {[][]byte{{0, 0, 1, 0, 0}}, 4400},
		"no update":             {[][]byte{sync(2, []byte{9, 9})}, 4400},
		"no vector":             {[][]byte{sync(0, []byte{9})}, 4400},
		"no awareness":          {[][]byte{{1, 1, 9}}, 4400},
		"too many in awareness": {[][]byte{{1, 2, 65, 0}}, 4400},
		"too large a frame":     {[][]byte{make([]byte, 17<<20)}, 4400},
		"too large an update":   {[][]byte{sync(2, longText(t, 8))}, 4403},
		"too large a state":     {[][]byte{awareness(1, 1, `"`+strings.Repeat("x", 17<<10)+`"`)}, 4400},
		"a text message":        {nil, 4400},
		"state that is no JSON": {[][]byte{awareness(1, 1, "{")}, 4400},
		"somebody's client id":  {[][]byte{sync(2, textUpdate(t, 7, "mine"))}, 4403},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 0)
			if err := r.doc.Submit(t.Context(), "ada", textUpdate(t, 7, "hers"), false); err != nil {
				t.Fatal(err)
			}
			client := r.dial(t, "bob")
			for _, f := range c.frames {
				client.send(f)
			}
			if c.frames == nil {
				if err := client.ws.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
					t.Fatal(err)
				}
			}
			if got := client.closed(); got != c.code {
				t.Errorf("the connection ends with %d, want %d", got, c.code)
			}
		})
	}
	r := newRig(t, 1)
	if _, res, err := websocket.Dial(t.Context(), r.url+"/other", nil); err == nil || res.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown document returns %v", err)
	}
	first := r.dial(t, "ada")
	first.receive()
	if _, res, err := websocket.Dial(t.Context(), r.url+"/plan", nil); err == nil || res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one client too many returns %v", err)
	}
}

// A client that requests the state repeatedly without reading answers costs the memory of one answer, and other
// clients are served normally.
func TestStateRequestsAreAnsweredOneByOne(t *testing.T) {
	r := newRig(t, 0)
	if err := r.doc.Edit(t.Context(), func(d *crdt.Doc) error {
		for i := range 4 {
			if err := d.Map("m").Set(strconv.Itoa(i), strings.Repeat("x", 150<<10)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	hostile, other := r.dial(t, "eve"), r.dial(t, "ada")
	hostile.receive()
	other.receive()
	const questions = 100 // 60 MB of answers
	for range questions {
		hostile.send(sync(0, []byte{0}))
	}
	u := textUpdate(t, 5, "hi")
	other.send(sync(2, u))
	if got := other.receive(); !bytes.Equal(got, sync(2, u)) {
		t.Errorf("the other client receives %d bytes", len(got))
	}
	answers := 0
	for answers < questions { // no answer is lost once the client reads
		if got := hostile.receive(); bytes.HasPrefix(got, []byte{0, 1}) {
			answers++
		}
	}
}

// A connection that announces many clients does not displace those of others.
func TestOneConnectionDoesNotDisplaceOthers(t *testing.T) {
	r := newRig(t, 0)
	hostile := r.dial(t, "eve")
	hostile.receive()
	for i := range uint64(1100) {
		hostile.send(awareness(1000+i, 1, `{}`))
	}
	hostile.send(sync(0, []byte{0}))
	received := 0
	for !bytes.HasPrefix(hostile.receive(), []byte{0, 1}) {
		received++
	}
	if received != 64 {
		t.Errorf("%d of its clients are known", received)
	}
	other := r.dial(t, "ada")
	other.receive()
	other.receive() // awareness of the hostile client
	here := awareness(5, 1, `{"n":1}`)
	other.send(here)
	if got := other.receive(); !bytes.Equal(got, here) {
		t.Errorf("the other client receives %x", got)
	}
}

// Clients flood a document with updates and awareness, request its state without reading answers, or begin a large
// frame and never finish it. A well-behaved client still receives each update in order, gets answers and stays
// connected.
func TestFloodsDoNotAffectOtherClients(t *testing.T) {
	r := newRig(t, 0)
	other := r.dial(t, "ada")
	other.receive()
	for range 2 * ysync.MaxLarge { // more than the server reads at once
		slow := r.dial(t, "eve")
		w, err := slow.ws.Writer(t.Context(), websocket.MessageBinary)
		if err == nil {
			_, err = w.Write(make([]byte, ysync.SmallFrame+1))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var floods gosync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer floods.Wait()
	defer stop()
	flood := func(frame func(i uint64) []byte) {
		c := r.dial(t, "eve")
		floods.Go(func() {
			for i := uint64(1); ctx.Err() == nil; i++ {
				if c.ws.Write(ctx, websocket.MessageBinary, frame(i)) != nil {
					return
				}
			}
		})
	}
	big := `"` + strings.Repeat("x", 15<<10) + `"`
	flood(func(i uint64) []byte { return awareness(1000, i, big) })
	flood(func(i uint64) []byte { return awareness(2000+i, 1, "{}") })
	flood(func(uint64) []byte { return []byte{3} })
	flood(func(uint64) []byte { return sync(0, []byte{0}) })

	const updates = 1000
	busy := r.dial(t, "bob")
	floods.Go(func() {
		d := crdt.New(crdt.Options{Client: 9})
		for i := range updates {
			u, err := d.Transact(nil, func() error { return d.Array("l").Append(i) })
			if err != nil || busy.ws.Write(ctx, websocket.MessageBinary, sync(2, u)) != nil {
				return // the test is over
			}
		}
	})
	copied := crdt.New(crdt.Options{})
	for copied.Array("l").Len() < updates {
		if got := other.receive(); bytes.HasPrefix(got, []byte{0, 2}) {
			update := lib0.NewReader(got[2:]).Bytes()
			if _, err := copied.Apply(update, nil); err != nil {
				t.Fatal(err)
			}
			if p := copied.Pending(); p.Structs > 0 {
				t.Fatal("an update came before one that it builds on")
			}
		}
	}
	other.send(sync(0, copied.StateVector().Encode()))
	for !bytes.HasPrefix(other.receive(), []byte{0, 1}) {
	}
}

// A new epoch ends the connections of pages for good: merging their copy would duplicate the content.
func TestANewEpochEndsPageConnections(t *testing.T) {
	r := newRig(t, 0)
	c := r.dial(t, "ada")
	c.receive()
	c.send(sync(2, textUpdate(t, 5, "hi")))
	c.receive()
	if err := r.doc.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := c.closed(); got != 4409 {
		t.Errorf("the connection ends with %d", got)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0})
	f.Add(awareness(5, 1, `{"n":1}`))
	f.Add([]byte{3})
	f.Fuzz(func(t *testing.T, data []byte) { ysync.Decode(data) })
}
