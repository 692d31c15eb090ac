package agentnet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// rester is an agent of a process whose connection rests after some milliseconds.
type rester struct {
	*agentnet.Agent
	bus *bus.Bus
}

func restingHub(t testing.TB) nettest.HubProcess {
	hub := nettest.NewProcess(t)
	hub.RestAfter = 5 * time.Millisecond
	return hub
}

// enterResting registers an agent on a hub; change may alter its configuration.
func enterResting(t testing.TB, hub nettest.HubProcess, r registry.Registration, change ...func(*agentnet.Config)) rester {
	t.Helper()
	m, a := registerResting(t, hub, r, change...)
	t.Cleanup(func() { _ = m.Close(context.Background()) }) // the hub may be gone
	return a
}

func registerResting(t testing.TB, hub nettest.HubProcess, r registry.Registration, change ...func(*agentnet.Config)) (*agentnet.Memberships, rester) {
	t.Helper()
	var a rester
	enter := hub.Enter(dialect.NetworkJoinParams{})
	cfg := agentnet.Config{BusConfig: store.Config{ProjectPath: "/p", Logger: slog.New(slog.DiscardHandler)}}
	for _, c := range change {
		c(&cfg)
	}
	m := agentnet.NewMemberships(cfg, func(ctx context.Context, r registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error) {
		adm, b, err := enter(ctx, r)
		a.bus = b
		return adm, b, err
	})
	var err error
	if a.Agent, err = m.Register(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return m, a
}

func (a rester) rests(t testing.TB) {
	t.Helper()
	wait.Eventually(t, "a rest", a.bus.Resting)
}

// Mail that is sent at any point of a rest is received once, in order, and without a poll.
func TestMailToAnAgentThatRests(t *testing.T) {
	t.Parallel()
	const rounds = 200
	hub, clock := restingHub(t), new(nettest.Clock)
	hand := enterResting(t, hub, nettest.Worker("go"))
	boss := enterResting(t, hub, nettest.Dispatcher(), func(c *agentnet.Config) { c.Now = clock.Now })
	var rested, most time.Duration
	for i := range rounds {
		clock.Forward(time.Second) // for the limit of messages
		switch i % 3 {
		case 0:
			hand.rests(t)
		case 1:
			<-time.After(rand.N(10 * time.Millisecond)) // any point of a rest that begins
		}
		begun := time.Now()
		nettest.SendText(t, boss.Agent, hand.Agent, fmt.Sprint(i))
		ctx, cancel := context.WithTimeout(t.Context(), mail.PollInterval*9/10)
		list, _, err := hand.Wait(ctx, mail.Selection{})
		cancel()
		if err != nil || len(list) != 1 || list[0].Text != fmt.Sprint(i) {
			t.Fatalf("message %d: %+v, %v", i, list, err)
		}
		if i%3 == 0 {
			took := time.Since(begun)
			rested, most = rested+took, max(most, took)
		}
	}
	t.Logf("from the send by an agent to the end of the wait of one that rests: %v in the mean, at most %v", rested/(rounds/3), most)
}

// A wait that has begun before a rest is ended by mail.
func TestMailEndsTheWaitOfAnAgentThatRests(t *testing.T) {
	t.Parallel()
	hub := restingHub(t)
	hand, boss := enterResting(t, hub, nettest.Worker("go")), enterResting(t, hub, nettest.Dispatcher())
	for i := range 20 {
		received := make(chan string, 1)
		go func() {
			list, _, err := hand.Wait(t.Context(), mail.Selection{})
			received <- fmt.Sprint(len(list), " messages, ", err)
		}()
		hand.rests(t)
		begun := time.Now()
		nettest.SendText(t, boss.Agent, hand.Agent, fmt.Sprint(i))
		if got := <-received; got != "1 messages, <nil>" {
			t.Fatalf("message %d: %s", i, got)
		}
		if took := time.Since(begun); took > mail.PollInterval*9/10 {
			t.Errorf("message %d was found by a poll after %v", i, took)
		}
	}
}

// An agent that rests works: it claims what is submitted, and others see it.
func TestAnAgentThatRestsIsThere(t *testing.T) {
	t.Parallel()
	hub := restingHub(t)
	hand, boss := enterResting(t, hub, nettest.Worker("go")), enterResting(t, hub, nettest.Dispatcher())
	for i := range 5 {
		hand.rests(t)
		boss.rests(t)
		task := fmt.Sprint("t", i)
		nettest.Submit(t, boss.Agent, task, "go")
		hand.rests(t)
		nettest.Complete(t, hand.Agent, nettest.ClaimTask(t, hand.Agent, task))
	}
	boss.rests(t)
	if d := nettest.Discover(t, boss.Agent, registry.Filter{}); d.Total != 2 {
		t.Errorf("%d agents are seen", d.Total)
	}
}

// The hub writes the heartbeats of an agent that rests, and has it write its entry anew if that is lost.
func TestHeartbeatsDuringARest(t *testing.T) {
	t.Parallel()
	hub := restingHub(t)
	hand := enterResting(t, hub, nettest.Worker("go"), func(c *agentnet.Config) { c.BeatEvery = 20 * time.Millisecond })
	b, err := hub.Dial(bus.AccessNetwork, "")(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) }) // the hub may be gone
	key := store.Config{}.WithDefaults().EntryKey(hand.GUID())
	get := func() store.Value {
		v, err := key.Get(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	hand.rests(t)
	for range 3 {
		before := get()
		wait.Eventually(t, "another heartbeat", func() bool { return get().Revision > before.Revision })
		hand.rests(t)
	}
	wait.Eventually(t, "a deletion between two heartbeats", func() bool { return key.Delete(t.Context(), b, get().Revision) == nil })
	wait.Eventually(t, "the entry", func() bool { return get().Exists() })
	hand.rests(t)
}

// A hub that is killed while agents rest is started again by them, and mail is delivered.
func TestKillOfTheHubDuringRests(t *testing.T) {
	t.Parallel()
	hub := restingHub(t)
	hand, boss := enterResting(t, hub, nettest.Worker("go")), enterResting(t, hub, nettest.Dispatcher())
	for i := range 4 {
		if i%2 == 0 {
			hand.rests(t)
			boss.rests(t)
		}
		if !hub.Kill() {
			t.Fatal("there was no hub")
		}
		text := fmt.Sprint(i)
		wait.Eventually(t, "a message", func() bool {
			_, err := boss.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: text})
			return err == nil
		})
		wait.Eventually(t, "its receipt", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			list, _, err := hand.Wait(ctx, mail.Selection{})
			return err == nil && len(list) > 0 && list[len(list)-1].Text == text
		})
	}
}

// A hub that is stopped while agents rest is not started again by them.
func TestStopOfTheHubDuringRests(t *testing.T) {
	t.Parallel()
	hub := restingHub(t)
	a := enterResting(t, hub, nettest.Worker("go"))
	a.rests(t)
	c, err := hub.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Shutdown(t.Context()), c.Close()); err != nil {
		t.Fatal(err)
	}
	runs := func() bool {
		_, running, err := daemon.Running(hub.Dir)
		return running || err != nil
	}
	wait.Eventually(t, "the end of the hub", func() bool { return !runs() })
	wait.Eventually(t, "an attempt to connect after the stop", func() bool {
		err := a.bus.Connection().Err
		return err != nil && strings.Contains(err.Error(), "was stopped")
	})
	if _, err := a.Unread(t.Context()); store.CodeOf(err) != store.ConnectionError {
		t.Errorf("a call without the hub: %v", err)
	}
	if runs() {
		t.Error("the agent has started the hub again")
	}
}

// Nobody gets the identity of an agent that rests, and the next of its kind has it as soon as its process is killed.
func TestKillOfAProcessDuringItsRest(t *testing.T) {
	t.Parallel()
	hub := restingHub(t)
	hub.Start(t)
	for range 3 {
		said := make(chan event, 10)
		c := startChild(t, "rester", hub.Dir, "", "worker-1", func(e event) { said <- e })
		t.Cleanup(c.kill)
		guid := (<-said).GUID
		m, other := registerResting(t, hub, nettest.Worker("go"))
		if other.GUID() == guid {
			t.Error("an agent has the identity of one that rests")
		}
		c.kill()
		n, again := registerResting(t, hub, nettest.Worker("go"))
		if again.GUID() != guid {
			t.Errorf("the identity is %s, want %s of the killed process", again.GUID(), guid)
		}
		for _, x := range []*agentnet.Memberships{m, n} {
			if err := x.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

// beRester registers an agent, reports its GUID when its connection rests, and waits until it is killed.
func beRester(at string) int {
	enter := nettest.HubProcess{Dir: at, RestAfter: time.Millisecond}.Enter(dialect.NetworkJoinParams{})
	var b *bus.Bus
	m := agentnet.NewMemberships(agentnet.Config{BusConfig: store.Config{ProjectPath: "/p", Logger: slog.New(slog.DiscardHandler)}},
		func(ctx context.Context, r registry.AdmissionRequest) (adm agentnet.Admission, _ *bus.Bus, err error) {
			adm, b, err = enter(ctx, r)
			return adm, b, err
		})
	a, err := m.Register(context.Background(), nettest.Worker("go"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for !b.Resting() {
		<-time.After(time.Millisecond)
	}
	(&hand{agent: a}).say(event{What: "rests"})
	select {}
}

// BenchmarkWake measures a request to the bus of an agent whose connection rests, and the same of one whose connection is in use.
func BenchmarkWake(b *testing.B) {
	hub := restingHub(b)
	a := enterResting(b, hub, nettest.Worker("go"))
	var resting, inUse []time.Duration
	request := func() time.Duration {
		begun := time.Now()
		if _, err := a.bus.JetStream().AccountInfo(b.Context()); err != nil {
			b.Fatal(err)
		}
		return time.Since(begun)
	}
	for b.Loop() {
		a.rests(b)
		resting, inUse = append(resting, request()), append(inUse, request())
	}
	for name, took := range map[string][]time.Duration{"resting": resting, "in-use": inUse} {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-"+name)
	}
	b.ReportMetric(0, "ns/op")
}
