package main

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-node") {
		if err := serveNode(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// With one processor that is used for half of the time half of the calls wait, and 99 % less than ln(50)/(1-0.5) times a call.
func TestCallsWaitAsLongAsInTheTheoryOfQueues(t *testing.T) {
	calls := []kind{{rate: 500, cost: cost{Processor: time.Millisecond}}}
	median, late := simulate(calls, 1, rand.New(rand.NewPCG(1, 2)))
	if median > time.Millisecond/5 || late < 6500*time.Microsecond || late > 9500*time.Microsecond {
		t.Errorf("calls of 1 ms waited %v and %v, in theory 0 and 7.8 ms", median, late)
	}
	if _, late := simulate(calls, 8, rand.New(rand.NewPCG(1, 2))); late > time.Millisecond/10 {
		t.Errorf("calls waited %v for one of eight idle processors", late)
	}
}

func TestTheFirstLimitIsTheLastNumberOfAgentsThatFits(t *testing.T) {
	o := options{hubs: 100, agents: 1000, mail: 1, work: 0.2, discover: 0.1, cores: 8, memory: 32 << 30, network: 1.25e9}
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom(arrangements).Draw(t, "arrangement")
		view := rapid.SampledFrom(views).Draw(t, "view")
		call := func(name string) cost {
			return cost{Messages: 1, Bytes: rapid.Float64Range(1, 1e5).Draw(t, name), Processor: time.Duration(rapid.IntRange(1, 5e6).Draw(t, name))}
		}
		c := costs{Heartbeat: call("heartbeat"), Discover: call("discover"), Changed: call("changed"), Mail: call("mail"), Item: call("item"),
			Entry: rapid.Float64Range(1, 1e4).Draw(t, "entry"), View: rapid.Float64Range(1, 1e4).Draw(t, "view of an entry")}
		name, n := limit(a, c, o, view)
		for _, more := range []int{0, 1} {
			at := o
			if a.nodes == 1 {
				at.agents = n + more
			}
			which, part := demand(a, c, at, view, n+more).most(at)
			if part > 1 != (more == 1) || more == 1 && which != name {
				t.Errorf("with %d agents %s is used to %.3f; the first limit is %s at %d", n+more, which, part, name, n)
			}
		}
	})
}

func TestCostsOfAHubsServerAreMeasured(t *testing.T) {
	c, err := measure(t.Context(), arrangements[0], options{entries: 30, calls: 3})
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]cost{"a heartbeat": c.Heartbeat, "a look": c.Discover, "a changed entry": c.Changed, "mail": c.Mail, "an item": c.Item} {
		if k.Messages <= 0 || k.Bytes <= 0 {
			t.Errorf("%s takes nothing of the server: %+v", name, k)
		}
	}
}
