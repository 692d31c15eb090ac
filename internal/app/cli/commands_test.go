//go:build unix

package cli_test

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/swarm"
)

// background starts a command and blocks until it has printed word; done receives its exit code.
func (p setup) background(t *testing.T, word string, args ...string) (out *watched, signals chan<- os.Signal, done <-chan int) {
	t.Helper()
	out = newWatched(word)
	s, code := make(chan os.Signal, 2), make(chan int, 1)
	go func() {
		code <- cli.Run(t.Context(), "parley", p.args(args...), strings.NewReader(""), out, io.Discard, nil, s)
	}()
	return out, s, code
}

// completions returns the candidates without their descriptions.
func (p setup) completions(t *testing.T, args ...string) []string {
	t.Helper()
	o := p.run(t, append([]string{"__complete"}, args...)...)
	if o.code != 0 {
		t.Errorf("%q: %+v", args, o)
	}
	var words []string
	for line := range strings.Lines(o.stdout) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(word, ":") {
			words = append(words, word)
		}
	}
	return words
}

func TestIDsAreCompletedFromTheHub(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	task := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "echo", "one", "--context", "talk"))
	s := session(t, p.run(t, "swarm", "run", "--agents", "words", "--format", "json", "say it"))
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"talk", []string{"tasks", "--context", ""}},
		{"talk", []string{"send", "--context", ""}},
		{"words", []string{"tasks", "--agent", ""}},
		{task.ID, []string{"task", "show", ""}},
		{s.ID, []string{"swarm", "show", ""}},
		{s.ID, []string{"swarm", "stop", ""}},
	} {
		found := false
		for _, word := range p.completions(t, tt.args...) {
			found = found || word == tt.want
		}
		if !found {
			t.Errorf("%q does not offer %q", tt.args, tt.want)
		}
	}
	if got := p.completions(t, "swarm", "show", s.ID, ""); len(got) != 0 {
		t.Errorf("show takes one swarm, but after it %q is offered", got)
	}
	if got := newSetup(t).completions(t, "swarm", "show", ""); len(got) != 0 {
		t.Errorf("without a hub %q is offered", got)
	}
}

func TestAMissingFileIsNamedWithARemedy(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	gone := filepath.Join(p.dir, "gone.yaml")
	file := filepath.Join(p.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"there is no configuration file " + gone, []string{"--config", gone, "config", "validate"}}, {"there is no file " + gone, []string{"swarm", "run", "--plan", gone}},
		{p.dir + " is a directory", []string{"swarm", "run", "--plan", p.dir}}, {"there is no file " + gone, []string{"loop", "run", gone, "--agent", "words"}},
		{"the directory " + file + " cannot be created", []string{"man", file}},
	} {
		o := p.run(t, tt.args...)
		if o.code == 0 || !strings.Contains(o.stderr, tt.want) || strings.Contains(o.stderr, "no such file") || len(strings.Split(strings.TrimSpace(o.stderr), "\n")) < 2 {
			t.Errorf("%q: %+v", tt.args, o)
		}
	}
}

// A shell offers files only where a file is meant, and the values of every flag that has only a few.
func TestEveryFlagHasACompletion(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	for _, tt := range []struct{ line, want string }{
		{"agents --format ", "json pretty"}, {"start --durability ", "always commit fast"}, {"network work --state ", "claimed completed dead discarded queued"},
		{"config show ", "hub mcp"}, {"tasks --limit ", ""}, {"send --timeout ", ""}, {"agents ", "quiet rename"}, {"doc share d a ", "none owner reader writer"},
	} {
		got := p.completions(t, strings.Split(tt.line, " ")...)
		slices.Sort(got)
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%q: %q", tt.line, got)
		}
	}
	for line, directive := range map[string]string{
		"tasks --limit ": ":4", "agents ": ":4", "send --dir ": ":16", "man ": ":16", "swarm run --plan ": ":0", "--config ": ":0", "loop run ": ":0",
	} {
		if o := p.run(t, append([]string{"__complete"}, strings.Split(line, " ")...)...); !strings.Contains(o.stdout, directive+"\n") {
			t.Errorf("%q: %+v", line, o)
		}
	}
}

func TestSwarmsAreListedLeftAndStopped(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	want(t, p.run(t, "swarm"), 0, "Usage:")
	if o := p.run(t, "swarm", "walk"); o.code != 2 || !strings.Contains(o.stderr, "run, list, show and stop") {
		t.Errorf("%+v", o)
	}
	want(t, p.run(t, "swarm", "list"), 0, "There are no swarms.")
	o := p.run(t, "swarm", "run", "--detach", "--agents", "hangs", "think")
	id := strings.TrimSpace(o.stdout)
	if o.code != 0 || !strings.Contains(o.stderr, "swarm show "+id) {
		t.Fatalf("%+v", o)
	}
	// After Ctrl-C the swarm keeps running, and the command says how to stop it.
	notified, signals, done := newWatched("swarm "+id), make(chan os.Signal, 1), make(chan int, 1)
	go func() {
		done <- cli.Run(t.Context(), "parley", p.args("swarm", "show", "--follow", id), strings.NewReader(""), io.Discard, notified, nil, signals)
	}()
	<-notified.seen
	signals <- os.Interrupt
	if code := <-done; code != 130 || !strings.Contains(notified.text.String(), "swarm stop "+id) {
		t.Errorf("exit %d, %q", code, notified.text.String())
	}
	list := decode[[]struct{ ID, Status string }](t, p.run(t, "--format", "json", "swarm", "list"))
	if len(list) != 1 || list[0].ID != id || list[0].Status == string(swarm.Failed) {
		t.Errorf("%+v", list)
	}
	stopped := session(t, p.run(t, "--format", "json", "swarm", "stop", id))
	if stopped.ID != id || !stopped.Status.Ended() || stopped.Status == swarm.Completed {
		t.Errorf("%+v", stopped)
	}
	want(t, p.run(t, "swarm", "show", id), 0, "led by hub:")
}

func TestPeersAsJSONAndWithoutAList(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	bob := identity.Generate().Public().String()
	type peer struct{ Name, Key string }
	if got := decode[peer](t, p.run(t, "--format", "json", "peers", "pair", bob, "--name", "bob")); got != (peer{"bob", bob}) {
		t.Errorf("paired with %+v", got)
	}
	if got := decode[peer](t, p.run(t, "--format", "json", "peers", "remove", strings.ToUpper(bob))); got != (peer{"bob", bob}) {
		t.Errorf("removed %+v", got)
	}
	if o := p.run(t, "peers", "remove", "bob"); o.code != 2 || !strings.Contains(o.stderr, "peers list") {
		t.Errorf("%+v", o)
	}
	want(t, p.run(t, "peers"), 0, "Usage:")
	if err := os.WriteFile(peers.AllowPath(p.dir), []byte("no key at all\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"list"}, {"remove", "bob"}, {"pair", bob}} {
		o := p.run(t, append([]string{"--format", "json", "peers"}, args...)...)
		var notified struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal([]byte(o.stderr), &notified); err != nil || o.code != 1 || notified.Error.Code != "peers" || notified.Error.Message == "" {
			t.Errorf("%q: %v, %+v", args, err, o)
		}
	}
}

func TestDocumentIsWatchedUntilCtrlC(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	want(t, p.run(t, "doc", "edit", "plan", "--set", "m.k=1"), 0, `"k": 1`)
	out, signals, done := p.background(t, `"k": 2`, "doc", "watch", "plan")
	want(t, p.run(t, "doc", "edit", "plan", "--set", "m.k=2"), 0, `"k": 2`)
	<-out.seen
	signals <- os.Interrupt
	if code := <-done; code != 0 {
		t.Errorf("exit %d", code)
	}
	if o := p.run(t, "--format", "json", "doc", "compact", "plan"); o.code != 0 || !json.Valid([]byte(o.stdout)) {
		t.Errorf("%+v", o)
	}
	if o := p.run(t, "doc", "compact", "none"); o.code == 0 || !strings.Contains(o.stderr, "there is no document none") {
		t.Errorf("%+v", o)
	}
}

func TestLoopIsStoppedByAnotherProcess(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	path := p.list(t, "- [ ] think\n")
	want(t, p.run(t, "loop"), 0, "Usage:")
	if o := p.run(t, "loop", "walk"); o.code != 2 || !strings.Contains(o.stderr, `"loop walk"`) {
		t.Errorf("%+v", o)
	}
	want(t, p.run(t, "--format", "json", "loop", "stop", path), 0, `{"stopping":false}`)
	out, _, done := p.background(t, "think", "loop", "run", path, "--agent", "hangs")
	<-out.seen
	want(t, p.run(t, "loop", "status", path), 0, "A loop is running on this list.")
	if o := p.run(t, "loop", "run", path, "--agent", "words"); o.code != 1 || !strings.Contains(o.stderr, "a loop is already running on this list") {
		t.Errorf("%+v", o)
	}
	want(t, p.run(t, "loop", "stop", path), 0, "The loop is stopping.")
	if code := <-done; code != 130 {
		t.Errorf("exit %d", code)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "- [ ] think\n" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestManNeedsADirectoryThatCanBeCreated(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	file := filepath.Join(p.dir, "config.yaml")
	if o := p.run(t, "man", filepath.Join(file, "pages")); o.code == 0 || o.stdout != "" || !strings.Contains(o.stderr, "error:") {
		t.Errorf("%+v", o)
	}
}

// The network commands with JSON output, and those that watch.
func TestNetworkCommandsWatchAndPrintJSON(t *testing.T) {
	p := newSetup(t)
	_, agent := network(t, false)
	want(t, p.run(t, "network"), 0, "Usage:")
	want(t, p.run(t, "network", "work"), 0, "There is no work.")
	want(t, p.run(t, "network", "dead-letters"), 0, "There are no dead letters.")
	want(t, p.run(t, "network", "agents", "--removed"), 0, "LAST HEARTBEAT")
	if list := decode[[]registry.Removal](t, p.run(t, "--format", "json", "network", "agents", "--removed")); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	out, signals, done := p.background(t, cli.ShortID(agent.GUID()), "network", "agents", "--watch")
	<-out.seen
	signals <- os.Interrupt
	if code := <-done; code != 0 {
		t.Errorf("watch: exit %d", code)
	}

	o := p.run(t, "network", "inbox")
	_, guid, ok := strings.Cut(strings.TrimSuffix(strings.TrimSpace(o.stdout), "."), "at the GUID ")
	if !ok {
		t.Fatalf("%+v", o)
	}
	out, signals, done = p.background(t, "are you there?", "network", "inbox", "--watch")
	if _, err := agent.Send(t.Context(), mail.Message{Recipient: guid, Text: "are you there?", Metadata: map[string]any{"n": 1}}); err != nil {
		t.Fatal(err)
	}
	<-out.seen
	signals <- os.Interrupt
	if code := <-done; code != 0 {
		t.Errorf("watch: exit %d", code)
	}
	letter := decode[struct {
		SenderGUID, Message string
		Metadata            map[string]any
	}](t, p.run(t, "--format", "json", "network", "inbox", "--all"))
	if letter.SenderGUID != agent.GUID() || letter.Message != "are you there?" || letter.Metadata["n"] != 1.0 {
		t.Errorf("%+v", letter)
	}
	sent := decode[map[string]string](t, p.run(t, "--format", "json", "network", "send", cli.ShortID(agent.GUID()), "yes"))
	if sent["recipientGuid"] != agent.GUID() || sent["recipientHandle"] != "worker-1" || sent["messageId"] == "" {
		t.Errorf("%+v", sent)
	}

	if _, err := agent.Submit(t.Context(), work.Submission{Capability: "go", Offer: mail.Offer{TaskID: "T-1", Description: "build it"}}); err != nil {
		t.Fatal(err)
	}
	claim, err := agent.Claim(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Reject(t.Context(), "T-1", claim.Token, "no compiler", true); err != nil {
		t.Fatal(err)
	}
	letters := decode[[]work.DeadLetter](t, p.run(t, "--format", "json", "network", "dead-letters", "--queue", "go"))
	if len(letters) != 1 || letters[0].TaskID != "T-1" {
		t.Errorf("%+v", letters)
	}
	if gone := decode[work.DeadLetter](t, p.run(t, "--format", "json", "network", "dead-letters", "--discard", "T-1")); gone.TaskID != "T-1" {
		t.Errorf("%+v", gone)
	}
	want(t, p.run(t, "network", "dead-letters"), 0, "There are no dead letters.")
	if o := p.run(t, "network", "permissions"); o.code != 0 || !strings.Contains(o.stdout, "# agent ") || !strings.Contains(o.stderr, "crossComputer.agentGuid") {
		t.Errorf("%+v", o)
	}
}
