package negotiation_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
	Cleanup(func())
}

// table is a router with agents that negotiate and record the envelopes they receive.
type table struct {
	t tb
	r *router.Router

	mu  sync.Mutex
	got map[string][]*envelope.Envelope
}

func newTable(t tb) *table {
	t.Helper()
	reg := registry.New(registry.Options{})
	r, err := router.New(reg, router.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.Close(context.Background()), reg.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &table{t: t, r: r, got: make(map[string][]*envelope.Envelope)}
}

func (w *table) join(id string, tier agent.Tier, o negotiation.Options) *negotiation.Negotiator {
	w.t.Helper()
	if _, err := w.r.Registry().Register(agent.Card{ID: id, Name: id, Version: "1.0.0", Tier: tier, Capabilities: []agent.Capability{}}); err != nil {
		w.t.Fatal(err)
	}
	w.r.OnReceive(id, func(_ context.Context, e *envelope.Envelope) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.got[id] = append(w.got[id], e)
	})
	n, err := negotiation.New(w.r, id, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := n.Close(); err != nil {
			w.t.Errorf("close: %v", err)
		}
	})
	return n
}

// arrived returns the envelopes of a type that an agent received, once all agents are idle.
func (w *table) arrived(id string, t envelope.Type) []*envelope.Envelope {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.got[id]), func(e *envelope.Envelope) bool { return e.Type != t })
}

// send sends an envelope for an agent that its negotiator would not send.
func (w *table) send(from, to, thread string, t envelope.Type, payload any) {
	w.t.Helper()
	e, err := envelope.New(from, to, t, payload)
	if err != nil {
		w.t.Fatal(err)
	}
	e.CorrelationID = thread
	if _, err := w.r.Send(context.Background(), e); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *table) events(code negotiation.Code) []telemetry.Event {
	return slices.DeleteFunc(w.r.Telemetry().Recent(0), func(e telemetry.Event) bool { return e.Code != string(code) })
}

func fields(t tb, e *envelope.Envelope) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(e.Payload, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func terms() negotiation.Terms {
	return negotiation.Terms{
		TaskDescription: "build the login page", RequiredCapabilities: []string{"codegen.react"},
		EstimatedComplexity: negotiation.Medium, Deadline: time.Minute,
	}
}

func wantCode(t tb, err error, want negotiation.Code) {
	t.Helper()
	if negotiation.CodeOf(err) != want {
		t.Fatalf("error %v, want code %s", err, want)
	}
}

func propose(t tb, n *negotiation.Negotiator, to string, terms negotiation.Terms) negotiation.Proposal {
	t.Helper()
	p, err := n.Propose(context.Background(), to, terms)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func status(t tb, n *negotiation.Negotiator, id string) negotiation.Status {
	t.Helper()
	p, err := n.Proposal(id)
	if err != nil {
		t.Fatal(err)
	}
	return p.Status
}

func genTerms() *rapid.Generator[negotiation.Terms] {
	return rapid.Custom(func(t *rapid.T) negotiation.Terms {
		return negotiation.Terms{
			TaskDescription:         rapid.StringMatching(`[a-zé"\\<>]{1,40}`).Draw(t, "description"),
			RequiredCapabilities:    rapid.SliceOfN(rapid.StringMatching(`[a-z]{1,6}\.[a-z]{1,6}`), 0, 4).Draw(t, "capabilities"),
			EstimatedComplexity:     rapid.SampledFrom([]negotiation.Complexity{negotiation.Simple, negotiation.Medium, negotiation.Complex}).Draw(t, "complexity"),
			Deadline:                time.Duration(rapid.Int64Range(1, int64(negotiation.MaxDeadline/time.Millisecond)).Draw(t, "deadline")) * time.Millisecond,
			EscalationJustification: "the operation is blocked",
		}
	})
}

// check runs a property in a bubble, where synctest.Wait waits until all receivers are idle.
func check(t *testing.T, prop func(t *rapid.T)) {
	rapid.Check(t, func(t *rapid.T) { rapid.SyncTest(t, prop) })
}

// Feature: a2a-mcp-protocols, Property 23: Task negotiation message structure
// (Req 7.1, 7.2, 7.3).
func TestProperty23ProposalsAndAnswersAreComplete(t *testing.T) {
	check(t, func(t *rapid.T) {
		w := newTable(t)
		tiers := rapid.SampledFrom([]agent.Tier{agent.L0, agent.L3})
		proposer := w.join("proposer", tiers.Draw(t, "from"), negotiation.Options{})
		worker := w.join("worker", tiers.Draw(t, "to"), negotiation.Options{})
		want := genTerms().Draw(t, "terms")
		p := propose(t, proposer, "worker", want)

		sent := fields(t, w.arrived("worker", envelope.TaskProposal)[0])
		if sent["taskDescription"] != want.TaskDescription || sent["estimatedComplexity"] != string(want.EstimatedComplexity) ||
			sent["deadlineMs"] != float64(want.Deadline.Milliseconds()) {
			t.Fatalf("the proposal says %v, want %+v", sent, want)
		}
		if got := fmt.Sprint(sent["requiredCapabilities"]); got != fmt.Sprint(want.RequiredCapabilities) {
			t.Fatalf("requiredCapabilities %v, want %v", got, want.RequiredCapabilities)
		}
		if rapid.Bool().Draw(t, "accept") {
			estimate := rapid.Int64Range(1, 1<<30).Draw(t, "estimate")
			if err := worker.Accept(context.Background(), p.ID, time.Duration(estimate)*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			a := fields(t, w.arrived("proposer", envelope.TaskAccept)[0])
			if a["agentId"] != "worker" || a["estimatedCompletionMs"] != float64(estimate) || a["proposalId"] != p.ID {
				t.Fatalf("the acceptance says %v", a)
			}
			return
		}
		alternative := rapid.SampledFrom([]string{"", "venus"}).Draw(t, "alternative")
		if err := worker.Reject(context.Background(), p.ID, negotiation.Rejection{Reason: negotiation.Busy, Alternative: alternative}); err != nil {
			t.Fatal(err)
		}
		a := fields(t, w.arrived("proposer", envelope.TaskReject)[0])
		if got, _ := a["alternativeSuggestion"].(string); a["rejectionReason"] != "busy" || got != alternative {
			t.Fatalf("the rejection is %v", a)
		}
	})
}

// Feature: a2a-mcp-protocols, Property 24: Task acceptance creates correlation
// thread (Req 7.5).
func TestProperty24AnAcceptedTaskHasOneThread(t *testing.T) {
	check(t, func(t *rapid.T) {
		w := newTable(t)
		sun := w.join("sun", agent.L0, negotiation.Options{})
		venus := w.join("venus", agent.L2, negotiation.Options{})
		ask := terms()
		ask.CorrelationID = rapid.SampledFrom([]string{"", "swarm-1"}).Draw(t, "thread")
		p := propose(t, sun, "venus", ask)
		synctest.Wait()
		if err := venus.Accept(context.Background(), p.ID, time.Minute); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := []envelope.Type{envelope.TaskProposal, envelope.TaskAccept}
		for range rapid.IntRange(0, 5).Draw(t, "messages") {
			said := rapid.SampledFrom([]envelope.Type{envelope.Notification, envelope.Request, envelope.Response}).Draw(t, "type")
			who := rapid.SampledFrom([]*negotiation.Negotiator{sun, venus}).Draw(t, "who")
			if err := who.Send(context.Background(), p.ID, said, "progress"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			want = append(want, said)
		}
		for _, n := range []*negotiation.Negotiator{sun, venus} {
			var got []envelope.Type
			for _, e := range n.Thread(p.CorrelationID) {
				if e.CorrelationID != p.CorrelationID {
					t.Fatalf("%s is of thread %q, want %q", e.Type, e.CorrelationID, p.CorrelationID)
				}
				got = append(got, e.Type)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("the thread has %v, want %v", got, want)
			}
		}
	})
}

func TestAnAcceptanceReachesTheWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable(t)
		sun, venus := w.join("sun", agent.L0, negotiation.Options{}), w.join("venus", agent.L2, negotiation.Options{})
		venus.OnProposal(func(ctx context.Context, p negotiation.Proposal) {
			if p.Proposer != "sun" || p.Status != negotiation.Pending {
				t.Errorf("proposal %+v", p)
			}
			if err := venus.Accept(ctx, p.ID, time.Second); err != nil {
				t.Error(err)
			}
		})
		p := propose(t, sun, "venus", terms())
		got, err := sun.Wait(context.Background(), p.ID)
		if err != nil || got.Status != negotiation.Accepted || got.AcceptedBy != "venus" || got.EstimatedCompletionMs != 1000 {
			t.Fatalf("got %+v, %v", got, err)
		}
		synctest.Wait() // the other agent must finish too
		if n := len(sun.Pending()) + len(venus.Pending()); n != 0 {
			t.Fatalf("%d proposals are still pending", n)
		}
	})
}

// An unanswered proposal times out, and the proposer is notified (Req 7.4).
func TestAnUnansweredProposalTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable(t)
		sun, venus := w.join("sun", agent.L0, negotiation.Options{}), w.join("venus", agent.L2, negotiation.Options{})
		notified := make(chan negotiation.Proposal, 2)
		sun.OnSettled(func(_ context.Context, p negotiation.Proposal) { notified <- p })
		began := time.Now()
		p := propose(t, sun, "venus", terms())
		if got := <-notified; got.ID != p.ID || got.Status != negotiation.TimedOut || time.Since(began) != time.Minute {
			t.Fatalf("received %+v after %v", got, time.Since(began))
		}
		synctest.Wait()
		if got := status(t, venus, p.ID); got != negotiation.TimedOut {
			t.Fatalf("at the other agent it is still %s", got)
		}
		wantCode(t, venus.Accept(context.Background(), p.ID, time.Second), negotiation.CodeTimeout)
		if n := len(w.events(negotiation.CodeTimeout)); n != 2 {
			t.Fatalf("%d timeout events, want one per agent", n)
		}
	})
}

// frozen is a clock whose timers never fire.
type frozen struct{}

func (frozen) AfterFunc(time.Duration, func()) func() bool { return func() bool { return true } }

func TestALateAcceptanceIsRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable(t)
		sun := w.join("sun", agent.L0, negotiation.Options{})
		venus := w.join("venus", agent.L2, negotiation.Options{Clock: frozen{}}) // its deadline never passes
		notified := make(chan negotiation.Proposal, 1)
		venus.OnSettled(func(_ context.Context, p negotiation.Proposal) { notified <- p })
		p := propose(t, sun, "venus", terms())
		if got, err := sun.Wait(context.Background(), p.ID); err != nil || got.Status != negotiation.TimedOut {
			t.Fatalf("got %+v, %v", got, err)
		}
		if err := venus.Accept(context.Background(), p.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		if got := <-notified; got.Status != negotiation.TimedOut {
			t.Fatalf("the late agent received %+v", got)
		}
		if got := status(t, sun, p.ID); got != negotiation.TimedOut {
			t.Fatalf("the late answer made it %s", got)
		}
	})
}

func TestOnlyTheFirstAnswerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable(t)
		sun, venus := w.join("sun", agent.L0, negotiation.Options{}), w.join("venus", agent.L2, negotiation.Options{})
		p := propose(t, sun, "venus", terms())
		synctest.Wait()
		if err := venus.Accept(context.Background(), p.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		wantCode(t, venus.Reject(context.Background(), p.ID, negotiation.Rejection{Reason: negotiation.Busy}), negotiation.CodeSettled)
		w.send("venus", "sun", p.CorrelationID, envelope.TaskReject, map[string]any{"proposalId": p.ID, "agentId": "venus", "rejectionReason": "busy"})
		w.send("venus", "sun", p.CorrelationID, envelope.TaskAccept, map[string]any{"proposalId": p.ID, "agentId": "venus", "estimatedCompletionMs": 5})
		got, err := sun.Proposal(p.ID)
		if err != nil || got.Status != negotiation.Accepted || got.EstimatedCompletionMs != 1000 {
			t.Fatalf("got %+v, %v", got, err)
		}
		if n := len(w.events(negotiation.CodeSettled)); n != 2 {
			t.Fatalf("%d events, want 2", n)
		}
		if got := status(t, venus, p.ID); got != negotiation.Accepted {
			t.Fatalf("after a repeated answer it is %s", got)
		}
	})
}

func TestAForgedAnswerIsASecurityEvent(t *testing.T) {
	for name, forge := range map[string]func(w *table, p negotiation.Proposal){
		"by another agent": func(w *table, p negotiation.Proposal) {
			w.send("mars", "sun", p.CorrelationID, envelope.TaskAccept, map[string]any{"proposalId": p.ID, "agentId": "mars", "estimatedCompletionMs": 5})
		},
		"in the name of the agent asked": func(w *table, p negotiation.Proposal) {
			w.send("mars", "sun", p.CorrelationID, envelope.TaskAccept, map[string]any{"proposalId": p.ID, "agentId": "venus", "estimatedCompletionMs": 5})
		},
		"for another agent": func(w *table, p negotiation.Proposal) {
			w.send("venus", "sun", p.CorrelationID, envelope.TaskAccept, map[string]any{"proposalId": p.ID, "agentId": "mars", "estimatedCompletionMs": 5})
		},
		"in another thread": func(w *table, p negotiation.Proposal) {
			w.send("venus", "sun", "elsewhere", envelope.TaskReject, map[string]any{"proposalId": p.ID, "agentId": "venus", "rejectionReason": "busy"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTable(t)
				sun := w.join("sun", agent.L0, negotiation.Options{})
				w.join("venus", agent.L2, negotiation.Options{})
				w.join("mars", agent.L2, negotiation.Options{})
				p := propose(t, sun, "venus", terms())
				synctest.Wait()
				forge(w, p)
				if got := status(t, sun, p.ID); got != negotiation.Pending {
					t.Fatalf("after the forged answer it is %s", got)
				}
				events := w.events(negotiation.CodeForged)
				if len(events) != 1 || events[0].Type != telemetry.Security {
					t.Fatalf("events %+v, want one security event", events)
				}
			})
		})
	}
}

func TestInvalidProposalsAreRejected(t *testing.T) {
	whole := func(change func(m map[string]any)) map[string]any {
		m := map[string]any{
			"proposalId": "p1", "taskDescription": "x", "requiredCapabilities": []string{}, "estimatedComplexity": "simple", "deadlineMs": 1000,
		}
		change(m)
		return m
	}
	for name, payload := range map[string]any{
		"not an object":      []int{1},
		"no description":     whole(func(m map[string]any) { delete(m, "taskDescription") }),
		"no capabilities":    whole(func(m map[string]any) { delete(m, "requiredCapabilities") }),
		"strange capability": whole(func(m map[string]any) { m["requiredCapabilities"] = []string{"a b"} }),
		"no complexity":      whole(func(m map[string]any) { delete(m, "estimatedComplexity") }),
		"no deadline":        whole(func(m map[string]any) { delete(m, "deadlineMs") }),
		"endless deadline":   whole(func(m map[string]any) { m["deadlineMs"] = int64(1) << 62 }),
		"endless complexity": whole(func(m map[string]any) { m["estimatedComplexity"] = strings.Repeat("x", 1<<16) }),
		"endless id":         whole(func(m map[string]any) { m["proposalId"] = strings.Repeat("x", 1<<16) }),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTable(t)
				w.join("sun", agent.L0, negotiation.Options{})
				venus := w.join("venus", agent.L2, negotiation.Options{})
				venus.OnProposal(func(_ context.Context, p negotiation.Proposal) { t.Errorf("the agent received %+v", p) })
				w.send("sun", "venus", "", envelope.TaskProposal, payload)
				answers := w.arrived("sun", envelope.TaskReject)
				if len(answers) != 1 || fields(t, answers[0])["rejectionReason"] != "invalid-proposal" {
					t.Fatalf("answers %v, want one rejection", answers)
				}
				if text, _ := fields(t, answers[0])["message"].(string); text == "" || len(answers[0].Payload) > 2000 {
					t.Errorf("the rejection is %.100s, %d bytes", text, len(answers[0].Payload))
				}
				for _, event := range w.events(negotiation.CodeInvalid) {
					if len(event.Detail) > 1000 {
						t.Errorf("the event has %d bytes of the proposer's", len(event.Detail))
					}
				}
			})
		})
	}
}

// A proposal without an id, as the specification's schema permits, takes the id of its envelope.
func TestAProposalWithoutAnIDTakesTheEnvelopesID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable(t)
		w.join("sun", agent.L0, negotiation.Options{})
		venus := w.join("venus", agent.L2, negotiation.Options{})
		venus.OnProposal(func(ctx context.Context, p negotiation.Proposal) {
			if err := venus.Accept(ctx, p.ID, time.Minute); err != nil {
				t.Error(err)
			}
		})
		w.send("sun", "venus", "", envelope.TaskProposal, map[string]any{
			"taskDescription": "x", "requiredCapabilities": []string{}, "estimatedComplexity": "simple", "deadlineMs": 1000,
		})
		asked, answers := w.arrived("venus", envelope.TaskProposal), w.arrived("sun", envelope.TaskAccept)
		if len(asked) != 1 || len(answers) != 1 {
			t.Fatalf("%d proposals, %d acceptances", len(asked), len(answers))
		}
		if got := fields(t, answers[0])["proposalId"]; got != asked[0].ID || answers[0].CorrelationID != asked[0].ID {
			t.Errorf("the answer is to %v in thread %q, want %q", got, answers[0].CorrelationID, asked[0].ID)
		}
	})
}

func TestProposeRefusesInvalidTerms(t *testing.T) {
	for name, change := range map[string]func(x *negotiation.Terms){
		"no description":      func(x *negotiation.Terms) { x.TaskDescription = " " },
		"bytes, not text":     func(x *negotiation.Terms) { x.TaskDescription = "\xff" },
		"unknown complexity":  func(x *negotiation.Terms) { x.EstimatedComplexity = "huge" },
		"no deadline":         func(x *negotiation.Terms) { x.Deadline = 0 },
		"under a millisecond": func(x *negotiation.Terms) { x.Deadline = time.Microsecond },
		"too long":            func(x *negotiation.Terms) { x.Deadline = negotiation.MaxDeadline + time.Millisecond },
		"too many":            func(x *negotiation.Terms) { x.RequiredCapabilities = make([]string, negotiation.MaxCapabilities+1) },
		"input is not JSON":   func(x *negotiation.Terms) { x.Input = json.RawMessage("{") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newTable(t)
			sun := w.join("sun", agent.L0, negotiation.Options{})
			w.join("venus", agent.L2, negotiation.Options{})
			x := terms()
			change(&x)
			_, err := sun.Propose(context.Background(), "venus", x)
			wantCode(t, err, negotiation.CodeInvalid)
		})
	}
}

// A proposal to a higher tier needs a justification (Req 11.2).
func TestAProposalToAHigherTierNeedsAJustification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable(t)
		mars := w.join("mars", agent.L2, negotiation.Options{})
		w.join("sun", agent.L0, negotiation.Options{})
		_, err := mars.Propose(context.Background(), "sun", terms())
		wantCode(t, err, negotiation.CodeSend)
		if router.CodeOf(err) != router.CodeEscalationRequired {
			t.Fatalf("the cause is %v", err)
		}
		if n := len(mars.Pending()); n != 0 {
			t.Fatalf("%d proposals are pending, but none was sent", n)
		}
		x := terms()
		x.EscalationJustification = "the budget is spent"
		propose(t, mars, "sun", x)
	})
}

func TestOnlyTheAddresseeAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable(t)
		sun, venus := w.join("sun", agent.L0, negotiation.Options{}), w.join("venus", agent.L2, negotiation.Options{})
		p := propose(t, sun, "venus", terms())
		synctest.Wait()
		wantCode(t, sun.Accept(context.Background(), p.ID, time.Second), negotiation.CodeNotYours)
		wantCode(t, venus.Accept(context.Background(), "nothing", time.Second), negotiation.CodeNotFound)
		wantCode(t, venus.Accept(context.Background(), p.ID, 0), negotiation.CodeInvalid)
		wantCode(t, venus.Reject(context.Background(), p.ID, negotiation.Rejection{Reason: "Too busy"}), negotiation.CodeInvalid)
		wantCode(t, venus.Reject(context.Background(), p.ID, negotiation.Rejection{Reason: negotiation.Busy, Alternative: "a b"}), negotiation.CodeInvalid)
		_, err := sun.Propose(context.Background(), "sun", terms())
		wantCode(t, err, negotiation.CodeInvalid)
		_, err = sun.Wait(context.Background(), "nothing")
		wantCode(t, err, negotiation.CodeNotFound)
	})
}

func TestAFloodOfProposalsIsRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable(t)
		sun := w.join("sun", agent.L0, negotiation.Options{})
		venus := w.join("venus", agent.L2, negotiation.Options{MaxPendingPerAgent: 3})
		for range 5 {
			propose(t, sun, "venus", terms())
		}
		turnedDown := w.arrived("sun", envelope.TaskReject)
		if len(turnedDown) != 2 || fields(t, turnedDown[0])["rejectionReason"] != "overloaded" {
			t.Fatalf("rejected: %v, want 2", turnedDown)
		}
		waiting := venus.Pending()
		if len(waiting) != 3 {
			t.Fatalf("%d proposals are pending, want 3", len(waiting))
		}
		if err := venus.Reject(context.Background(), waiting[0].ID, negotiation.Rejection{Reason: negotiation.Declined}); err != nil {
			t.Fatal(err)
		}
		propose(t, sun, "venus", terms())
		synctest.Wait()
		if n := len(venus.Pending()); n != 3 {
			t.Fatalf("%d proposals are pending, want 3", n)
		}
	})
}

func TestOpenProposalsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable(t)
		sun := w.join("sun", agent.L0, negotiation.Options{MaxPending: 2})
		w.join("venus", agent.L2, negotiation.Options{})
		propose(t, sun, "venus", terms())
		propose(t, sun, "venus", terms())
		_, err := sun.Propose(context.Background(), "venus", terms())
		wantCode(t, err, negotiation.CodeFull)
	})
}

func TestOldProposalsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable(t)
		sun := w.join("sun", agent.L0, negotiation.Options{MaxSettled: 2})
		w.join("venus", agent.L2, negotiation.Options{})
		var ids []string
		for range 3 {
			ids = append(ids, propose(t, sun, "venus", terms()).ID)
			time.Sleep(2 * time.Minute)
		}
		_, err := sun.Proposal(ids[0])
		wantCode(t, err, negotiation.CodeNotFound)
		if got := status(t, sun, ids[1]); got != negotiation.TimedOut {
			t.Fatalf("the proposal is %s", got)
		}
	})
}

// Proposals and their threads are forgotten after a time.
func TestProposalsAreForgottenInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		w := newTable(t)
		sun := w.join("sun", agent.L0, negotiation.Options{Keep: time.Hour})
		w.join("venus", agent.L2, negotiation.Options{})
		p := propose(t, sun, "venus", terms())
		time.Sleep(2 * time.Minute) // no agent answers
		if err := sun.Send(ctx, p.ID, envelope.Notification, "never mind"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Minute)
		if got := status(t, sun, p.ID); got != negotiation.TimedOut || len(sun.Thread(p.CorrelationID)) != 2 {
			t.Fatalf("the proposal is %s, with %d envelopes", got, len(sun.Thread(p.CorrelationID)))
		}
		time.Sleep(18 * time.Minute)
		later := propose(t, sun, "venus", terms())
		time.Sleep(55 * time.Minute)
		_, err := sun.Proposal(p.ID)
		wantCode(t, err, negotiation.CodeNotFound)
		if got := sun.Thread(p.CorrelationID); len(got) != 0 {
			t.Errorf("%d of its envelopes are kept", len(got))
		}
		status(t, sun, later.ID) // is still stored
		time.Sleep(2 * time.Hour)
		_, err = sun.Proposal(later.ID)
		wantCode(t, err, negotiation.CodeNotFound)
	})
}

// The bytes of stored proposals are bounded.
func TestProposalsAreBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 400 << 10
		w := newTable(t)
		sun := w.join("sun", agent.L0, negotiation.Options{MaxBytes: most})
		venus := w.join("venus", agent.L2, negotiation.Options{MaxBytes: most})
		large := terms()
		large.Input = json.RawMessage(`"` + strings.Repeat("x", 40<<10) + `"`)
		var last negotiation.Proposal
		for range 9 {
			last = propose(t, sun, "venus", large)
		}
		synctest.Wait() // seven are rejected: one agent cannot use up another's storage
		if n := len(venus.Pending()); n != 2 {
			t.Errorf("venus has %d proposals of one agent, want 2", n)
		}
		for range 30 {
			last = propose(t, sun, "venus", large)
			synctest.Wait()
		}
		if got := status(t, sun, last.ID); got != negotiation.Rejected {
			t.Errorf("the last proposal is %s", got)
		}
		kept := 0
		for _, e := range sun.Thread(last.CorrelationID) {
			kept += len(e.Payload)
		}
		if kept == 0 || kept > most {
			t.Errorf("%d bytes of its thread are kept", kept)
		}
		large.Input = json.RawMessage(`"` + strings.Repeat("x", most) + `"`)
		_, err := sun.Propose(context.Background(), "venus", large)
		wantCode(t, err, negotiation.CodeFull)
	})
}

func TestCloseWakesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable(t)
		sun := w.join("sun", agent.L0, negotiation.Options{})
		w.join("venus", agent.L2, negotiation.Options{})
		p := propose(t, sun, "venus", terms())
		ended := make(chan error, 1)
		go func() {
			_, err := sun.Wait(context.Background(), p.ID)
			ended <- err
		}()
		synctest.Wait()
		if err := sun.Close(); err != nil {
			t.Fatal(err)
		}
		wantCode(t, <-ended, negotiation.CodeClosed)
		_, err := sun.Propose(context.Background(), "venus", terms())
		wantCode(t, err, negotiation.CodeClosed)
	})
}

func TestNewNeedsARegisteredAgent(t *testing.T) {
	w := newTable(t)
	_, err := negotiation.New(w.r, "nobody", negotiation.Options{})
	wantCode(t, err, negotiation.CodeSend)
}

// No payload makes the other agent's negotiator fail or accept an answer that it did not request.
func FuzzPayloads(f *testing.F) {
	f.Add([]byte(`{"proposalId":"p1","taskDescription":"x","requiredCapabilities":[],"estimatedComplexity":"simple","deadlineMs":1000}`))
	f.Add([]byte(`{"proposalId":"p1","agentId":"sun","estimatedCompletionMs":1}`))
	f.Add([]byte(`{"proposalId":"p1","agentId":"sun","rejectionReason":"busy"}`))
	f.Add([]byte(`[]`))
	w := newTable(f)
	w.join("sun", agent.L0, negotiation.Options{})
	venus := w.join("venus", agent.L2, negotiation.Options{})
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, typ := range []envelope.Type{envelope.TaskProposal, envelope.TaskAccept, envelope.TaskReject, envelope.ErrorMessage} {
			e, err := envelope.New("sun", "venus", typ, json.RawMessage(payload))
			if err != nil {
				return // it does not fit into an envelope
			}
			if _, err := w.r.SendWait(context.Background(), e); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range venus.Pending() {
			if p.TaskDescription == "" || p.DeadlineMs < 1 {
				t.Fatalf("it accepted %+v", p)
			}
		}
	})
}

// The panic of a handler is one error event, also in a timer's goroutine, and other handlers are called.
func TestPanicsOfHandlersAreEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, err := parley.New(parley.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close(context.Background())
		negotiators := make(map[string]*negotiation.Negotiator)
		for _, id := range []string{"venus", "mars"} {
			a, err := n.Join(agent.Card{ID: id, Name: id, Version: "1", Tier: agent.L2, Capabilities: []agent.Capability{}}, func(context.Context, *envelope.Envelope) {})
			if err != nil {
				t.Fatal(err)
			}
			if negotiators[id], err = a.Negotiator(negotiation.Options{}); err != nil {
				t.Fatal(err)
			}
			defer negotiators[id].Close()
		}
		var called atomic.Int64
		wild := func(context.Context, negotiation.Proposal) { panic("wild") }
		negotiators["mars"].OnProposal(wild)
		negotiators["mars"].OnProposal(func(context.Context, negotiation.Proposal) { called.Add(1) })
		negotiators["venus"].OnSettled(wild)
		negotiators["venus"].OnSettled(func(context.Context, negotiation.Proposal) { called.Add(1) })
		negotiators["venus"].OnSettled(nil)()
		negotiators["venus"].OnProposal(nil)()
		p, err := negotiators["venus"].Propose(t.Context(), "mars", negotiation.Terms{TaskDescription: "x", EstimatedComplexity: negotiation.Simple, Deadline: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if p, err = negotiators["venus"].Wait(t.Context(), p.ID); err != nil || p.Status != negotiation.TimedOut {
			t.Fatalf("%+v, %v", p, err)
		}
		synctest.Wait()
		codes := make(map[string]int)
		for _, e := range n.Telemetry().Recent(0) {
			if e.Type == telemetry.ErrorEvent {
				codes[e.Code]++
			}
		}
		if called.Load() != 2 || codes[telemetry.CodePanic] != 2 || codes[string(negotiation.CodeInvalidSetup)] != 2 {
			t.Errorf("%d calls, error events %v", called.Load(), codes)
		}
	})
	if _, err := negotiation.New(nil, "mars", negotiation.Options{}); negotiation.CodeOf(err) != negotiation.CodeInvalidSetup {
		t.Errorf("a negotiator without a router: %v", err)
	}
}
