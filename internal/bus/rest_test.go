package bus_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

var errGone = errors.New("the hub is gone")

// rests are the rests that a hub grants to the agents of its network.
type rests struct {
	hub     *bus.Bus
	refuse  error         // of each request; nil grants it
	late    bool          // the process receives the ends when their Grants have expired
	project bool          // they are of a connection without an identity, which requests a new Grant at the end
	granted chan struct{} // receives each
	beats   atomic.Int32
	beating chan struct{} // receives each heartbeat, which fails after the end of its rest; nil for none of these

	mu      sync.Mutex
	current *rest // nil without
}

type rest struct {
	of   *rests
	user string
	ends chan error // nil for one that the hub or the process wishes
	once sync.Once
	over chan struct{} // closed at the end
}

func newRests(hub *bus.Bus) *rests { return &rests{hub: hub, granted: make(chan struct{}, 10_000)} }

func (rs *rests) ask(_ context.Context, user string) (bus.Resting, error) {
	if rs.refuse != nil {
		return nil, rs.refuse
	}
	if !rs.project {
		if err := rs.hub.BeginRest(user); err != nil {
			return nil, err
		}
	}
	r := &rest{of: rs, user: user, ends: make(chan error, 3), over: make(chan struct{})}
	rs.mu.Lock()
	rs.current = r
	rs.mu.Unlock()
	rs.granted <- struct{}{}
	return r, nil
}

func (rs *rests) end(err error) {
	rs.mu.Lock()
	r := rs.current
	rs.mu.Unlock()
	if r != nil {
		r.end(err)
	}
}

func (r *rest) end(err error) {
	select {
	case r.ends <- err:
	default:
	}
}

var errNotBeaten = errors.New("a heartbeat failed")

func (r *rest) Beat() error {
	r.of.beats.Add(1)
	if r.of.beating == nil {
		return nil
	}
	r.of.beating <- struct{}{}
	<-r.over
	return errGone
}

func (r *rest) Wake() error { r.end(nil); return nil }

func (r *rest) Wait() (bus.Grant, bool, error) {
	err := <-r.ends
	if err != nil && err != errNotBeaten {
		return bus.Grant{}, true, err
	}
	if r.of.project {
		return bus.Grant{}, true, nil
	}
	g, resumeErr := r.of.hub.Resume(r.user, bus.GrantRequest{Access: bus.AccessNetwork})
	if r.of.late {
		g.Expires, resumeErr = time.Now(), r.of.hub.Revoke(r.user)
	}
	return g, err == nil, resumeErr
}

func (r *rest) Close() error {
	r.once.Do(func() { r.end(errGone); r.of.hub.EndRest(r.user); close(r.over) })
	return nil
}

const restsAfter = time.Millisecond

// joinProject joins a project with a connection that rests. change may change its Grants.
func joinProject(t testing.TB, rs *rests, change func(g *bus.Grant)) *bus.Bus {
	t.Helper()
	rs.project = true
	return joinWith(t, bus.Config{Rest: &bus.Rest{After: restsAfter, Ask: rs.ask}}, func(ctx context.Context) (bus.Grant, error) {
		g, err := rs.hub.Grant(ctx, bus.GrantRequest{Namespace: "p"})
		change(&g)
		return g, err
	})
}

// joinsResting are the joins of connections that rest.
var joinsResting = map[string]func(testing.TB, *rests) *bus.Bus{
	"an agent":  joinResting,
	"a project": func(t testing.TB, rs *rests) *bus.Bus { return joinProject(t, rs, func(*bus.Grant) {}) },
}

// joinResting joins the network with a connection that rests.
func joinResting(t testing.TB, rs *rests) *bus.Bus {
	t.Helper()
	cfg := bus.Config{InboxPrefix: "_INBOX_me", Rest: &bus.Rest{After: restsAfter, Ask: rs.ask, Heartbeat: "beat", Failed: "_INBOX_me.failed", News: "news.me"}}
	return joinWith(t, cfg, func(ctx context.Context) (bus.Grant, error) {
		return rs.hub.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
	})
}

func network(t testing.TB, hub *bus.Bus) *bus.Bus {
	t.Helper()
	return joinWith(t, bus.Config{}, func(ctx context.Context) (bus.Grant, error) {
		return hub.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
	})
}

func awaitRest(t testing.TB, b *bus.Bus) {
	t.Helper()
	wait.Eventually(t, "a rest", b.Resting)
}

func TestAnUnusedConnectionRests(t *testing.T) {
	t.Parallel()
	hub := open(t, bus.Config{DataDir: t.TempDir()})
	rs := newRests(hub)
	b, other := joinResting(t, rs), network(t, hub)
	changes := b.Conn().StatusChanged()
	news := make(chan *nats.Msg, 10)
	_, err := b.Conn().ChanSubscribe("news.me", news)
	must(t, err)
	must(t, b.Conn().Flush())
	awaitRest(t, b)

	user := rs.current.user
	if !hub.Admitted(user) || !b.Conn().IsConnected() || b.Connection().State != bus.StateConnected {
		t.Error("the connection does not count as connected")
	}
	if err := hub.BeginRest(user); bus.CodeOf(err) != bus.CodeRejected {
		t.Errorf("a second rest at once: %v", err)
	}
	must(t, b.Conn().Flush()) // without the hub
	if !b.Resting() {
		t.Error("a ping has ended the rest")
	}
	for range 3 {
		must(t, b.Conn().PublishRequest("beat", "_INBOX_me.failed", nil))
		must(t, b.Conn().Flush())
	}
	if n := rs.beats.Load(); n == 0 || !b.Resting() {
		t.Errorf("%d heartbeats were sent", n)
	}

	replies, err := other.Conn().Subscribe("asks", func(m *nats.Msg) { _ = m.Respond(m.Data) })
	must(t, err)
	defer replies.Unsubscribe() //nolint:errcheck // the test is over
	must(t, other.Conn().Flush())
	for i := range 20 {
		text := strconv.Itoa(i)
		if m, err := b.Conn().Request("asks", []byte(text), 5*time.Second); err != nil || string(m.Data) != text {
			t.Fatalf("request %d: %v, %v", i, m, err)
		}
		if i%2 == 0 {
			awaitRest(t, b)
		}
	}
	if len(news) == 0 {
		t.Error("the subscriber was not notified that it may have missed something")
	}
	if len(changes) > 0 {
		t.Errorf("the client noticed %v", <-changes)
	}
}

// A process that is suspended when its rest ends loses nothing that it has written before.
func TestTheEndOfARestIsReceivedLate(t *testing.T) {
	t.Parallel()
	hub := open(t, bus.Config{DataDir: t.TempDir()})
	rs := newRests(hub)
	rs.late = true
	b, other := joinResting(t, rs), network(t, hub)
	changes := b.Conn().StatusChanged()
	_, err := other.Conn().Subscribe("asks", func(m *nats.Msg) { _ = m.Respond(m.Data) })
	must(t, err)
	must(t, other.Conn().Flush())
	for range 3 {
		awaitRest(t, b)
		if _, err := b.Conn().Request("asks", nil, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if len(changes) > 0 {
		t.Errorf("the client noticed %v", <-changes)
	}
}

// What the hub ends a rest for is read, and a heartbeat that failed is answered as the hub does.
func TestTheHubEndsARest(t *testing.T) {
	t.Parallel()
	hub := open(t, bus.Config{DataDir: t.TempDir()})
	rs := newRests(hub)
	b := joinResting(t, rs)
	received := make(chan *nats.Msg, 100)
	for _, subject := range []string{"news.me", "_INBOX_me.failed"} {
		_, err := b.Conn().ChanSubscribe(subject, received)
		must(t, err)
	}
	for _, c := range []struct {
		why  error
		want []string
	}{{nil, []string{"news.me"}}, {errNotBeaten, []string{"news.me", "_INBOX_me.failed"}}} {
		awaitRest(t, b)
		for len(received) > 0 {
			<-received
		}
		rs.end(c.why)
		for _, subject := range c.want {
			if m := <-received; m.Subject != subject {
				t.Errorf("after %v: received %s, want %s", c.why, m.Subject, subject)
			}
		}
	}
}

// A heartbeat that fails because its rest has just ended does not end the connection that the process has again.
func TestAHeartbeatOutlivesItsRest(t *testing.T) {
	t.Parallel()
	rs := newRests(open(t, bus.Config{DataDir: t.TempDir()}))
	rs.beating = make(chan struct{})
	b := joinResting(t, rs)
	changes := b.Conn().StatusChanged()
	for range 3 {
		awaitRest(t, b)
		for len(rs.granted) > 0 {
			<-rs.granted
		}
		must(t, b.Conn().Publish("beat", nil))
		<-rs.beating
		rs.end(nil)
		<-rs.granted // the next one
	}
	if len(changes) > 0 {
		t.Errorf("the client noticed %v", <-changes)
	}
}

func write(t *testing.T, to net.Conn, text string) {
	if _, err := to.Write([]byte(text)); err != nil {
		t.Error(err)
	}
}

// granting grants rests that nobody ends.
type granting struct{}

func (granting) Beat() error                    { return nil }
func (granting) Wake() error                    { return nil }
func (granting) Wait() (bus.Grant, bool, error) { return bus.Grant{}, true, errGone }
func (granting) Close() error                   { return nil }

// The answer to the PING before a rest that comes too late for the rest is none to a PING of the client: its Flush would end too early.
func TestALateAnswerIsNotTheClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer server.Close()
		conn := bus.NewRestConn(client, &bus.Rest{After: 10 * time.Second, Ask: func(context.Context, string) (bus.Resting, error) { return granting{}, nil }})
		received, lines := make(chan string, 10), bufio.NewScanner(server)
		go func() {
			some := make([]byte, 100)
			for n, err := conn.Read(some); err == nil; n, err = conn.Read(some) {
				received <- string(some[:n])
			}
		}()
		ping := func() { write(t, conn, "PING\r\n") }
		pong := func(answer string) { write(t, server, answer) }
		await := func(line string) {
			if !lines.Scan() || lines.Text() != line {
				t.Errorf("%q, want %s", lines.Text(), line)
			}
		}
		go ping()
		await("PING")
		pong("PONG\r\n")
		await("PING") // before a rest
		time.Sleep(time.Minute)
		go ping()
		await("PING")
		pong("PONG\r\nPING\r\n") // the late one
		pong("PONG\r\n")
		synctest.Wait()
		for _, want := range []string{"PONG\r\n", "PING\r\n", "PONG\r\n"} {
			if got := <-received; got != want {
				t.Errorf("the client received %q, want %q", got, want)
			}
		}
		must(t, conn.Close())
	})
}

func TestAConnectionInUseDoesNotRest(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(t *testing.T, b *bus.Bus){
		"a subscription that the hub does not watch": func(t *testing.T, b *bus.Bus) {
			_, err := b.Conn().SubscribeSync("items.7")
			must(t, err)
		},
		"a request without an answer": func(t *testing.T, b *bus.Bus) {
			_, err := b.Conn().Subscribe("asks", func(*nats.Msg) {})
			must(t, err)
			must(t, b.Conn().PublishRequest("asks", "_INBOX_me.mux.1", nil))
		},
		"a refusal for good": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hub := open(t, bus.Config{DataDir: t.TempDir()})
			rs := newRests(hub)
			asked := make(chan struct{}, 100)
			if use == nil {
				rs.refuse = &bus.Error{Code: bus.CodeUnsupported, Message: "never"}
			}
			cfg := bus.Config{InboxPrefix: "_INBOX_me", Rest: &bus.Rest{After: 20 * time.Millisecond, News: "news.me",
				Ask: func(ctx context.Context, user string) (bus.Resting, error) {
					asked <- struct{}{}
					return rs.ask(ctx, user)
				}}}
			b := joinWith(t, cfg, func(ctx context.Context) (bus.Grant, error) {
				return hub.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
			})
			if use != nil {
				use(t, b)
				must(t, b.Conn().Flush())
			} else {
				<-asked
			}
			<-time.After(50 * time.Millisecond) // a rest that had begun before
			for len(asked) > 0 {
				<-asked
			}
			<-time.After(200 * time.Millisecond) // ten times as long as a rest needs
			if n := len(asked); n > 0 || b.Resting() {
				t.Errorf("it asked %d times for a rest", n)
			}
		})
	}
}

// A hub that ends during a rest is a lost connection, which is made again.
func TestTheEndOfTheHubDuringARest(t *testing.T) {
	t.Parallel()
	hub := open(t, bus.Config{DataDir: t.TempDir()})
	rs := newRests(hub)
	b := joinResting(t, rs)
	changes := b.Conn().StatusChanged(nats.RECONNECTING, nats.CONNECTED)
	awaitRest(t, b)
	user := rs.current.user
	rs.end(errGone)
	for _, want := range []nats.Status{nats.RECONNECTING, nats.CONNECTED} {
		if got := <-changes; got != want {
			t.Errorf("the client is %v, want %v", got, want)
		}
	}
	wait.Eventually(t, "the end of the former user", func() bool { return !hub.Admitted(user) })
	awaitRest(t, b) // again
}

// A process notices that the hub was replaced during a rest of which that knows nothing.
func TestAnotherHubEndsARest(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(g *bus.Grant){
		"process":              func(g *bus.Grant) { g.PID++ },
		"address":              func(g *bus.Grant) { g.Address = strings.Replace(g.Address, "127.0.0.1", "localhost", 1) },
		"the same, not ending": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rs := newRests(open(t, bus.Config{DataDir: t.TempDir()}))
			var replaced atomic.Bool
			b := joinProject(t, rs, func(g *bus.Grant) {
				if replaced.Load() && change != nil {
					change(g)
				}
			})
			changes := b.Conn().StatusChanged(nats.RECONNECTING, nats.CONNECTED)
			awaitRest(t, b)
			replaced.Store(true)
			for len(rs.granted) > 0 {
				<-rs.granted
			}
			rs.end(nil)
			if change == nil {
				<-rs.granted // the next one
				if len(changes) > 0 {
					t.Errorf("the client noticed %v", <-changes)
				}
				return
			}
			for _, want := range []nats.Status{nats.RECONNECTING, nats.CONNECTED} {
				if got := <-changes; got != want {
					t.Errorf("the client is %v, want %v", got, want)
				}
			}
		})
	}
}

// The end of a process makes no connection that rests again.
func TestCloseDuringARest(t *testing.T) {
	t.Parallel()
	rs := newRests(open(t, bus.Config{DataDir: t.TempDir()}))
	var grants atomic.Int32
	b := joinProject(t, rs, func(*bus.Grant) { grants.Add(1) })
	ensureStream(t, b, "S", "s.>")
	_, err := b.PublishOnce(t.Context(), &nats.Msg{Subject: "s.1"}, "1", "S") // which leaves a subscription
	must(t, err)
	awaitRest(t, b)
	before := grants.Load()
	must(t, b.Close(t.Context()))
	if n := grants.Load(); n != before {
		t.Errorf("%d grants, %d before", n, before)
	}
}

func TestResumeNeedsARest(t *testing.T) {
	t.Parallel()
	hub := open(t, bus.Config{DataDir: t.TempDir()})
	rs := newRests(hub)
	b := joinResting(t, rs)
	awaitRest(t, b)
	user := rs.current.user
	must(t, hub.Revoke(user))
	if hub.Admitted(user) {
		t.Error("a revoked user is admitted")
	}
	for _, user := range []string{user, "hub", "agents-network.x"} {
		if _, err := hub.Resume(user, bus.GrantRequest{}); bus.CodeOf(err) != bus.CodeRejected {
			t.Errorf("resume of %s: %v", user, err)
		}
		if err := hub.BeginRest(user); bus.CodeOf(err) != bus.CodeRejected {
			t.Errorf("rest of %s: %v", user, err)
		}
	}
}

// Messages are published at any point of a rest. The process learns of the last one: by the message, or because the hub that has
// seen it ends the rest.
func TestNoMessageIsMissed(t *testing.T) {
	t.Parallel()
	const rounds = 300
	hub := open(t, bus.Config{DataDir: t.TempDir()})
	rs := newRests(hub)
	sender, watcher := network(t, hub), network(t, hub)
	ensureStream(t, sender, "NEWS", "news.>")
	_, err := watcher.Conn().Subscribe("news.me", func(*nats.Msg) { rs.end(nil) })
	must(t, err)
	must(t, watcher.Conn().Flush())
	b := joinResting(t, rs)
	signs := make(chan *nats.Msg, 1000)
	_, err = b.Conn().ChanSubscribe("news.me", signs)
	must(t, err)
	must(t, b.Conn().Flush())
	size := rand.N(40_000)
	for i := range rounds {
		if i%3 == 0 {
			awaitRest(t, b)
		}
		if i%3 == 1 {
			<-time.After(rand.N(3 * restsAfter)) // any point of a rest that begins
		}
		ack, err := sender.JetStream().Publish(t.Context(), "news.me", bytes.Repeat([]byte("x"), size))
		must(t, err)
		deadline := time.After(10 * time.Second)
		for last := uint64(0); last < ack.Sequence; {
			select {
			case <-signs:
			case <-deadline:
				t.Fatalf("message %d of %d was missed", i, rounds)
			}
			info, err := b.JetStream().Stream(t.Context(), "NEWS")
			must(t, err)
			last = info.CachedInfo().State.LastSeq
		}
	}
	if len(rs.granted) == 0 {
		t.Error("the connection has never rested")
	}
}

// Writers that use a connection between and during rests lose nothing, in order.
func TestWritesDuringRests(t *testing.T) {
	t.Parallel()
	for name, join := range joinsResting {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rs := newRests(open(t, bus.Config{DataDir: t.TempDir()}))
			testWritesDuringRests(t, rs, join(t, rs))
		})
	}
}

func testWritesDuringRests(t *testing.T, rs *rests, b *bus.Bus) {
	changes := b.Conn().StatusChanged()
	ensureStream(t, b, "S", "s.>")
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 50 {
				<-time.After(rand.N(4 * restsAfter))
				m := &nats.Msg{Subject: fmt.Sprint("s.", w), Data: fmt.Appendf(bytes.Repeat([]byte{' '}, i*1000), "%d.%d", w, i)}
				publish := func() (*jetstream.PubAck, error) { return b.Publish(t.Context(), m) }
				if w%2 == 0 {
					publish = func() (*jetstream.PubAck, error) { return b.PublishOnce(t.Context(), m, fmt.Sprint(w, ".", i), "S") }
				}
				_, err := publish()
				if err != nil {
					t.Errorf("writer %d, message %d: %v", w, i, err)
				}
			}
		})
	}
	writers.Wait()
	if len(changes) > 0 {
		t.Errorf("the client noticed %v", <-changes)
	}
	all := stored(t, b, "S")
	for text, n := range all {
		if n != 1 {
			t.Errorf("%d messages %s", n, strings.TrimSpace(text))
		}
	}
	if len(all) != 200 {
		t.Errorf("%d messages, want 200", len(all))
	}
	if len(rs.granted) == 0 {
		t.Error("the connection has never rested")
	}
}

// Operations are found however a connection cuts them.
func TestFrames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var all []byte
		var want []string
		for range rapid.IntRange(1, 20).Draw(t, "operations") {
			data := rapid.SliceOfN(rapid.SampledFrom([]byte("\r\nPINGMSG 12")), 0, 60).Draw(t, "payload")
			line := rapid.SampledFrom([]string{"PING", "PONG", "+OK", "SUB a.b 1", "UNSUB 7", "INFO {}",
				fmt.Sprint("PUB a ", len(data)), fmt.Sprint("HPUB a b 2 ", len(data)), fmt.Sprint("MSG a 1 b ", len(data)), fmt.Sprint("HMSG a 1 2 ", len(data))}).Draw(t, "line")
			want = append(want, line)
			all = append(all, line+"\r\n"...)
			if line[0] == 'M' || line[1] == 'M' || line[0] == 'H' || line[:2] == "PU" {
				all = append(append(all, data...), "\r\n"...)
			}
		}
		var pieces [][]byte
		for rest := all; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		got, whole := bus.ScanFrames(pieces)
		if !whole || !slices.Equal(got, want) {
			t.Fatalf("got %q, whole %v, want %q", got, whole, want)
		}
		if len(all) > 1 {
			if _, whole := bus.ScanFrames([][]byte{all[:len(all)-1]}); whole {
				t.Fatal("an operation without its end is whole")
			}
		}
	})
}
