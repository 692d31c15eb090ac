package hub_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// probed is an agent whose probe returns what is set.
type probed struct {
	*fakeAgent
	result atomic.Pointer[runner.Probe]
	count  atomic.Int32
}

func newProbed(p runner.Probe) *probed {
	a := &probed{fakeAgent: actor()}
	a.result.Store(&p)
	a.fakeAgent.probe = func(context.Context) runner.Probe {
		a.count.Add(1)
		return *a.result.Load()
	}
	return a
}

func health(t testing.TB, h *hub.Hub, id string) hub.Health {
	t.Helper()
	info, err := h.Agent(id)
	if err != nil {
		t.Fatal(err)
	}
	return info.Health
}

// Whoever shows the agents is not called for each of their probes.
func TestOnlyProbesWithNewsAreAChangeOfTheAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newProbed(runner.Probe{Stage: runner.StageAuthenticated, Version: "2.1"})
		h, err := hub.New(t.Context(), hub.Config{Agents: []hub.Agent{{Definition: definition("worker"), Runner: a}}, ProbeInterval: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close(context.Background())
		synctest.Wait()
		var changes atomic.Int32
		h.OnAgents(func() { changes.Add(1) })
		time.Sleep(time.Hour + time.Second)
		if probes, n := a.count.Load(), changes.Load(); probes < 60 || n != 0 {
			t.Errorf("%d changes in %d probes that say the same", n, probes)
		}
		if h := health(t, h, "worker"); time.Since(h.LastCheck) > time.Minute {
			t.Errorf("the last check was at %v", h.LastCheck)
		}
		a.result.Store(&runner.Probe{Stage: runner.StageAuthenticated, Version: "2.2"})
		time.Sleep(time.Hour)
		if n := changes.Load(); n != 1 {
			t.Errorf("%d changes for a new version", n)
		}
	})
}

func TestProbeStagesDetermineHealth(t *testing.T) {
	missing := &runner.Error{Code: runner.CodeNotInstalled, Message: "claude is not there", Remedy: "npm install it"}
	for name, tc := range map[string]struct {
		probe   runner.Probe
		run     string // prompt of a turn that runs before the check; may be empty
		status  hub.HealthStatus
		message string
	}{
		"authenticated":                 {probe: runner.Probe{Stage: runner.StageAuthenticated, Version: "2.1"}, status: hub.Healthy},
		"authenticated, failed run":     {probe: runner.Probe{Stage: runner.StageAuthenticated, Version: "2.1"}, run: "fail", status: hub.Healthy},
		"no credentials":                {probe: runner.Probe{Stage: runner.StageInstalled, AuthKnown: true}, status: hub.Degraded, message: "it has no credentials; log in"},
		"login unknown":                 {probe: runner.Probe{Stage: runner.StageInstalled}, status: hub.Healthy},
		"login unknown, failed run":     {probe: runner.Probe{Stage: runner.StageInstalled}, run: "fail", status: hub.Degraded, message: "its last run failed: the model is overloaded; wait a minute"},
		"login unknown, successful run": {probe: runner.Probe{Stage: runner.StageInstalled}, run: "say:x", status: hub.Healthy},
		"missing":                       {probe: runner.Probe{Stage: runner.StageMissing, Err: missing}, status: hub.Unhealthy, message: "claude is not there; npm install it"},
		"missing, no error":             {probe: runner.Probe{Stage: runner.StageMissing}, status: hub.Unhealthy, message: "it is not installed; install it"},
		"empty probe":                   {probe: runner.Probe{}, status: hub.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			def := definition("a")
			def.Probe.Login, def.Probe.Install = "log in", "install it"
			a := newProbed(tc.probe)
			h := newHub(t, hub.Config{Agents: []hub.Agent{{Definition: def, Runner: a}}}, nil)
			if tc.run != "" {
				send(t, h, request("a", tc.run))
			}
			got, err := h.CheckHealth(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if got.Status != tc.status || got.Message != tc.message || got.Circuit != "closed" || got.Version != tc.probe.Version || got.LastCheck.IsZero() || got.Latency <= 0 {
				t.Errorf("health %+v", got)
			}
		})
	}
}

// HUB-REGISTRY-HEALTH.
func TestAgentsAreProbedAtEachInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newProbed(runner.Probe{Stage: runner.StageInstalled, AuthKnown: true})
		h, err := hub.New(t.Context(), hub.Config{Agents: []hub.Agent{{Definition: definition("a"), Runner: a}}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if a.count.Load() != 1 || health(t, h, "a").Status != hub.Degraded {
			t.Errorf("at the start: %d probes, %+v", a.count.Load(), health(t, h, "a"))
		}
		a.result.Store(&runner.Probe{Stage: runner.StageAuthenticated})
		time.Sleep(30*time.Second + time.Millisecond) // of the bubble's clock
		synctest.Wait()
		if a.count.Load() != 2 || health(t, h, "a").Status != hub.Healthy {
			t.Errorf("after 30 s: %d probes, %+v", a.count.Load(), health(t, h, "a"))
		}
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAHungProbeDoesNotDelayOtherAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := actor()
		hung.probe = func(ctx context.Context) runner.Probe {
			<-ctx.Done()
			return runner.Probe{Stage: runner.StageUnknown, Err: &runner.Error{Code: runner.CodeTimeout, Message: "it does not answer"}}
		}
		good := newProbed(runner.Probe{Stage: runner.StageAuthenticated})
		panics := actor()
		panics.probe = func(context.Context) runner.Probe { panic("a bug") }
		h, err := hub.New(t.Context(), hub.Config{Agents: []hub.Agent{
			{Definition: definition("hung"), Runner: hung}, {Definition: definition("good"), Runner: good}, {Definition: definition("panics"), Runner: panics},
		}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // no time has passed
		if s := health(t, h, "good").Status; s != hub.Healthy {
			t.Errorf("the healthy agent is %s", s)
		}
		if s := health(t, h, "hung").Status; s != hub.Unknown {
			t.Errorf("the agent whose probe hangs is %s", s)
		}
		if s := health(t, h, "panics"); s.Status != hub.Unknown || !strings.Contains(s.Message, "crashed") {
			t.Errorf("the agent whose probe panics: %+v", s)
		}
		begin := time.Now()
		if task := send(t, h, request("hung", "say:x")); task.Status.State != a2a.TaskStateCompleted || time.Since(begin) != 0 {
			t.Errorf("a run took %s", time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := h.CheckHealth(ctx, "hung"); hub.CodeOf(err) != hub.CodeTimeout {
			t.Errorf("CheckHealth: %v", err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if m := health(t, h, "hung").Message; m != "it does not answer" {
			t.Errorf("message %q", m)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := h.CheckHealth(t.Context(), "good"); hub.CodeOf(err) != hub.CodeUnavailable {
			t.Errorf("CheckHealth after Close: %v", err)
		}
	})
}

func TestAMissingAgentIsRefusedAndProbedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newProbed(runner.Probe{Stage: runner.StageMissing})
		def := definition("a")
		def.Probe.Install = "npm install -g a"
		h, err := hub.New(t.Context(), hub.Config{Agents: []hub.Agent{{Definition: def, Runner: a}}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		a.result.Store(&runner.Probe{Stage: runner.StageAuthenticated})
		_, err = h.Send(t.Context(), request("a", "x"))
		if he, _ := err.(*hub.Error); he == nil || he.Code != hub.CodeUnavailable || he.Remedy != "npm install -g a" {
			t.Errorf("Send: %v", err)
		}
		synctest.Wait()
		send(t, h, request("a", "say:x"))
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := h.CheckHealth(t.Context(), "nobody"); hub.CodeOf(err) != hub.CodeAgentNotFound {
			t.Errorf("CheckHealth: %v", err)
		}
	})
}

// HUB-REGISTRY-BREAKER.
func TestFailedRunsOpenTheCircuitAndATrialClosesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		def := definition("a")
		def.Limits.Run = time.Minute
		h, err := hub.New(t.Context(), hub.Config{BreakerFailures: 3, BreakerPause: 10 * time.Second, Agents: []hub.Agent{{Definition: def, Runner: actor()}}})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		quick := request("a", "wait")
		quick.Timeout = time.Second
		// Failures that are not the agent's do not count; a success resets the count.
		for _, p := range []string{"fail", "fail", "say:x", "fail", "panic", "limit", "reject"} {
			send(t, h, request("a", p))
		}
		send(t, h, quick)
		if c := health(t, h, "a").Circuit; c != "closed" {
			t.Fatalf("the circuit is %s", c)
		}
		send(t, h, request("a", "wait")) // the third failure: the agent's timeout
		if got := health(t, h, "a"); got.Circuit != "open" || got.Status != hub.Unhealthy || !strings.Contains(got.Message, "its last runs failed") {
			t.Fatalf("health %+v", got)
		}
		_, err = h.Send(t.Context(), request("a", "say:x"))
		if he, _ := err.(*hub.Error); he == nil || he.Code != hub.CodeUnavailable || he.Remedy == "" {
			t.Errorf("Send: %v", err)
		}
		time.Sleep(11 * time.Second)
		if got := health(t, h, "a"); got.Circuit != "half-open" || got.Status != hub.Degraded {
			t.Fatalf("health %+v", got)
		}
		trial, err := h.Send(t.Context(), request("a", "wait")) // the only trial
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Send(t.Context(), request("a", "say:x")); hub.CodeOf(err) != hub.CodeUnavailable {
			t.Errorf("a second trial at once: %v", err)
		}
		if _, err := h.Cancel(t.Context(), trial.ID); err != nil { // a canceled trial decides nothing: another may follow
			t.Fatal(err)
		}
		send(t, h, request("a", "say:x"))
		if got := health(t, h, "a"); got.Circuit != "closed" || got.Status != hub.Healthy || got.Message != "" {
			t.Errorf("health %+v", got)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The limit applies to the time in which the agent works.
func TestTimeSpentWaitingForTheUserDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		def := definition("a")
		def.Limits.Run = time.Minute
		h, err := hub.New(t.Context(), hub.Config{Agents: []hub.Agent{{Definition: def, Runner: actor()}}})
		if err != nil {
			t.Fatal(err)
		}
		task := send(t, h, request("a", "ask:1 ask:2 wait"))
		for range 2 {
			time.Sleep(10 * time.Minute)
			if task.Status.State != a2a.TaskStateInputRequired {
				t.Fatalf("task %+v", task)
			}
			task = send(t, h, follow(task, "yes"))
		}
		if errorCode(t, task) != string(hub.CodeTimeout) { // after the answer, the agent's time counts again
			t.Errorf("task %+v", task)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// One agent hangs or fails while another one works.
func TestABrokenAgentDoesNotSlowOthers(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"bad": actor(), "good": actor()})
	for range 4 {
		if _, err := h.Send(t.Context(), request("bad", "wait")); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { send(t, h, request("good", "say:x")) })
	}
	wg.Wait()
}

// A full disk is refused at once, with its cause: a stream that has met one answers nobody any more.
func TestAFullDiskIsNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHub(t, hub.Config{DataDir: dir}, map[string]*fakeAgent{"a": actor()})
	hub.SetFreeSpace(h, 4096)
	_, err := h.Send(t.Context(), request("a", "say:x"))
	he, _ := errors.AsType[*hub.Error](err)
	if he == nil || he.Code != hub.CodeUnavailable || !strings.Contains(he.Message, "no space left in the data directory "+dir) || he.Remedy == "" {
		t.Fatalf("got %v", err)
	}
	if tasks, _ := h.Totals(hub.TotalsQuery{}); len(tasks) > 0 && tasks[0].Tasks > 0 {
		t.Errorf("a task was made: %+v", tasks)
	}
}
