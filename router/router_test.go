package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
)

func nothing(context.Context, *envelope.Envelope) {}

func count(r *router.Router, t telemetry.EventType) int {
	n := 0
	for _, e := range r.Telemetry().Recent(0) {
		if e.Type == t {
			n++
		}
	}
	return n
}

// Req 12.1: sending and receiving emit an event each, with all fields of the envelope.
func TestSendingAndReceivingAreEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, router.Options{})
		for _, id := range []string{"mars", "venus", "saturn"} {
			register(t, r, card(id, agent.L2))
			r.OnReceive(id, nothing)
		}
		for _, to := range []string{"venus", "*"} {
			e := newEnvelope(t, "mars", to)
			if _, err := r.Send(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			got := map[telemetry.EventType]int{}
			for _, ev := range r.Telemetry().Recent(0) {
				if ev.EnvelopeID != e.ID || ev.Type != telemetry.MessageSent && ev.Type != telemetry.MessageReceived {
					continue
				}
				got[ev.Type]++
				if ev.Sender != "mars" || ev.Recipient != to || ev.MessageType != envelope.Request || ev.Timestamp == 0 {
					t.Errorf("to %s: %+v", to, ev)
				}
			}
			if want := map[string]int{"venus": 1, "*": 2}[to]; got[telemetry.MessageSent] != 1 || got[telemetry.MessageReceived] != want {
				t.Errorf("to %s: %v, want 1 sent and %d received", to, got, want)
			}
		}
	})
}

func TestSenderWithoutCardIsRefused(t *testing.T) {
	r := newRouter(t, router.Options{})
	register(t, r, card("venus", agent.L2))
	r.OnReceive("venus", nothing)
	_, err := r.Send(t.Context(), newEnvelope(t, "ghost", "venus"))
	if router.CodeOf(err) != router.CodeSenderUnknown || count(r, telemetry.Security) != 1 {
		t.Errorf("%v, %d security events", err, count(r, telemetry.Security))
	}
}

// Decision 4: the registered card decides; an envelope whose metadata contradict it is
// refused.
func TestForgedMetadataIsRefused(t *testing.T) {
	r := newRouter(t, router.Options{})
	sandboxed := card("io", agent.L3)
	sandboxed.SandboxID = "box"
	for _, c := range []agent.Card{card("mars", agent.L2), card("venus", agent.L2), sandboxed} {
		register(t, r, c)
		r.OnReceive(c.ID, nothing)
	}
	for name, tc := range map[string]struct {
		from string
		m    envelope.Metadata
	}{
		"a higher tier":     {"mars", envelope.Metadata{Tier: agent.L0}},
		"a lower tier":      {"mars", envelope.Metadata{Tier: agent.L3}},
		"a foreign sandbox": {"mars", envelope.Metadata{Tier: agent.L2, SandboxID: "box"}},
		"no sandbox":        {"io", envelope.Metadata{Tier: agent.L3}},
	} {
		before := count(r, telemetry.Security)
		e := newEnvelope(t, tc.from, "venus").With(func(e *envelope.Envelope) { e.Metadata = &tc.m })
		if _, err := r.Send(t.Context(), e); router.CodeOf(err) != router.CodeMetadataMismatch || count(r, telemetry.Security) != before+1 {
			t.Errorf("%s: %v, %d security events", name, err, count(r, telemetry.Security)-before)
		}
	}
}

func TestBroadcastListsSkippedAgents(t *testing.T) {
	r := newRouter(t, router.Options{})
	for id, tier := range map[string]agent.Tier{"mercury": agent.L1, "earth": agent.L1, "sun": agent.L0, "io": agent.L3} {
		register(t, r, card(id, tier))
		r.OnReceive(id, nothing)
	}
	register(t, r, card("jupiter", agent.L1)) // it has no receiver
	if _, err := r.Registry().Merge(card("far", agent.L1), "elsewhere"); err != nil {
		t.Fatal(err)
	}
	res, err := r.Send(t.Context(), newEnvelope(t, "mercury", "*"))
	if err != nil || !res.Delivered || res.Recipients != 2 {
		t.Fatalf("%+v, %v", res, err)
	}
	var got []string
	for _, s := range res.Skipped {
		got = append(got, s.AgentID+" "+string(s.Code))
		if s.Reason == "" {
			t.Errorf("%s: no reason", s.AgentID)
		}
	}
	slices.Sort(got)
	if want := []string{"far NO_RECEIVER", "io TIER_VIOLATION", "jupiter NO_RECEIVER"}; !slices.Equal(got, want) {
		t.Errorf("skipped %v, want %v", got, want)
	}
	data, err := json.Marshal(res)
	if err != nil || !strings.HasPrefix(string(data), `{"delivered":true,"path":"broadcast","targetAgentId":"*","latencyMs":`) {
		t.Errorf("%s, %v", data, err)
	}
}

func TestSlowReceiverDelaysNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, router.Options{Mailbox: 10})
		release := make(chan struct{})
		defer close(release)
		register(t, r, card("sun", agent.L0))
		fast := 0
		for i := range 50 {
			id := fmt.Sprint("agent-", i)
			register(t, r, card(id, agent.L0))
			r.OnReceive(id, func(ctx context.Context, _ *envelope.Envelope) {
				if i%5 == 0 {
					<-release
				}
				if id == "agent-1" {
					fast++
				}
			})
		}
		var last router.Result
		for range 30 {
			var err error
			if last, err = r.Send(t.Context(), newEnvelope(t, "sun", "*")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if fast != 30 || last.Recipients != 40 || len(last.Skipped) != 10 || last.Skipped[0].Code != router.CodeMailboxFull {
			t.Errorf("the fast receiver has %d of 30; the last broadcast: %+v", fast, last)
		}
		if _, err := r.Send(t.Context(), newEnvelope(t, "sun", "agent-0")); router.CodeOf(err) != router.CodeMailboxFull {
			t.Errorf("to a full mailbox: %v", err)
		}
	})
}

func TestSendWaitWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, router.Options{Mailbox: 1})
		release := make(chan struct{})
		register(t, r, card("mars", agent.L2))
		var got []string
		stop := r.OnReceive("mars", func(_ context.Context, e *envelope.Envelope) { <-release; got = append(got, e.ID) })
		var want []string
		go func() {
			for range 5 {
				e := newEnvelope(t, "mars", "mars")
				want = append(want, e.ID)
				if _, err := r.SendWait(t.Context(), e); err != nil {
					t.Error(err)
				}
			}
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.SendWait(ctx, newEnvelope(t, "mars", "mars")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a deadline: %v", err)
		}
		close(release)
		synctest.Wait()
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		stop()
		if _, err := r.SendWait(t.Context(), newEnvelope(t, "mars", "mars")); router.CodeOf(err) != router.CodeNoReceiver {
			t.Errorf("SendWait after the receiver stopped: %v", err)
		}
	})
}

func TestPanicAndGoexitDoNotStopDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, router.Options{})
		register(t, r, card("mars", agent.L2))
		n := 0
		r.OnReceive("mars", func(context.Context, *envelope.Envelope) { n++; panic("boom") })
		r.OnReceive("mars", func(context.Context, *envelope.Envelope) {
			if n == 2 {
				runtime.Goexit()
			}
		})
		for range 5 {
			if _, err := r.Send(t.Context(), newEnvelope(t, "mars", "mars")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n != 5 {
			t.Errorf("%d of 5 were handled", n)
		}
		found := false
		for _, e := range r.Telemetry().Recent(0) {
			found = found || e.Type == telemetry.ErrorEvent && e.Code == "PANIC" && strings.Contains(e.Detail, "boom") && e.Target == "mars"
		}
		if !found {
			t.Error("the panic was not reported")
		}
	})
}

func TestEnvelopesOfOneSenderStayInOrder(t *testing.T) {
	r := newRouter(t, router.Options{})
	register(t, r, card("mars", agent.L2))
	register(t, r, card("venus", agent.L2))
	var mu sync.Mutex
	var got []string
	r.OnReceive("venus", func(_ context.Context, e *envelope.Envelope) { mu.Lock(); got = append(got, e.ID); mu.Unlock() })
	var want []string
	for range 5000 {
		e := newEnvelope(t, "mars", "venus")
		want = append(want, e.ID)
		if _, err := r.SendWait(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	waitUntil(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == len(want) })
	if !slices.Equal(got, want) {
		t.Error("the envelopes arrived out of order")
	}
}

// Req 4.3: the router chooses the first allowed agent with the shortest queue.
func TestCapabilityPrefersIdleAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, router.Options{})
		release := make(chan struct{})
		defer close(release)
		register(t, r, card("mercury", agent.L1))
		for _, c := range []agent.Card{card("io", agent.L3, "work"), card("earth", agent.L1, "work"), card("jupiter", agent.L1, "work")} {
			register(t, r, c)
			r.OnReceive(c.ID, func(context.Context, *envelope.Envelope) { <-release })
		}
		f := envelope.NewFactory(agent.Identity{ID: "mercury", Tier: agent.L1})
		var got []string
		for range 4 {
			e, err := f.NewForCapability("work", envelope.Request, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := r.Send(t.Context(), e)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			got = append(got, res.TargetAgentID)
		}
		if want := []string{"earth", "jupiter", "earth", "jupiter"}; !slices.Equal(got, want) { // io has a tier that the sender may not address
			t.Errorf("delivered to %v, want %v", got, want)
		}
	})
}

func TestCapabilityWithoutAnAllowedAgentFails(t *testing.T) {
	r := newRouter(t, router.Options{})
	register(t, r, card("mercury", agent.L1))
	register(t, r, card("io", agent.L3, "work"))
	f := envelope.NewFactory(agent.Identity{ID: "mercury", Tier: agent.L1})
	e, err := f.NewForCapability("work", envelope.Request, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Send(t.Context(), e); router.CodeOf(err) != router.CodeNoReceiver {
		t.Errorf("without a receiver: %v", err)
	}
	r.OnReceive("io", nothing)
	if _, err := r.Send(t.Context(), e); router.CodeOf(err) != router.CodeTierViolation || count(r, telemetry.Security) != 1 {
		t.Errorf("above its tier: %v", err)
	}
}

// failing is a source whose queries fail.
type failing struct{ finder }

var errLocked = errors.New("it wants its bearer token")

func (failing) Find(context.Context, registry.Query) ([]agent.Card, error) { return nil, errLocked }

// An agent may be unknown only because a source failed, so the error names the source.
func TestErrorNamesTheFailedSource(t *testing.T) {
	r := newRouter(t, router.Options{})
	register(t, r, card("mars", agent.L0))
	if err := r.Registry().EnableDiscovery("hub", failing{}); err != nil {
		t.Fatal(err)
	}
	f := envelope.NewFactory(agent.Identity{ID: "mars", Tier: agent.L0})
	for _, make := range []func(string, envelope.Type, any) (*envelope.Envelope, error){f.New, f.NewForCapability} {
		e, err := make("nobody", envelope.Request, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := r.Send(t.Context(), e)
		if !errors.Is(err, errLocked) || !strings.Contains(res.Error, errLocked.Error()) {
			t.Errorf("%+v, %v", res, err)
		}
	}
}

// Req 4.4: the router tries remote cards and discovery sources before it returns an
// error.
func TestRemoteAgentsAndSourcesAreTriedBeforeTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []string
		r := newRouter(t, router.Options{Forwarder: forwarderFunc(func(_ context.Context, to string, e *envelope.Envelope) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, to)
			return nil
		})})
		register(t, r, card("mars", agent.L0))
		if _, err := r.Registry().Merge(card("far", agent.L2, "work"), "s"); err != nil {
			t.Fatal(err)
		}
		if err := r.Registry().EnableDiscovery("dht", finder{card("farther", agent.L2, "other-work")}); err != nil {
			t.Fatal(err)
		}
		f := envelope.NewFactory(agent.Identity{ID: "mars", Tier: agent.L0})
		for _, to := range []string{"far", "farther", "*"} {
			e, err := f.New(to, envelope.Request, nil)
			if err != nil {
				t.Fatal(err)
			}
			if res, err := r.Send(t.Context(), e); err != nil || to != "*" && res.Path != telemetry.PathRemote {
				t.Errorf("to %s: %+v, %v", to, res, err)
			}
			synctest.Wait()
		}
		r.Registry().Unregister("farther")
		for _, capability := range []string{"work", "other-work"} {
			e, err := f.NewForCapability(capability, envelope.Request, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Send(t.Context(), e); err != nil {
				t.Errorf("%s: %v", capability, err)
			}
			synctest.Wait()
		}
		broadcast := slices.Sorted(slices.Values(got[2:4])) // in any order
		if want := []string{"far", "farther"}; !slices.Equal(got[:2], want) || !slices.Equal(broadcast, want) || !slices.Equal(got[4:], want) {
			t.Errorf("forwarded to %v", got)
		}
		_, err := r.Send(t.Context(), newEnvelope(t, "mars", "nobody"))
		if router.CodeOf(err) != router.CodeAgentNotFound {
			t.Errorf("to an unknown agent: %v", err)
		}
	})
}

type finder struct{ card agent.Card }

func (finder) Discover(ctx context.Context, _ registry.Sink) error { <-ctx.Done(); return ctx.Err() }

func (f finder) Find(_ context.Context, q registry.Query) ([]agent.Card, error) {
	if q.ID == f.card.ID || q.ID == "" && f.card.Has(q.Capability) {
		return []agent.Card{f.card}, nil
	}
	return nil, nil
}

func TestForwarding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("the wire is cut")
		block := make(chan struct{})
		r := newRouter(t, router.Options{Mailbox: 2, Forwarder: forwarderFunc(func(ctx context.Context, to string, _ *envelope.Envelope) error {
			if to == "broken" {
				return down
			}
			if to == "slow" {
				<-block
			}
			return ctx.Err()
		})})
		register(t, r, card("mars", agent.L0))
		for _, id := range []string{"broken", "slow", "well"} {
			if _, err := r.Registry().Merge(card(id, agent.L2), "s"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.SendWait(t.Context(), newEnvelope(t, "mars", "well")); err != nil {
			t.Error(err)
		}
		if _, err := r.SendWait(t.Context(), newEnvelope(t, "mars", "broken")); router.CodeOf(err) != router.CodeDeliveryFailed || !errors.Is(err, down) {
			t.Errorf("SendWait: %v", err)
		}
		if res, err := r.Send(t.Context(), newEnvelope(t, "mars", "broken")); err != nil || !res.Delivered {
			t.Errorf("Send: %+v, %v", res, err)
		}
		synctest.Wait()
		if n := count(r, telemetry.DeliveryFailure); n != 2 {
			t.Errorf("%d delivery failures are recorded, want 2", n)
		}
		for i := range 4 {
			_, err := r.Send(t.Context(), newEnvelope(t, "mars", "slow"))
			synctest.Wait()
			if (router.CodeOf(err) == router.CodeMailboxFull) != (i == 3) {
				t.Errorf("envelope %d to the slow peer: %v", i, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.SendWait(ctx, newEnvelope(t, "mars", "well")); err != nil {
			t.Errorf("the slow peer delays another: %v", err)
		}
		close(block)
		synctest.Wait()
		if _, err := r.SendWait(t.Context(), newEnvelope(t, "mars", "slow")); err != nil {
			t.Error(err)
		}
	})
}

func TestReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, router.Options{})
		register(t, r, card("venus", agent.L2, "work"))
		register(t, r, card("local", agent.L2))
		for id, tier := range map[string]agent.Tier{"far": agent.L2, "low": agent.L1} {
			if _, err := r.Registry().Merge(card(id, tier), "s"); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		r.OnReceive("venus", func(context.Context, *envelope.Envelope) { n++ })
		byCapability := newEnvelope(t, "far", "work").With(func(e *envelope.Envelope) {
			e.Metadata = &envelope.Metadata{Tier: agent.L2, RoutingHint: envelope.ByCapability}
		})
		for name, tc := range map[string]struct {
			to   string
			e    *envelope.Envelope
			want router.Code
		}{
			"to its recipient":         {"venus", newEnvelope(t, "far", "venus"), ""},
			"a broadcast":              {"venus", newEnvelope(t, "far", "*"), ""},
			"by capability":            {"venus", byCapability, ""},
			"to another":               {"venus", newEnvelope(t, "far", "local"), router.CodeAgentNotFound},
			"of a local agent":         {"venus", newEnvelope(t, "local", "venus"), router.CodeSenderUnknown},
			"of nobody":                {"venus", newEnvelope(t, "ghost", "venus"), router.CodeSenderUnknown},
			"against the tiers":        {"venus", newEnvelope(t, "low", "venus"), router.CodeTierViolation},
			"for nobody":               {"ghost", newEnvelope(t, "far", "ghost"), router.CodeAgentNotFound},
			"for one without receiver": {"local", newEnvelope(t, "far", "local"), router.CodeNoReceiver},
			"that is not valid":        {"venus", &envelope.Envelope{}, router.CodeInvalidEnvelope},
		} {
			if _, err := r.Receive(t.Context(), tc.to, tc.e); router.CodeOf(err) != tc.want {
				t.Errorf("%s: %v, want %q", name, err, tc.want)
			}
		}
		synctest.Wait()
		if n != 3 {
			t.Errorf("venus got %d, want 3", n)
		}
		if m := r.Telemetry().Metrics(); m.TotalMessagesSent != 0 || m.TotalMessagesReceived != 3 {
			t.Errorf("counted %d sent and %d received", m.TotalMessagesSent, m.TotalMessagesReceived)
		}
	})
}

func TestInvalidEnvelopesAreRefused(t *testing.T) {
	audit := new(auditLog)
	r := newRouter(t, router.Options{Audit: audit, MaxEnvelope: 1000})
	register(t, r, card("mars", agent.L2))
	_, err := r.Send(t.Context(), &envelope.Envelope{Sender: "mars", Recipient: "mars"})
	var cause *envelope.Error
	if router.CodeOf(err) != router.CodeInvalidEnvelope || !errors.As(err, &cause) {
		t.Errorf("got %v", err)
	}
	big := newEnvelope(t, "mars", "mars").With(func(e *envelope.Envelope) { e.Payload = json.RawMessage(`"` + strings.Repeat("x", 1000) + `"`) })
	if _, err := r.Send(t.Context(), big); router.CodeOf(err) != router.CodeInvalidEnvelope {
		t.Errorf("got %v", err)
	}
	if len(audit.events) != 2 || audit.with[0] != nil {
		t.Errorf("audit: %+v", audit.events)
	}
}

func TestAuditFailureIsReported(t *testing.T) {
	r := newRouter(t, router.Options{Audit: &auditLog{err: errors.New("disk full")}})
	register(t, r, card("mars", agent.L2))
	r.OnReceive("mars", nothing)
	if _, err := r.Send(t.Context(), newEnvelope(t, "mars", "mars")); err != nil {
		t.Error(err)
	}
	found := false
	for _, e := range r.Telemetry().Recent(0) {
		found = found || e.Code == "AUDIT_FAILED" && strings.Contains(e.Detail, "disk full")
	}
	if !found {
		t.Error("the audit failure was not reported")
	}
}

// Req 2.4: a router keeps threads without any option, each from the message that opens it.
func TestThreadsAreCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, router.Options{})
		register(t, r, card("mars", agent.L2))
		register(t, r, card("venus", agent.L2))
		mars, err := r.Attach("mars", nothing)
		if err != nil {
			t.Fatal(err)
		}
		defer mars.Close()
		var venus *router.Port
		venus, err = r.Attach("venus", func(ctx context.Context, e *envelope.Envelope) {
			if _, err := venus.Reply(ctx, e, envelope.Response, nil); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer venus.Close()
		opening := newEnvelope(t, "mars", "venus")
		if _, err := mars.SendEnvelope(t.Context(), opening); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := r.Threads().Thread(opening.Thread())
		if len(got) != 2 || got[0].ID != opening.ID || got[1].Type != envelope.Response || got[1].Thread() != opening.Thread() {
			t.Errorf("got %v", got)
		}
	})
}

// Handlers that an agent gets because of an envelope get this envelope, and each once; a panic costs nothing but an event.
func TestHandlersMayBePreparedByTheFirstEnvelope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *router.Router
		var got []string
		prepared := 0
		r = newRouter(t, router.Options{Prepare: func(id string, e *envelope.Envelope) {
			if prepared++; prepared > 1 {
				panic("again")
			}
			r.OnReceive(id, func(_ context.Context, e *envelope.Envelope) { got = append(got, "late "+string(e.Payload)) })
		}})
		for _, id := range []string{"mars", "venus"} {
			register(t, r, card(id, agent.L2))
		}
		r.OnReceive("venus", func(_ context.Context, e *envelope.Envelope) { got = append(got, "early "+string(e.Payload)) })
		for i := range 2 {
			e, err := envelope.New("mars", "venus", envelope.Notification, i)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Send(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if want := []string{"early 0", "late 0", "early 1", "late 1"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if !slices.ContainsFunc(r.Telemetry().Recent(0), func(e telemetry.Event) bool { return strings.Contains(e.Detail, "Options.Prepare") }) {
			t.Error("no event about the panic")
		}
	})
}

func TestPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(t, router.Options{})
		register(t, r, card("mars", agent.L2, "work"))
		register(t, r, card("venus", agent.L2))
		if _, err := r.Attach("ghost", nothing); router.CodeOf(err) != router.CodeAgentNotFound {
			t.Errorf("a port of an unknown agent: %v", err)
		}
		var got []string
		mars, err := r.Attach("mars", func(_ context.Context, e *envelope.Envelope) { got = append(got, e.Sender+string(e.Payload)) })
		if err != nil {
			t.Fatal(err)
		}
		venus, err := r.Attach("venus", nothing)
		if err != nil {
			t.Fatal(err)
		}
		if mars.ID() != "mars" {
			t.Error(mars.ID())
		}
		for _, send := range []func() (router.Result, error){
			func() (router.Result, error) { return venus.Send(t.Context(), "mars", envelope.Request, 1) },
			func() (router.Result, error) { return venus.SendToCapability(t.Context(), "work", envelope.Request, 2) },
			func() (router.Result, error) { return venus.SendEnvelope(t.Context(), newEnvelope(t, "venus", "*")) },
		} {
			if _, err := send(); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if want := []string{"venus1", "venus2", `venus"hello"`}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if _, err := venus.SendEnvelope(t.Context(), newEnvelope(t, "mars", "venus")); router.CodeOf(err) != router.CodeSenderUnknown || count(r, telemetry.Security) != 1 {
			t.Errorf("with another sender: %v", err)
		}
		if _, err := venus.Send(t.Context(), "", envelope.Request, nil); router.CodeOf(err) != router.CodeInvalidEnvelope {
			t.Errorf("without a recipient: %v", err)
		}
		if view, err := venus.Discover(); err != nil || len(view.All()) != 2 {
			t.Errorf("Discover: %v", err)
		}
		mars.Close()
		if _, err := venus.Send(t.Context(), "mars", envelope.Request, nil); router.CodeOf(err) != router.CodeNoReceiver {
			t.Errorf("after Close: %v", err)
		}
		r.Registry().Unregister("venus")
		if _, err := venus.Send(t.Context(), "mars", envelope.Request, nil); router.CodeOf(err) != router.CodeSenderUnknown {
			t.Errorf("without a card: %v", err)
		}
		if _, err := venus.Discover(); router.CodeOf(err) != router.CodeAgentNotFound {
			t.Errorf("Discover without a card: %v", err)
		}
	})
}

func TestInvalidConfigurationsAreRefused(t *testing.T) {
	reg := registry.New(registry.Options{})
	defer reg.Close()
	for _, rules := range [][]router.TierRule{{{SourceTier: 9}}, {{SourceTier: agent.L1, AllowedTargetTiers: []agent.Tier{agent.NoTier}}}} {
		if _, err := router.New(reg, router.Options{Tiers: &router.TierConfig{Rules: rules}}); err == nil {
			t.Errorf("%+v was accepted", rules)
		}
	}
	r := newRouter(t, router.Options{})
	register(t, r, card("mars", agent.L2))
	r.OnReceive("mars", nothing)
	if err := r.SetTierConfig(router.TierConfig{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Send(t.Context(), newEnvelope(t, "mars", "mars")); router.CodeOf(err) != router.CodeTierViolation {
		t.Errorf("a tier without a rule: %v", err)
	}
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := registry.New(registry.Options{})
		defer reg.Close()
		r, err := router.New(reg, router.Options{Forwarder: forwarderFunc(func(ctx context.Context, _ string, _ *envelope.Envelope) error {
			<-ctx.Done()
			return ctx.Err()
		})})
		if err != nil {
			t.Fatal(err)
		}
		register(t, r, card("mars", agent.L2))
		if _, err := reg.Merge(card("far", agent.L2), "s"); err != nil {
			t.Fatal(err)
		}
		n := 0
		release := make(chan struct{})
		r.OnReceive("mars", func(ctx context.Context, _ *envelope.Envelope) { n++; <-ctx.Done(); <-release })
		for _, to := range []string{"mars", "mars", "far", "far"} {
			if _, err := r.Send(t.Context(), newEnvelope(t, "mars", to)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close with a receiver that does not return: %v", err)
		}
		close(release)
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n != 1 {
			t.Errorf("%d were handled, want 1", n)
		}
		for _, to := range []string{"mars", "far", "*"} {
			if _, err := r.Send(t.Context(), newEnvelope(t, "mars", to)); router.CodeOf(err) != router.CodeClosed {
				t.Errorf("to %s after Close: %v", to, err)
			}
		}
		if _, err := r.Receive(t.Context(), "mars", newEnvelope(t, "far", "mars")); router.CodeOf(err) != router.CodeClosed {
			t.Errorf("Receive after Close: %v", err)
		}
	})
}

// fakeTracer records the calls of the router.
type fakeTracer struct {
	mu  sync.Mutex
	log []string
}

func (f *fakeTracer) add(s string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, s)
}

type spanKey struct{}

func (f *fakeTracer) Send(ctx context.Context, from agent.Identity, e *envelope.Envelope) (*envelope.Envelope, func(error)) {
	f.add(fmt.Sprintf("send %s %v", e.Sender, ctx.Value(spanKey{})))
	traced := e.With(func(e *envelope.Envelope) {
		e.Metadata = &envelope.Metadata{Tier: from.Tier, TraceParent: "here"}
	})
	return traced, func(err error) { f.add(fmt.Sprintf("sent %v", err)) }
}

func (f *fakeTracer) Receive(ctx context.Context, id string, e *envelope.Envelope) (context.Context, func(error)) {
	f.add(fmt.Sprintf("receive %s %s", id, e.Metadata.TraceParent))
	return context.WithValue(ctx, spanKey{}, "span of "+id), func(err error) { f.add(fmt.Sprintf("received %v", err)) }
}

func TestTracing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer := new(fakeTracer)
		r := newRouter(t, router.Options{Tracer: tracer})
		register(t, r, card("mars", agent.L2))
		register(t, r, card("venus", agent.L2))
		r.OnReceive("venus", nothing)
		r.OnReceive("mars", func(ctx context.Context, _ *envelope.Envelope) {
			if _, err := r.Send(ctx, newEnvelope(t, "mars", "venus")); err != nil {
				t.Error(err)
			}
			panic("late")
		})
		if _, err := r.Send(t.Context(), newEnvelope(t, "venus", "mars")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, want := range []string{"send venus <nil>", "receive mars here", "send mars span of mars", "receive venus here", "received <nil>", `received the receiver of "mars" panicked: late`} {
			if !slices.Contains(tracer.log, want) {
				t.Errorf("%v lacks %q", tracer.log, want)
			}
		}
	})
}

func TestPermitAgreesWithSend(t *testing.T) {
	r := newRouter(t, router.Options{})
	register(t, r, card("sun", agent.L0))
	register(t, r, card("earth", agent.L1))
	register(t, r, card("venus", agent.L2))
	boxed := card("boxed", agent.L0)
	boxed.SandboxID = "s"
	register(t, r, boxed)
	for _, c := range []struct {
		from, to string
		want     router.Code
	}{
		{"sun", "venus", ""},
		{"venus", "sun", ""}, // only a task-proposal needs a justification
		{"earth", "venus", router.CodeTierViolation},
		{"boxed", "sun", router.CodeSandboxViolation},
		{"nobody", "sun", router.CodeSenderUnknown},
		{"sun", "nobody", router.CodeAgentNotFound},
	} {
		if err := r.Permit(c.from, c.to); router.CodeOf(err) != c.want {
			t.Errorf("%s to %s: %v, want %q", c.from, c.to, err, c.want)
		}
	}
	if n := len(r.Telemetry().Recent(0)); n != 0 {
		t.Errorf("Permit emitted %d events", n)
	}
}

func TestTheCauseOfAnErrorIsNamedOnce(t *testing.T) {
	r := newRouter(t, router.Options{})
	register(t, r, card("mars", agent.L2))
	port, err := r.Attach("mars", nothing)
	if err != nil {
		t.Fatal(err)
	}
	e := newEnvelope(t, "mars", "mars")
	e.Timestamp = -1
	result, err := port.SendEnvelope(t.Context(), e)
	if router.CodeOf(err) != router.CodeInvalidEnvelope || strings.Count(err.Error(), "timestamp is negative") != 1 || result.Error != err.Error() {
		t.Errorf("%v; %+v", err, result)
	}
	result, err = port.Send(t.Context(), "mars", "a call", 1)
	if router.CodeOf(err) != router.CodeInvalidEnvelope || strings.Count(err.Error(), "a call") != 1 || result.Error != err.Error() {
		t.Errorf("%v; %+v", err, result)
	}
}
