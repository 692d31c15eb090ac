//go:build interop && linux

package interop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/stubmodel"
	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/test/interop/rig"
)

// trap is a stub model that never answers requests about a part of a swarm. The first
// such request shows that its agent is working on a part.
type trap struct {
	stubmodel.Handler
	once   sync.Once
	caught chan struct{}
}

// partMark is contained in the description of each part.
const partMark = "PART-OF-THE-JOB"

func (h *trap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the program was killed
	}
	if bytes.Contains(body, []byte(partMark)) {
		h.once.Do(func() { close(h.caught) })
		<-r.Context().Done()
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	h.Handler.ServeHTTP(w, r)
}

// mortal is an agent of a hub whose program can be made to fail permanently.
type mortal struct {
	def    runner.Definition
	broken string // while this file exists, the program fails
	home   string
}

// newMortal replaces an agent's command by a script that runs its program.
func newMortal(t *testing.T, id string, model http.Handler) mortal {
	t.Helper()
	def := definition(id, runner.Builtin()[id].Driver)
	need(t, def.Command)
	def = atModel(t, def, model)
	dir := t.TempDir()
	m := mortal{def: def, broken: filepath.Join(dir, "broken"), home: def.Env.Set["HOME"]}
	script := filepath.Join(dir, def.Command)
	text := fmt.Sprintf("#!/bin/sh\nif [ -e %s ]; then echo 'no such luck' >&2; exit 1; fi\nexec %s \"$@\"\n", m.broken, def.Command)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	m.def.Command = script
	return m
}

// die makes the agent's program fail from now on, and kills its running processes with
// SIGKILL.
func (m mortal) die(t *testing.T) {
	t.Helper()
	write(t, m.broken, "")
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, dir := range dirs {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !slices.ContainsFunc(bytes.Split(env, []byte{0}), func(kv []byte) bool { return string(kv) == "HOME="+m.home }) {
			continue // it has ended, or belongs to another user
		}
		pid, _ := strconv.Atoi(filepath.Base(dir)) // digits
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if killed == 0 {
		t.Errorf("%s has no process to kill", m.def.ID)
	}
}

// hubOf starts a hub with only these agents.
func hubOf(t *testing.T, programs rig.Programs, agents []mortal) rig.Home {
	t.Helper()
	home := programs.NewHome(t)
	set := make(map[string]any)
	for id := range runner.Builtin() {
		set[id] = map[string]any{"disabled": true}
	}
	for _, m := range agents {
		set[m.def.ID] = map[string]any{"command": m.def.Command, "model": m.def.Model, "env": map[string]any{"set": m.def.Env.Set}}
	}
	config := map[string]any{"version": 1, "agents": set}
	text, err := json.Marshal(config) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(home.Dir, "hub", "config.yaml"), string(text))
	parley(t, programs, home, nil, "start")
	return home
}

// parley runs a command of Parley and decodes its output.
func parley(t *testing.T, programs rig.Programs, home rig.Home, into any, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, programs.Path("parley"), args...)
	cmd.Env = home.Env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("parley %q: %v\n%s%s", args, err, out.String(), errs.String())
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		t.Fatalf("parley %q: %v\n%s", args, err, out.String())
	}
}

// A swarm of real CLIs: one is killed while it works on a part, and fails from then on.
// The swarm completes, another agent does the part, and each part has one result
// (Req 8.2, 8.4 to 8.6).
func TestASwarmOfCLIsSurvivesAKilledAgent(t *testing.T) {
	programs := rig.Programs(t.TempDir())
	if err := programs.Build(rig.Parley...); err != nil {
		t.Fatal(err)
	}
	ids := []string{"claude-code", "gemini", "codex"}
	for _, victim := range ids {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			deadly := &trap{caught: make(chan struct{})}
			var dies mortal
			var agents []mortal
			for _, id := range ids {
				if id == victim {
					dies = newMortal(t, id, deadly)
					agents = append(agents, dies)
					continue
				}
				agents = append(agents, newMortal(t, id, &stubmodel.Handler{}))
			}
			home := hubOf(t, programs, agents)
			var killing sync.WaitGroup
			killing.Go(func() {
				select {
				case <-deadly.caught:
					dies.die(t)
				case <-t.Context().Done():
				}
			})
			p := swarm.Plan{TaskDescription: "say hello", RequiredCapabilities: []string{}, Agents: ids}
			report := swarm.SubTaskPlan{ID: "report", Description: partMark + " report"}
			for i := range 5 {
				id := fmt.Sprint("part-", i)
				p.SubTasks = append(p.SubTasks, swarm.SubTaskPlan{ID: id, Description: partMark + " " + id})
				report.DependsOn = append(report.DependsOn, id)
			}
			p.SubTasks = append(p.SubTasks, report)
			plan, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(home.Dir, "plan.json")
			write(t, file, string(plan))
			var s swarm.Session
			parley(t, programs, home, &s, "swarm", "run", "--plan", file, "--scratch", "--format", "json")
			killing.Wait()
			judge(t, programs, home, &s, victim)
		})
	}
}

// judge checks the outcome of a swarm in which one agent was killed during its first
// part.
func judge(t *testing.T, programs rig.Programs, home rig.Home, s *swarm.Session, victim string) {
	t.Helper()
	var outcome map[string]struct{ Text, TaskID string }
	if err := json.Unmarshal(s.Outcome, &outcome); err != nil || s.Status != swarm.Completed || len(outcome) != len(s.SubTasks) {
		t.Fatalf("the swarm is %s with %d results of %d (%v)", s.Status, len(outcome), len(s.SubTasks), err)
	}
	if len(s.Participants) != 3 {
		t.Errorf("participants %q", s.Participants)
	}
	var tasks dialect.TaskPage
	parley(t, programs, home, &tasks, "tasks", "--limit", "100", "--format", "json")
	ended := make(map[string]int) // number of completed attempts by part
	failed := 0
	for _, task := range tasks.Tasks {
		about, _ := task.Metadata["swarm"].(map[string]any)
		part, _ := about["subTask"].(string)
		if task.Status.State == dialect.StateCompleted {
			ended[part]++
		} else {
			failed++
		}
	}
	moved := 0
	for _, part := range s.SubTasks {
		if part.Status != swarm.TaskCompleted || part.AssignedAgent == victim {
			t.Errorf("%s is %s at %s", part.ID, part.Status, part.AssignedAgent)
		}
		if !strings.Contains(outcome[part.ID].Text, "Hello from the stub model") {
			t.Errorf("%s: %q", part.ID, outcome[part.ID].Text)
		}
		if ended[part.ID] != 1 {
			t.Errorf("%s was done %d times", part.ID, ended[part.ID])
		}
		if part.Attempt > 1 {
			moved++
		}
	}
	if moved == 0 || failed == 0 {
		t.Errorf("no attempt was lost: %d parts were retried, %d tasks failed", moved, failed)
	}
}
