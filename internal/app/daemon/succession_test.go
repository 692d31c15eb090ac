//go:build unix

package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/swarm"
)

const successionYAML = `version: 1
bus: {url: %q}
http: {port: 0}
agents:
  claude-code: {disabled: true}
  gemini: {disabled: true}
  codex: {disabled: true}
  vibe: {disabled: true}
  echo: {disabled: true}
`

// successor is a hub in its own process. Its agents append the parts that they do to a file.
type successor struct {
	dir  string
	log  string
	info daemon.Info
	c    *client.Client
}

func newSuccessor(t *testing.T, url string, agents ...string) *successor {
	t.Helper()
	dir := newDir(t)
	h := &successor{dir: dir, log: filepath.Join(dir, "did")}
	config := fmt.Sprintf(successionYAML, url)
	for _, id := range agents {
		script := fmt.Sprintf("read -r part; sleep 0.3; echo $part >>%s; echo $part is done", h.log)
		config += fmt.Sprintf("  %s: {driver: exec, command: /bin/sh, args: [-c, %q], probe: {version: [-c, echo 1.0]}, capabilities: [{id: dig}]}\n", id, script)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	h.begin(t)
	t.Cleanup(func() {
		if _, _, err := daemon.Stop(context.Background(), dir, shutdown(h.info.Socket)); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *successor) begin(t *testing.T) {
	t.Helper()
	var err error
	if h.info, err = start(t, "serve", h.dir); err != nil {
		t.Fatal(err)
	}
	if h.c, err = client.Dial(t.Context(), h.info.Socket); err != nil {
		t.Fatal(err)
	}
}

// kill kills the hub with SIGKILL once a number of parts of a swarm are done.
func (h *successor) kill(t *testing.T, ctx context.Context, swarmID string, parts int) {
	t.Helper()
	h.await(t, ctx, swarmID, func(s *swarm.Session) bool { return len(finished(s)) >= parts })
	if err := syscall.Kill(h.info.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := h.c.Wait(ctx); err != nil && !errors.Is(err, client.ErrLost) {
		t.Fatal(err)
	}
	h.c.Close()
}

// await follows a swarm until wanted returns true.
func (h *successor) await(t *testing.T, ctx context.Context, swarmID string, wanted func(*swarm.Session) bool) *swarm.Session {
	t.Helper()
	s, err := h.c.Swarm(ctx, swarmID)
	for err == nil && !wanted(s) {
		if s.Status.Ended() {
			t.Fatalf("the swarm is %s: %s", s.Status, s.Error)
		}
		s, err = h.c.AwaitSwarm(ctx, swarmID, s.Sequence)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// did counts how often the hub's agents have done each part.
func (h *successor) did(t *testing.T) map[string]int {
	t.Helper()
	data, err := os.ReadFile(h.log)
	if err != nil {
		t.Fatal(err)
	}
	n := make(map[string]int)
	for part := range strings.FieldsSeq(string(data)) {
		n[part]++
	}
	return n
}

// finished returns the results of a swarm, by part.
func finished(s *swarm.Session) map[string]string {
	results := make(map[string]string)
	for _, part := range s.SubTasks {
		if part.Status == swarm.TaskCompleted {
			results[part.ID] = string(part.Result)
		}
	}
	return results
}

// Two hubs run on one NATS server. The hub that coordinates a swarm is killed, and the other one takes over; then the
// first is restarted, the second is killed, and the first completes the swarm. Finished parts keep their results and
// are not done again, and the outcome is that of an undisturbed swarm.
func TestHubsTakeASwarmOver(t *testing.T) {
	t.Parallel()
	url := natsServer(t)
	sun, earth := newSuccessor(t, url, "a1", "a2"), newSuccessor(t, url, "b1", "b2")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	plan := swarm.Plan{ID: "the-garden", TaskDescription: "dig the garden", RequiredCapabilities: []string{"dig"}}
	for i := range 24 {
		id := fmt.Sprint("part-", i)
		plan.SubTasks = append(plan.SubTasks, swarm.SubTaskPlan{ID: id, Description: id})
	}
	s, err := sun.c.CreateSwarm(ctx, plan)
	if err != nil || s.ID != "the-garden" {
		t.Fatalf("%v, %+v", err, s)
	}
	first := s.Coordinator
	sun.kill(t, ctx, s.ID, 4)
	if s, err = earth.c.Swarm(ctx, s.ID); err != nil { // the journal as the killed hub left it
		t.Fatal(err)
	}
	bySun, cutOff := finished(s), make(map[string]bool)
	for _, part := range s.SubTasks {
		cutOff[part.ID] = part.Status == swarm.TaskRunning // its agent may have finished anyway
	}
	s = earth.await(t, ctx, s.ID, func(s *swarm.Session) bool { return s.Epoch == 1 && s.Coordinator != first })
	second := s.Coordinator
	sun.begin(t)
	earth.kill(t, ctx, s.ID, len(bySun)+4)
	if s, err = sun.c.Swarm(ctx, s.ID); err != nil || s.Coordinator != second {
		t.Fatalf("the first hub has taken over from a running one: %v, %+v", err, s)
	}
	byBoth := finished(s)
	s = sun.await(t, ctx, s.ID, func(s *swarm.Session) bool { return s.Status == swarm.Completed })
	if s.Epoch != 2 || s.Coordinator != first {
		t.Errorf("the swarm ended in epoch %d, coordinated by %s", s.Epoch, s.Coordinator)
	}
	results := finished(s)
	if len(results) != len(plan.SubTasks) {
		t.Fatalf("%d results, want %d", len(results), len(plan.SubTasks))
	}
	for part, result := range results {
		if !strings.Contains(result, part+" is done") {
			t.Errorf("%s: %s", part, result)
		}
	}
	inGarden, byEarth := sun.did(t), earth.did(t)
	for part, before := range byBoth {
		if results[part] != before {
			t.Errorf("%s: the result changed from %s to %s", part, before, results[part])
		}
		at, elsewhere := byEarth, inGarden
		if _, early := bySun[part]; early {
			at, elsewhere = inGarden, byEarth
		}
		if at[part] != 1 || elsewhere[part] > 0 && !(cutOff[part] && elsewhere[part] == 1) {
			t.Errorf("%s was finished at one hub and done %d times there, %d times at the other", part, at[part], elsewhere[part])
		}
	}
	if len(bySun) < 4 || len(byBoth) < len(bySun)+4 || len(byBoth) == len(results) {
		t.Errorf("the hubs were killed after %d and %d of %d parts", len(bySun), len(byBoth), len(results))
	}
}
