//go:build unix

package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/work"
)

func (p setup) list(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(p.dir, "TODO.md")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoopRunWorksThroughAList(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.hub(t)
	path := p.list(t, "# To do\n- [ ] say one\n- [ ] say two\n")
	flag := filepath.Join(p.dir, "flag") // the check passes from the second run on
	o := p.run(t, "loop", "run", path, "--agent", "words", "--", "/bin/sh", "-c", `test -e "$1" || { touch "$1"; echo the flag is missing; exit 1; }`, "check", flag)
	for _, part := range []string{"failed     say one", "the flag is missing", "completed  say one (attempt 2)", "completed  say two", "finished"} {
		if !strings.Contains(o.stdout, part) {
			t.Errorf("no %q in %+v", part, o)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil || string(data) != "# To do\n- [x] say one\n- [x] say two\n" || o.code != 0 {
		t.Errorf("%v, %q, %+v", err, data, o)
	}
	if o := p.run(t, "loop", "status", path); o.code != 0 || !strings.Contains(o.stdout, "No loop is running") || strings.Count(o.stdout, "completed") != 2 {
		t.Errorf("%+v", o)
	}
	if o := p.run(t, "loop", "stop", path); o.code != 0 || !strings.Contains(o.stdout, "No loop is running") {
		t.Errorf("%+v", o)
	}
}

func TestTheHubKnowsAListByItsWholePath(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.hub(t)
	path := p.list(t, "- [ ] say one\n")
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	short, err := filepath.Rel(here, path)
	if err != nil {
		t.Fatal(err)
	}
	if o := p.run(t, "loop", "run", short, "--agent", "words"); o.code != 0 {
		t.Fatalf("%+v", o)
	}
	if o := p.run(t, "replay", "--event", "loop-step"); !strings.Contains(o.stdout, "loop "+path+" ") || strings.Contains(o.stdout, "..") {
		t.Errorf("%+v", o)
	}
}

func TestLoopRunReportsItemsThatItGaveUp(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.hub(t)
	path := p.list(t, "- [ ] x\n")
	if o := p.run(t, "loop", "run", path, "--swarm", "words", "--attempts", "2", "--", "false"); o.code != 5 || !strings.Contains(o.stderr, "gave up 1 item") {
		t.Errorf("%+v", o)
	}
	if o := p.run(t, "loop", "status", path, "--format", "json"); !strings.Contains(o.stdout, `"given-up"`) || !strings.Contains(o.stdout, "exited with 1") {
		t.Errorf("%+v", o)
	}
	for _, tt := range []struct {
		code int
		part string
		args []string
	}{
		{2, "missing LIST", []string{"--agent", "words"}},
		{2, "missing --agent or --swarm", []string{path}},
		{2, "there is no file", []string{path + "x", "--agent", "words"}},
		{2, "more than 0", []string{path, "--agent", "words", "--attempts", "0"}},
		{2, "the check cannot be run", []string{path, "--agent", "words", "--", "./no-such-check"}},
		{2, "the check cannot be run", []string{path, "--agent", "words", "--", "no-such-check"}},
		{9, "nobody", []string{p.list(t, "- [ ] y\n"), "--agent", "nobody"}},
	} {
		if o := p.run(t, append([]string{"loop", "run"}, tt.args...)...); o.code != tt.code || !strings.Contains(o.stderr, tt.part) {
			t.Errorf("%q: %+v, want %d with %q", tt.args, o, tt.code, tt.part)
		}
	}
}

// A list without a file and without a loop's state is an error; a removed list's state is still shown.
func TestLoopStatusAndStopNeedAList(t *testing.T) {
	p := newSetup(t)
	t.Chdir(p.dir)
	path := p.list(t, "- [ ] x\n")
	for _, command := range []string{"status", "stop"} {
		if o := p.run(t, "loop", command, path); o.code != 0 || !strings.Contains(o.stdout, "No loop is running") {
			t.Errorf("%s: %+v", command, o)
		}
		for _, args := range [][]string{{path + "x"}, {"--queue", "none"}} {
			o := p.run(t, append([]string{"loop", command}, args...)...)
			if o.code != 4 || o.stdout != "" || !strings.Contains(o.stderr, "no loop has run on") || !strings.Contains(o.stderr, "loop run") {
				t.Errorf("%s %q: %+v", command, args, o)
			}
			if o := p.run(t, append([]string{"loop", command, "--format", "json"}, args...)...); o.code != 4 || !strings.Contains(o.stderr, `"code":"loop-not-found"`) {
				t.Errorf("%s %q: %+v", command, args, o)
			}
		}
	}
	if found, err := filepath.Glob(filepath.Join(p.dir, "*", "loops", "*")); err != nil || len(found) > 0 {
		t.Errorf("%v: status and stop created %q", err, found)
	}
	p.hub(t)
	if o := p.run(t, "loop", "run", path, "--agent", "words"); o.code != 0 {
		t.Fatalf("%+v", o)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if o := p.run(t, "loop", "status", path); o.code != 0 || !strings.Contains(o.stdout, "completed") {
		t.Errorf("%+v", o)
	}
}

// A relative path of a check is relative to the user's directory; the check runs in the agent's.
func TestTheChecksPathIsRelativeToTheUsersDirectory(t *testing.T) {
	p := newSetup(t)
	t.Chdir(p.dir)
	work, elsewhere := t.TempDir(), t.TempDir()
	config, err := os.ReadFile(p.dir + "/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		os.WriteFile(p.dir+"/config.yaml", bytes.Replace(config, []byte("roots: ["), []byte("roots: ["+work+", "), 1), 0o600),
		os.WriteFile(filepath.Join(p.dir, "check.sh"), []byte("#!/bin/sh\ntest -e here\n"), 0o700),
		os.WriteFile(filepath.Join(work, "here"), nil, 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	p.hub(t)
	// A directory that the agents may not use is no failure of the item.
	path := p.list(t, "- [ ] x\n")
	if o := p.run(t, "loop", "run", path, "--agent", "words", "--dir", elsewhere); o.code != 1 || !strings.Contains(o.stderr, "parley trust "+elsewhere) {
		t.Errorf("%+v", o)
	}
	if o := p.run(t, "loop", "run", path, "--agent", "words", "--dir", work, "--", "./check.sh"); o.code != 0 || !strings.Contains(o.stdout, "passed") {
		t.Errorf("%+v", o)
	}
}

// After a loop was killed, the next one resumes the task that was running. A second loop on the same list is refused.
func TestAKilledLoopIsResumed(t *testing.T) {
	p := newSetup(t)
	config, err := os.ReadFile(p.dir + "/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// The agent waits appends a line to begun, then blocks until may can be read.
	waits := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = --version ] && { echo 1; exit; }\ncat >/dev/null\ncd '%s' && echo x >>begun && cat may >/dev/null && echo done\n", p.dir)
	err = errors.Join(
		os.WriteFile(p.dir+"/waits", []byte(waits), 0o700),
		os.WriteFile(p.dir+"/config.yaml", append(config, "  waits: {driver: exec, command: "+p.dir+"/waits}\n"...), 0o600),
		syscall.Mkfifo(p.dir+"/may", 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	p.hub(t)
	path := p.list(t, "- [ ] one\n")
	killed := p.command(t, "loop", "run", path, "--agent", "waits")
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	may, err := os.OpenFile(p.dir+"/may", os.O_WRONLY, 0) // blocks until the agent has begun
	if err != nil {
		t.Fatal(err)
	}
	defer may.Close()
	if o := p.run(t, "loop", "run", path, "--agent", "waits"); o.code != 1 || !strings.Contains(o.stderr, "already running on this list") {
		t.Errorf("%+v", o)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := killed.Wait(); err == nil {
		t.Fatal("the loop was not killed")
	}
	if o := p.run(t, "loop", "status", path); !strings.Contains(o.stdout, "No loop is running") || !strings.Contains(o.stdout, "working") {
		t.Errorf("%+v", o)
	}
	if err := may.Close(); err != nil {
		t.Fatal(err)
	}
	o := p.run(t, "loop", "run", path, "--agent", "waits")
	if o.code != 0 || !strings.Contains(o.stdout, "resumed") || strings.Contains(o.stdout, "dispatched") {
		t.Errorf("%+v", o)
	}
	begun, err := os.ReadFile(p.dir + "/begun")
	if err != nil || string(begun) != "x\n" {
		t.Errorf("%v: begun has %q", err, begun)
	}
}

// An error in the project's configuration is printed like every other error.
func TestAnInvalidProjectConfigurationStopsALoopOnAQueue(t *testing.T) {
	p := newSetup(t)
	t.Chdir(p.dir)
	if err := os.WriteFile(filepath.Join(p.dir, ".mcp-config.json"), []byte(`{"workQueue": {"ackTimeout": "long"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"run", "--queue", "go", "--agent", "words"}, {"status", "--queue", "go"}, {"stop", "--queue", "go"}} {
		o := p.run(t, append([]string{"loop"}, args...)...)
		if o.code != 2 || !strings.HasPrefix(o.stderr, "error: ") || !strings.Contains(o.stderr, "ackTimeout") || strings.Contains(o.stderr, `{"`) {
			t.Errorf("%q: %+v", args, o)
		}
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	o := p.run(t, "demo", "--pace", "0s")
	for _, part := range []string{"joined", "accepted", "titan dies", "venus.count", "5 chapters, 50 words"} {
		if !strings.Contains(o.stdout, part) {
			t.Errorf("no %q in %+v", part, o)
		}
	}
	if o.code != 0 {
		t.Errorf("%+v", o)
	}
	if o := p.run(t, "demo", "--pace", "0s", "--format", "json"); o.code != 0 || !strings.Contains(o.stdout, `{"kind":"finished"`) {
		t.Errorf("%+v", o)
	}
	if o := p.run(t, "demo", "--pace", "1h"); o.code != 2 {
		t.Errorf("%+v", o)
	}
}

func TestRosterListsThePlanetaryAgents(t *testing.T) { // Req 11.1
	t.Parallel()
	p := newSetup(t)
	config, err := os.ReadFile(p.dir + "/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.dir+"/config.yaml", append(config, "roster:\n  mars: {agent: words, prompt: be strict}\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	o := p.run(t, "roster")
	if o.code != 0 || strings.Count(o.stdout, "\n") != 22 || !strings.Contains(o.stdout, "mars       L2    words") {
		t.Errorf("%+v", o)
	}
	if o := p.run(t, "roster", "--format", "json"); o.code != 0 || !strings.Contains(o.stdout, `{"id":"sun","tier":0}`) {
		t.Errorf("%+v", o)
	}
	p.hub(t)
	if o := p.run(t, "send", "mars", "attack"); o.code != 0 || !strings.Contains(o.stdout, "be strict") || !strings.Contains(o.stdout, "attack") {
		t.Errorf("%+v", o)
	}
}

// The loop does the items of a work queue; the hub's audit log has each step.
func TestLoopRunWorksThroughAQueue(t *testing.T) {
	p := newSetup(t)
	_, agent := network(t, false)
	p.hub(t)
	want(t, p.run(t, "trust", "."), 0, "")
	for _, id := range []string{"one", "two"} {
		if _, err := agent.Submit(t.Context(), work.Submission{Capability: "go", Offer: mail.Offer{TaskID: id, Description: "say " + id}}); err != nil {
			t.Fatal(err)
		}
	}
	if o := p.run(t, "loop", "run", "--queue", "go", "--agent", "words", "--attempts", "1", "--", "false"); o.code != 5 || !strings.Contains(o.stderr, "gave up 2 items") {
		t.Errorf("%+v", o)
	}
	for _, id := range []string{"one", "two"} {
		if _, err := agent.RetryDeadLetter(t.Context(), id, true); err != nil {
			t.Fatal(err)
		}
	}
	o := p.run(t, "loop", "run", "--queue", "go", "--agent", "words")
	if o.code != 0 || strings.Count(o.stdout, "completed  say") != 2 {
		t.Errorf("%+v", o)
	}
	for _, id := range []string{"one", "two"} {
		if s, err := agent.Item(t.Context(), id, false); err != nil || s.State != work.Completed || !strings.Contains(string(s.ResultData), "say "+id) {
			t.Errorf("%+v %v", s, err)
		}
	}
	if o := p.run(t, "loop", "status", "--queue", "go"); o.code != 0 || strings.Count(o.stdout, "completed") != 2 {
		t.Errorf("%+v", o)
	}
	if o := p.run(t, "loop", "stop", "--queue", "go"); o.code != 0 || !strings.Contains(o.stdout, "No loop is running") {
		t.Errorf("%+v", o)
	}
	o = p.run(t, "replay", "--event", "loop-step")
	for _, part := range []string{"loop queue go", "dispatched", "completed", "given-up", "say two"} {
		if !strings.Contains(o.stdout, part) {
			t.Errorf("no %q in %+v", part, o)
		}
	}
	for _, args := range [][]string{{"run", "x.md", "--queue", "go", "--agent", "words"}, {"status"}, {"run", p.list(t, "- [ ] a"), "--follow", "--agent", "words"}} {
		if o := p.run(t, append([]string{"loop"}, args...)...); o.code != 2 {
			t.Errorf("%q: %+v", args, o)
		}
	}
}

// Feature: a2a-mcp-protocols (Req 8.1): the loop finds the items that suit a swarm, says why, and obeys marks and the flag.
func TestLoopRunFindsTheItemsForASwarm(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.hub(t)
	const items = "- [ ] say one\n- [ ] say all\n  - the first\n  - the second\n- [ ] [swarm] say this\n- [ ] [agent] say that\n  1. a\n  2. b\n"
	agentWhy, swarmWhy := "the agent: ", "the swarm: "
	for name, tt := range map[string]struct {
		args  []string
		parts []string
	}{
		"by the rule": {nil, []string{
			"chosen     say one: " + agentWhy + "it has no points", "chosen     say all: " + swarmWhy + "it has 2 points",
			"chosen     [swarm] say this: " + swarmWhy + "it is marked [swarm]", "chosen     [agent] say that: " + agentWhy + "it is marked [agent]", "point-1", "point-2",
		}},
		"always": {[]string{"--swarm-items", "always"}, []string{"chosen     say one: " + swarmWhy + "every item", "chosen     [agent] say that: " + swarmWhy + "every item"}},
		"never":  {[]string{"--swarm-items", "never"}, []string{"chosen     say all: " + agentWhy + "no item", "chosen     [swarm] say this: " + agentWhy + "no item"}},
	} {
		path := p.list(t, items)
		o := p.run(t, append([]string{"loop", "run", path, "--agent", "words", "--swarm", "words"}, tt.args...)...)
		for _, part := range append(tt.parts, "completed  [agent] say that", "finished") {
			if o.code != 0 || !strings.Contains(o.stdout, part) {
				t.Errorf("%s: no %q in %+v", name, part, o)
			}
		}
	}
	path := p.list(t, items)
	for _, args := range [][]string{{"--agent", "words", "--swarm", "words", "--swarm-items", "some"}, {"--agent", "words", "--swarm-items", "always"}} {
		if o := p.run(t, append([]string{"loop", "run", path}, args...)...); o.code != 2 || !strings.Contains(o.stderr, "--swarm-items") {
			t.Errorf("%q: %+v", args, o)
		}
	}
}
