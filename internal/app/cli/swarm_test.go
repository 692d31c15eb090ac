//go:build unix

package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/swarm"
)

const plan = `taskDescription: say something
agents: [words, echo]
subTasks:
- {id: one, description: first part}
- {id: two, description: second part}
- {id: end, description: both together, dependsOn: [one, two]}
`

func (p setup) plan(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(p.dir, "plan.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func session(t *testing.T, o outcome) swarm.Session {
	t.Helper()
	var s swarm.Session
	if err := json.Unmarshal([]byte(o.stdout), &s); err != nil {
		t.Fatalf("%v: %+v", err, o)
	}
	return s
}

func TestASwarmSaysWhatNoAgentCanDo(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	o := p.run(t, "swarm", "run", "--plan", p.plan(t, "taskDescription: say\nagents: [words, echo]\nsubTasks: [{id: two, description: walk}, {id: one, description: fly, requiredCapabilities: [wings, feathers]}]\n"))
	if o.code == 0 || !strings.Contains(o.stderr, "no agent can do it: it requires feathers, wings") {
		t.Errorf("%+v", o)
	}
}

func TestSwarmRunDividesATask(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.hub(t)
	path := p.plan(t, plan)
	o := p.run(t, "swarm", "run", "--plan", path)
	for _, part := range []string{"## one (", "## two (", "## end (", "first part", "both together"} {
		if !strings.Contains(o.stdout, part) {
			t.Errorf("no %q in %+v", part, o)
		}
	}
	if o.code != 0 || !strings.Contains(o.stderr, "completed") {
		t.Errorf("%+v", o)
	}
	s := session(t, p.run(t, "swarm", "run", "--plan", path, "--format", "json"))
	if s.Status != swarm.Completed || len(s.Participants) != 2 || len(s.Outcome) == 0 {
		t.Errorf("%+v", s)
	}
	if o := p.run(t, "swarm", "list"); o.code != 0 || !strings.Contains(o.stdout, "3/3") {
		t.Errorf("%+v", o)
	}
	if o := p.run(t, "swarm", "show", s.ID); o.code != 0 || !strings.Contains(o.stdout, "led by hub:") || !strings.Contains(o.stdout, "both together") {
		t.Errorf("%+v", o)
	}
	if o := p.run(t, "swarm", "stop", s.ID); o.code != 0 || !strings.Contains(o.stdout, "is completed") {
		t.Errorf("%+v", o)
	}
}

// Req 8.5: in a pipe a swarm that cannot go on ends the command with the question and the commands that answer it.
func TestSwarmRunInAPipeSaysHowToAnswer(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	o := p.run(t, "swarm", "run", "--agents", "fails", "do it")
	if o.code != 6 || !strings.Contains(o.stderr, "cannot go on with") || !strings.Contains(o.stderr, "the swarm waits for an answer") {
		t.Fatalf("%+v", o)
	}
	_, rest, _ := strings.Cut(o.stderr, "send --task ")
	task, _, _ := strings.Cut(rest, " ")
	var s []dialect.SwarmSummary
	if err := json.Unmarshal([]byte(p.run(t, "swarm", "list", "--format", "json").stdout), &s); err != nil || len(s) != 1 || s[0].Status.Ended() {
		t.Fatalf("%v: %+v", err, s)
	}
	want(t, p.run(t, "send", "--task", task, "words"), 0, "with words")
	want(t, p.run(t, "swarm", "show", "--follow", s[0].ID), 0, "do it")
}

// If a swarm's only agent fails, the command prints the reason and exits with 5.
func TestSwarmRunReportsWhyItFailed(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.hub(t)
	if o := p.run(t, "swarm", "run", "--agents", "fails", "--unattended", "do it"); o.code != 5 || !strings.Contains(o.stderr, "the swarm failed") || !strings.Contains(o.stderr, "strike") {
		t.Errorf("%+v", o)
	}
	// Another agent does the part of the agent that fails.
	s := session(t, p.run(t, "swarm", "run", "--plan", p.plan(t, strings.Replace(plan, "[words, echo]", "[fails, words]", 1)), "--format", "json"))
	if s.Status != swarm.Completed {
		t.Errorf("%+v", s)
	}
	for _, part := range s.SubTasks {
		if part.AssignedAgent != "words" {
			t.Errorf("%s was done by %q", part.ID, part.AssignedAgent)
		}
	}
}

func TestSwarmRunRefusesInvalidPlans(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.hub(t)
	for _, tt := range []struct {
		code int
		part string
		args []string
	}{
		{2, "missing TASK", nil},
		{2, "there is no file", []string{"--plan", p.dir + "/none"}},
		{2, "unknown field", []string{"--plan", p.plan(t, "task: x")}},
		{2, "must not be negative", []string{"x", "--attempts", "-1"}},
		{2, "wait for each other", []string{"--plan", p.plan2(t, "taskDescription: x\nsubTasks: [{id: a, description: x, dependsOn: [a]}]")}},
		{4, `no agent "nobody"`, []string{"x", "--agents", "nobody"}},
		{1, "made no plan", []string{"x", "--planner", "hostile"}},
		{5, "made no plan", []string{"x", "--planner", "fails"}},
	} {
		if o := p.run(t, append([]string{"swarm", "run"}, tt.args...)...); o.code != tt.code || !strings.Contains(o.stderr, tt.part) {
			t.Errorf("%q: %+v, want %d with %q", tt.args, o, tt.code, tt.part)
		}
	}
	for _, args := range [][]string{{"swarm", "show", "none"}, {"swarm", "stop", "none"}} {
		if o := p.run(t, args...); o.code != 4 || !strings.Contains(o.stderr, "swarm list") {
			t.Errorf("%q: %+v", args, o)
		}
	}
}

func (p setup) plan2(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(p.dir, "plan2.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The agent echo answers with the prompt, which contains an example of a plan.
func TestAPlannerSplitsTheTask(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.hub(t)
	o := p.run(t, "swarm", "run", "paint the house", "--planner", "echo", "--agents", "words", "--plan-only")
	var got swarm.Plan
	if err := json.Unmarshal([]byte(o.stdout), &got); err != nil || len(got.SubTasks) != 1 || got.SubTasks[0].ID != "short-name" || got.TaskDescription != "paint the house" {
		t.Fatalf("%v: %+v", err, o)
	}
}

// After the coordinating hub was killed and restarted, finished parts keep their results, running parts run again, and
// the swarm completes.
func TestAKilledHubResumesItsSwarm(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	config, err := os.ReadFile(p.dir + "/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.dir+"/config.yaml", []byte(strings.Replace(string(config), "durability: fast", "durability: commit", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	p.stopAtEnd(t)
	want(t, p.process(t, "start"), 0, "The hub is running (process ")
	s := session(t, p.run(t, "swarm", "run", "--detach", "--format", "json", "--plan", p.plan(t, `taskDescription: say something
agents: [words, hangs]
maxAttempts: 9
subTasks:
- {id: one, description: first part}
- {id: two, description: second part}
- {id: end, description: both together, dependsOn: [one, two]}
`)))
	// The agent words has completed one part; the other part hangs.
	for {
		s = session(t, p.run(t, "swarm", "show", s.ID, "--format", "json"))
		done, running := 0, 0
		for _, part := range s.SubTasks {
			switch part.Status {
			case swarm.TaskCompleted:
				done++
			case swarm.TaskRunning:
				running++
			}
		}
		if done == 1 && running == 1 {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal(s)
		}
	}
	first := finished(s)
	pid := p.pid(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// The hanging agent is disabled meanwhile.
	mended := strings.Replace(string(config), "  hangs: {", "  hangs: {disabled: true, ", 1)
	if err := os.WriteFile(p.dir+"/config.yaml", []byte(mended), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, p.process(t, "start"), 0, "The hub is running (process ")
	s = session(t, p.run(t, "swarm", "show", s.ID, "--follow", "--format", "json"))
	if s.Status != swarm.Completed || s.Epoch < 1 {
		t.Fatalf("%+v", s)
	}
	for id, result := range first {
		if finished(s)[id] != result {
			t.Errorf("%s has another result: %s, now %s", id, result, finished(s)[id])
		}
	}
	if len(finished(s)) != 3 {
		t.Errorf("%+v", s)
	}
}

func finished(s swarm.Session) map[string]string {
	m := make(map[string]string)
	for _, part := range s.SubTasks {
		if part.Status == swarm.TaskCompleted {
			m[part.ID] = string(part.Result)
		}
	}
	return m
}

// pid returns the process id of the hub.
func (p setup) pid(t *testing.T) int {
	t.Helper()
	var status struct {
		PID int `json:"pid"`
	}
	o := p.run(t, "status", "--format", "json")
	if err := json.Unmarshal([]byte(o.stdout), &status); err != nil || status.PID == 0 {
		t.Fatalf("%v: %s", strconv.Itoa(status.PID), o.stdout)
	}
	return status.PID
}
