package bus_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// secret is part of every message and name that the attacker must not see.
const secret = "victim"

// siege is a hub with its own tasks, a project with messages, and an attacker with a credential of
// another project.
type siege struct {
	t      *testing.T
	hub    *bus.Bus
	victim *bus.Bus
	stream jetstream.Stream // the victim's
}

func newSiege(t *testing.T) *siege {
	s := &siege{t: t, hub: open(t, bus.Config{DataDir: t.TempDir()})}
	s.victim = joinWith(t, bus.Config{Name: secret}, s.ask(secret))
	ensureStream(t, s.hub, "TASKS", "tasks.>")
	s.stream = ensureStream(t, s.victim, "V", "victim.>")
	for b, subject := range map[*bus.Bus]string{s.hub: "tasks.1", s.victim: "victim.roadmap"} {
		_, err := b.Publish(t.Context(), &nats.Msg{Subject: subject, Data: []byte(secret)})
		must(t, err)
	}
	return s
}

func (s *siege) ask(namespace string) bus.Ask {
	return func(ctx context.Context) (bus.Grant, error) {
		return s.hub.Grant(ctx, bus.GrantRequest{Namespace: namespace})
	}
}

func (s *siege) grant(namespace string) bus.Grant {
	s.t.Helper()
	g, err := s.ask(namespace)(s.t.Context())
	must(s.t, err)
	return g
}

// attacker is a raw client with a credential of the namespace attacker.
func (s *siege) attacker(opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	nc, err := connectWith(s.grant("attacker"), opts...)
	must(s.t, err)
	s.t.Cleanup(nc.Close)
	return nc
}

func connectWith(g bus.Grant, opts ...nats.Option) (*nats.Conn, error) {
	opts = append([]nats.Option{nats.UserInfo(g.User, string(g.Password)), nats.NoReconnect()}, opts...)
	return nats.Connect("nats://"+g.Address, opts...)
}

// unharmed checks that the victim has its one message and nothing else.
func (s *siege) unharmed() {
	s.t.Helper()
	info, err := s.stream.Info(s.t.Context())
	must(s.t, err)
	if info.State.Msgs != 1 || info.State.LastSeq != 1 || len(info.Config.Subjects) != 1 {
		s.t.Errorf("the victim's stream is now %+v", info.State)
	}
	if n := stored(s.t, s.victim, "V")[secret]; n != 1 {
		s.t.Errorf("the victim's message is stored %d times", n)
	}
}

// REQ-SEC-008, REQ-SEC-TEST-001
func TestASubscriberReceivesNothingOfOtherNamespaces(t *testing.T) {
	t.Parallel()
	s := newSiege(t)
	nc := s.attacker()
	heard := make(chan *nats.Msg, 1000)
	for _, subject := range []string{">", "victim.>", "*.roadmap", "_INBOX.>", "$JS.>", "$SYS.>", "$JSC.>", "$G.>", "$MQTT.>", "tasks.>"} {
		_, err := nc.ChanSubscribe(subject, heard)
		must(t, err)
	}
	must(t, nc.Flush())

	_, err := s.victim.Publish(t.Context(), &nats.Msg{Subject: "victim.roadmap", Data: []byte(secret)})
	must(t, err)
	must(t, s.victim.Conn().Publish("plain."+secret, []byte(secret)))
	_, err = s.victim.Conn().Request("nobody."+secret, []byte(secret), 30*time.Second)
	if !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("somebody answered: %v", err)
	}
	_, err = s.hub.Publish(t.Context(), &nats.Msg{Subject: "tasks.2", Data: []byte(secret)})
	must(t, err)
	joinWith(t, bus.Config{Name: secret}, s.ask(secret)) // makes the server inform its system account
	must(t, s.victim.Conn().Flush())

	must(t, nc.Publish("end", nil))
	for msg := range heard {
		if msg.Subject == "end" {
			return
		}
		t.Errorf("received %s: %s", msg.Subject, msg.Data)
	}
}

// REQ-SEC-008, REQ-SEC-TEST-001
func TestJetStreamShowsNothingOfOtherNamespaces(t *testing.T) {
	t.Parallel()
	s := newSiege(t)
	nc := s.attacker()
	js, err := jetstream.New(nc)
	must(t, err)
	names := js.StreamNames(t.Context())
	for name := range names.Name() {
		t.Errorf("stream %s is listed", name)
	}
	must(t, names.Err())
	info, err := js.AccountInfo(t.Context())
	must(t, err)
	if info.Streams != 0 || info.Store != 0 || info.Consumers != 0 {
		t.Errorf("the account shows %+v", info)
	}
	for _, name := range []string{"V", "TASKS"} {
		if _, err := js.Stream(t.Context(), name); !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("stream %s: %v", name, err)
		}
		if err := js.DeleteStream(t.Context(), name); !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("deleting %s: %v", name, err)
		}
	}
	requests := map[string]string{
		"STREAM.PURGE.V":            `{}`,
		"STREAM.MSG.GET.V":          `{"seq":1}`,
		"STREAM.MSG.DELETE.V":       `{"seq":1}`,
		"STREAM.SNAPSHOT.V":         `{"deliver_subject":"x"}`,
		"DIRECT.GET.V":              `{"seq":1}`,
		"DIRECT.GET.V.victim.>":     ``,
		"CONSUMER.CREATE.V":         `{"stream_name":"V","config":{"deliver_subject":"x"}}`,
		"CONSUMER.NAMES.V":          `{}`,
		"CONSUMER.MSG.NEXT.V.C":     ``,
		"STREAM.INFO.ns-victim > V": ``,
		"ACCOUNT.PURGE.ns-victim":   ``,
		"META.LEADER.STEPDOWN":      `{}`,
		"SERVER.REMOVE":             `{"peer":"parley"}`,
	}
	for subject, body := range requests {
		for _, prefix := range []string{"$JS.API.", "$JS.ns-victim.API.", "$JS.ACC.ns-victim.API.", "$JS.hub.API."} {
			msg, err := nc.Request(strings.ReplaceAll(prefix+subject, " ", ""), []byte(body), time.Second)
			if err == nil && !isRefusal(msg) {
				t.Errorf("%s%s is answered with %q", prefix, subject, msg.Data)
			}
		}
	}
	s.unharmed()
}

// isRefusal reports whether an answer of the API is an error without content.
func isRefusal(msg *nats.Msg) bool {
	if status := msg.Header.Get("Status"); status != "" && len(msg.Data) == 0 {
		return true
	}
	var answer struct {
		Error *jetstream.APIError
	}
	return json.Unmarshal(msg.Data, &answer) == nil && answer.Error != nil
}

func TestTheSystemAccountRevealsNothingOfOthers(t *testing.T) {
	t.Parallel()
	s := newSiege(t)
	nc := s.attacker()
	id := nc.ConnectedServerId()
	for _, subject := range []string{
		"$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.SERVER.PING.SUBSZ", "$SYS.REQ.SERVER.PING.JSZ",
		"$SYS.REQ.SERVER.PING.ACCOUNTZ", "$SYS.REQ.SERVER.PING.VARZ", "$SYS.REQ.SERVER.PING.HEALTHZ", "$SYS.REQ.SERVER.PING.IDZ",
		"$SYS.REQ.SERVER." + id + ".CONNZ", "$SYS.REQ.SERVER." + id + ".ACCOUNTZ", "$SYS.REQ.SERVER." + id + ".JSZ",
		"$SYS.REQ.SERVER." + id + ".KICK", "$SYS.REQ.SERVER." + id + ".LDM", "$SYS.REQ.SERVER." + id + ".RELOAD",
		"$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.SUBSZ", "$SYS.REQ.ACCOUNT.PING.JSZ", "$SYS.REQ.ACCOUNT.PING.STATZ",
		"$SYS.REQ.ACCOUNT.PING.INFO", "$SYS.REQ.ACCOUNT.ns-victim.CONNZ", "$SYS.REQ.ACCOUNT.ns-victim.SUBSZ",
		"$SYS.REQ.ACCOUNT.ns-victim.JSZ", "$SYS.REQ.ACCOUNT.ns-victim.INFO", "$SYS.REQ.ACCOUNT.ns-victim.CONNS",
		"$SYS.REQ.ACCOUNT.$G.CONNZ", "$SYS.REQ.ACCOUNT.$G.JSZ", "$SYS.REQ.ACCOUNT.NSUBS", "$SYS.REQ.CLAIMS.LIST",
		"$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE", "$SYS.REQ.USER.INFO", "$SYS._INBOX.x",
	} {
		for _, body := range []string{"", `{"account":"ns-victim","acc":"ns-victim","auth":true,"subscriptions":true,"streams":true,"accounts":true,"cid":1}`, `["ns-victim"]`} {
			msg, err := nc.Request(subject, []byte(body), time.Second)
			if err != nil {
				continue // no answer
			}
			if text := string(msg.Data); strings.Contains(text, secret) && !echoes(text) || strings.Contains(text, `"hub"`) || strings.Contains(text, "TASKS") {
				t.Errorf("%s %s is answered with %s", subject, body, text)
			}
		}
	}
	for _, subject := range []string{
		"$SYS.ACCOUNT.ns-victim.CONNECT", "$SYS.SERVER." + id + ".SHUTDOWN", "$SYS.ACCOUNT.ns-victim.CLAIMS.UPDATE",
		"$SYS.REQ.SERVER." + id + ".KICK",
	} {
		must(t, nc.Publish(subject, []byte(`{"cid":1}`)))
	}
	must(t, nc.Flush())
	if !s.victim.Conn().IsConnected() || !s.hub.Conn().IsConnected() {
		t.Error("the victim or the hub was disconnected")
	}
	s.unharmed()
}

// echoes reports whether text is an error that only repeats the request.
func echoes(text string) bool {
	return strings.Contains(text, `"error"`) && !strings.Contains(text, `"data":{`)
}

// REQ-SEC-008, REQ-SEC-TEST-001
func TestPublishedMessagesStayInTheNamespace(t *testing.T) {
	t.Parallel()
	s := newSiege(t)
	heard, err := s.victim.Conn().SubscribeSync(">")
	must(t, err)
	must(t, s.victim.Conn().Flush())
	nc := s.attacker()
	// An inbox of the victim, as if its name had leaked.
	inbox := s.victim.Conn().NewInbox()
	for _, subject := range []string{"victim.roadmap", "plain", inbox, "tasks.1", "$JS.ACK.V.C.1.1.1.1.0", "$KV.B.k", "$JS.API.STREAM.PURGE.V"} {
		must(t, nc.PublishMsg(&nats.Msg{Subject: subject, Reply: inbox, Data: []byte("forged"),
			Header: nats.Header{"Nats-Expected-Stream": {"V"}, "Nats-Msg-Id": {"1"}}}))
	}
	must(t, nc.Flush())
	must(t, s.victim.Conn().Publish("end", nil))
	for {
		msg, err := heard.NextMsg(30 * time.Second)
		must(t, err)
		if msg.Subject == "end" {
			break
		}
		t.Errorf("the victim received %s: %s", msg.Subject, msg.Data)
	}
	must(t, heard.Unsubscribe())
	s.unharmed()
}

// A mirror or a source can name another API and delivery prefix. The attacker can copy streams of
// its own account this way, which shows that the attempts below are valid requests.
//
// REQ-SEC-008, REQ-SEC-TEST-001
func TestAStreamCannotBeCopiedFromAnotherNamespace(t *testing.T) {
	t.Parallel()
	s := newSiege(t)
	js, err := jetstream.New(s.attacker())
	must(t, err)
	own := jetstream.StreamConfig{Name: "OWN", Subjects: []string{"own"}, MaxBytes: 1 << 20}
	_, err = js.CreateStream(t.Context(), own)
	must(t, err)
	_, err = js.Publish(t.Context(), "own", []byte("own"))
	must(t, err)

	var copies []string
	attempt := func(source jetstream.StreamSource, mirror bool) string {
		cfg := jetstream.StreamConfig{Name: fmt.Sprintf("COPY%d", len(copies)), MaxBytes: 1 << 20}
		if mirror {
			cfg.Mirror = &source
		} else {
			cfg.Sources = []*jetstream.StreamSource{&source}
		}
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			return "" // refused at once
		}
		copies = append(copies, cfg.Name)
		return cfg.Name
	}
	for _, name := range []string{"V", "TASKS"} {
		for _, external := range []*jetstream.ExternalStream{
			nil, {APIPrefix: "$JS.API", DeliverPrefix: "d"}, {APIPrefix: "$JS.ns-victim.API", DeliverPrefix: "victim"},
			{APIPrefix: "$JS.ACC.ns-victim.API"}, {APIPrefix: "ns-victim.$JS.API"}, {APIPrefix: "$JS.hub.API"},
		} {
			for _, mirror := range []bool{true, false} {
				attempt(jetstream.StreamSource{Name: name, External: external}, mirror)
			}
		}
		attempt(jetstream.StreamSource{Name: name, Domain: "hub"}, true)
	}
	control := attempt(jetstream.StreamSource{Name: "OWN"}, false)
	for count(t, js, control) == 0 {
		must(t, t.Context().Err())
	}
	for _, name := range copies {
		if n := count(t, js, name); n != 0 && name != control {
			t.Errorf("%s has %d messages of another namespace", name, n)
		}
	}
	s.unharmed()
}

func count(t *testing.T, js jetstream.JetStream, stream string) uint64 {
	t.Helper()
	x, err := js.Stream(t.Context(), stream)
	must(t, err)
	return x.CachedInfo().State.Msgs
}

func TestACredentialIsGoodForOneConnection(t *testing.T) {
	t.Parallel()
	s := newSiege(t)
	g := s.grant("attacker")
	wrong := g
	wrong.Password = "x" + g.Password
	if _, err := connectWith(wrong); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a wrong password: %v", err)
	}
	nc, err := connectWith(g) // the failed attempt has not used up the credential
	must(t, err)
	t.Cleanup(nc.Close)
	if _, err := connectWith(g); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a second connection: %v", err)
	}
	nc.Close()
	if _, err := connectWith(g); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a connection after the first was closed: %v", err)
	}
	for _, user := range []string{"hub", "peer", "", g.User, "ns-victim", "$SYS", "$G"} {
		for _, password := range []string{"", "hub", "x"} {
			if _, err := connectWith(bus.Grant{User: user, Password: bus.Secret(password), Address: g.Address}); !errors.Is(err, nats.ErrAuthorization) {
				t.Errorf("user %q: %v", user, err)
			}
		}
	}
}

func TestACredentialEndsWithTheHub(t *testing.T) {
	t.Parallel()
	cfg := bus.Config{DataDir: t.TempDir()}
	hub := open(t, cfg)
	stale, err := project(hub)(t.Context())
	must(t, err)
	shut(t, hub)
	if _, err := hub.Grant(t.Context(), bus.GrantRequest{Namespace: "test"}); bus.CodeOf(err) != bus.CodeClosed {
		t.Errorf("a grant by a closed bus: %v", err)
	}
	fresh, err := project(open(t, cfg))(t.Context())
	must(t, err)
	stale.Address = fresh.Address
	if _, err := connectWith(stale); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a credential of the previous hub: %v", err)
	}
}

func TestARevokedCredentialIsRefused(t *testing.T) {
	t.Parallel()
	s := newSiege(t)
	unused := s.grant("attacker")
	must(t, s.hub.Revoke(unused.User))
	if _, err := connectWith(unused); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a revoked credential: %v", err)
	}
	used := s.grant("attacker")
	closed := make(chan struct{})
	nc, err := connectWith(used, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	must(t, err)
	t.Cleanup(nc.Close)
	must(t, s.hub.Revoke(used.User))
	<-closed
	if !s.victim.Conn().IsConnected() {
		t.Error("another connection was cut")
	}
	if err := s.victim.Revoke(used.User); bus.CodeOf(err) != bus.CodeUnsupported {
		t.Errorf("Revoke on a joined bus: %v", err)
	}
	must(t, s.hub.Revoke("nobody"))
	if err := s.hub.Revoke("hub"); bus.CodeOf(err) != bus.CodeConfig || !s.hub.Conn().IsConnected() {
		t.Errorf("the hub's own user was revoked: %v", err)
	}
}

// The CONNECT command of NATS can name an account, and can be sent again.
//
// REQ-SEC-008, REQ-SEC-TEST-001
func TestTheProtocolOpensNoOtherAccount(t *testing.T) {
	t.Parallel()
	s := newSiege(t)
	connect := func(g bus.Grant, more string) string {
		return fmt.Sprintf(`CONNECT {"verbose":true,"user":%q,"pass":%q%s}`+"\r\n", g.User, string(g.Password), more)
	}
	for name, lines := range map[string]func() []string{
		"account":     func() []string { return []string{connect(s.grant("attacker"), `,"account":"ns-victim"`)} },
		"new account": func() []string { return []string{connect(s.grant("attacker"), `,"account":"x","new_account":true`)} },
		"nothing":     func() []string { return []string{"CONNECT {\"verbose\":true}\r\n"} },
		"no connect":  func() []string { return []string{"SUB > 1\r\n"} },
		"again": func() []string {
			g := s.grant("attacker")
			return []string{connect(g, ""), connect(g, `,"account":"ns-victim"`)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", s.grant("attacker").Address)
			must(t, err)
			defer conn.Close() //nolint:errcheck // the server has closed it
			must(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
			for _, line := range lines() {
				if _, err := conn.Write([]byte(line)); err != nil {
					return // refused at once
				}
			}
			for r := bufio.NewReader(conn); ; {
				line, err := r.ReadString('\n')
				if strings.HasPrefix(line, "-ERR 'Authorization Violation'") {
					return
				}
				if err != nil {
					t.Fatalf("not refused: %v", err)
				}
			}
		})
	}
	s.unharmed()
}

// The resources of one project's processes are limited.
func TestANamespaceIsLimited(t *testing.T) {
	t.Parallel()
	s := newSiege(t)
	nc := s.attacker()
	js, err := jetstream.New(nc)
	must(t, err)
	for name, cfg := range map[string]jetstream.StreamConfig{
		"without a size": {Name: "A", Subjects: []string{"a"}},
		"in memory":      {Name: "B", Subjects: []string{"b"}, MaxBytes: 1 << 20, Storage: jetstream.MemoryStorage},
		"too large":      {Name: "C", Subjects: []string{"c"}, MaxBytes: 1 << 50},
	} {
		if _, err := js.CreateStream(t.Context(), cfg); err == nil {
			t.Errorf("a stream %s was created", name)
		}
	}
	for i := range bus.MaxSubscriptions {
		_, err := nc.SubscribeSync(fmt.Sprintf("s.%d", i))
		must(t, err)
	}
	must(t, nc.Flush())
	_, err = nc.SubscribeSync("one.more")
	must(t, err)
	if err := nc.Flush(); err == nil && nc.LastError() == nil {
		t.Error("there is no limit of subscriptions")
	}
	s.unharmed()
}

func TestNamespacesAreValidated(t *testing.T) {
	t.Parallel()
	s := newSiege(t)
	for _, namespace := range []string{"", "global", "A", "a.b", "a b", "*", ">", "$SYS", "../x", "a/b", "ä", "a\n", strings.Repeat("a", 65)} {
		if _, err := s.hub.Grant(t.Context(), bus.GrantRequest{Namespace: namespace}); bus.CodeOf(err) != bus.CodeConfig {
			t.Errorf("namespace %q: %v", namespace, err)
		}
	}
	if _, err := s.hub.Grant(t.Context(), bus.GrantRequest{Namespace: "a", Access: "everything"}); bus.CodeOf(err) != bus.CodeConfig {
		t.Errorf("unknown access: %v", err)
	}
	if _, err := s.victim.Grant(t.Context(), bus.GrantRequest{Namespace: "a"}); bus.CodeOf(err) != bus.CodeUnsupported {
		t.Errorf("a grant by a joined bus: %v", err)
	}
}

// The number of unused grants is limited, and expired ones do not count.
func TestUnusedGrantsAreLimited(t *testing.T) {
	t.Parallel()
	u := bus.NewUsers()
	now := time.Now()
	for i := range bus.MaxUnused {
		if _, ok := u.Add(fmt.Sprint(i), now.Add(time.Minute)); !ok {
			t.Fatalf("refused at %d", i)
		}
	}
	if _, ok := u.Add("hub", time.Time{}); !ok {
		t.Error("a user without expiry is refused")
	}
	if _, ok := u.Add("more", now.Add(time.Minute)); ok {
		t.Error("there is no limit")
	}
	if !u.Take("5", u.Password("5")) || u.Take("5", u.Password("5")) {
		t.Error("a grant is valid for more than one connection")
	}
	expired, ok := u.Add("expired", now.Add(-time.Second))
	if !ok || u.Take("expired", expired) {
		t.Errorf("a grant that has expired: %t", ok)
	}
	if _, ok := u.Add("again", now.Add(time.Minute)); !ok {
		t.Error("an expired grant still counts")
	}
	for range 2 {
		if !u.Take("hub", u.Password("hub")) {
			t.Error("the hub's own user was removed")
		}
	}
}

// Concurrent joins of one namespace open one account. Its streams exist after a restart.
func TestNamespacesAreRestoredByTheFirstJoin(t *testing.T) {
	t.Parallel()
	cfg := bus.Config{DataDir: t.TempDir()}
	hub := open(t, cfg)
	ensureStream(t, join(t, hub), "S", "s.>")
	shut(t, hub)
	hub = open(t, cfg)
	if n := hub.Accounts(); n != 0 {
		t.Errorf("%d accounts are open before the first join", n)
	}
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			b, err := bus.Join(t.Context(), bus.Config{}, project(hub))
			if err != nil {
				t.Error(err)
				return
			}
			defer shut(t, b)
			if _, err := b.JetStream().Stream(t.Context(), "S"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := hub.Accounts(); n != 1 {
		t.Errorf("%d accounts", n)
	}
}

// The server keeps each subject of a permission in memory, so it gets none that another one includes.
func TestPermissionsAreDistinct(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ given, want []string }{
		{[]string{"a.b", "a.*", "a.c"}, []string{"a.*"}},
		{[]string{"a.b.c", "a.>", "a"}, []string{"a.>", "a"}},
		{[]string{"a.*.c", "a.b.*", "a.b.c"}, []string{"a.*.c", "a.b.*"}},
		{[]string{"a.*", "a.>"}, []string{"a.>"}},
		{[]string{"a", "b", "a"}, []string{"a", "b"}},
		{[]string{"a.b"}, []string{"a.b"}},
	} {
		if got := bus.Distinct(c.given); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.given, got, c.want)
		}
	}
}
