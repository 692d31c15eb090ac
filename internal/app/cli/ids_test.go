//go:build unix

package cli_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/cli"
)

// firstCell returns the first cell of a row of a table: 0 are the headings.
func firstCell(t *testing.T, o outcome, row int) string {
	t.Helper()
	lines := strings.Split(o.stdout, "\n")
	if o.code != 0 || len(lines) <= row || lines[row] == "" {
		t.Fatalf("no row %d: %+v", row, o)
	}
	return strings.Fields(lines[row])[0]
}

func TestEveryFormOfATasksIDIsAccepted(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	older := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "echo", "one"))
	p.run(t, "send", "echo", "two\nlines")
	table := p.run(t, "tasks")
	if short := firstCell(t, table, 2); short == older.ID || !strings.HasSuffix(older.ID, short) {
		t.Errorf("the short form of %s is %q", older.ID, short)
	}
	if !strings.Contains(table.stdout, "  two\n") || strings.Index(table.stdout, "two") > strings.Index(table.stdout, "one") {
		t.Errorf("the newest task is not first, or not with what was asked: %q", table.stdout)
	}
	for _, tt := range []struct {
		given, want string
	}{
		{older.ID, "one"}, {firstCell(t, table, 2), "one"}, {strings.ToUpper(firstCell(t, table, 2)), "one"}, {firstCell(t, table, 1), "two"},
		{older.ID[:len(older.ID)-1], "one"}, {"latest", "two"},
	} {
		want(t, p.run(t, "task", "show", tt.given), 0, "\n  "+tt.want)
		want(t, p.run(t, "task", "follow", tt.given), 0, tt.want)
	}
	// Of more tasks than there are digits, two begin with the same one.
	begins := map[string]string{older.ID[:1]: older.ID}
	var first, second string
	for second == "" {
		task := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "echo", "again"))
		if first = begins[task.ID[:1]]; first != "" {
			second = task.ID
		}
		begins[task.ID[:1]] = task.ID
	}
	o := p.run(t, "task", "show", second[:1])
	if o.code != 2 || !strings.Contains(o.stderr, first) || !strings.Contains(o.stderr, second+"  completed  echo  again\n") {
		t.Errorf("an ambiguous id: %+v", o)
	}
	if o := p.run(t, "task", "show", "nonsense"); o.code != 4 || !strings.Contains(o.stderr, `"nonsense"`) {
		t.Errorf("an unknown id: %+v", o)
	}
}

func TestEveryFormOfAContextsIDIsAccepted(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	if o := p.run(t, "send", "echo", "hi", "--context", "latest"); o.code != 4 || !strings.Contains(o.stderr, "there is no conversation yet") {
		t.Errorf("latest without any: %+v", o)
	}
	unnamed := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "echo", "one"))
	for _, given := range []string{"latest", firstCell(t, p.run(t, "contexts"), 1), unnamed.ContextID[:len(unnamed.ContextID)-1]} {
		if got := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "echo", "more", "--context", given)); got.ContextID != unnamed.ContextID {
			t.Errorf("%q continues %s, not %s", given, got.ContextID, unnamed.ContextID)
		}
	}
	// A part of a name is another name, and a new conversation.
	p.run(t, "send", "echo", "hi", "--context", "review")
	if got := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "echo", "more", "--context", "rev")); got.ContextID != "rev" {
		t.Errorf("rev became %s", got.ContextID)
	}
	want(t, p.run(t, "tasks", "--context", "revi"), 0, "hi")
}

func TestEveryFormOfOtherIDsIsAccepted(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	s := session(t, p.run(t, "swarm", "run", "--agents", "words", "--format", "json", "say it"))
	for _, given := range []string{"latest", firstCell(t, p.run(t, "swarm", "list"), 1), s.ID[:5]} {
		want(t, p.run(t, "swarm", "show", given), 0, s.ID)
	}
	p.run(t, "doc", "edit", "planning", "--set", "m.k=1")
	p.run(t, "doc", "edit", "plants", "--set", "m.k=2")
	want(t, p.run(t, "doc", "show", "plann"), 0, `"k": 1`)
	if o := p.run(t, "doc", "show", "pnatls"); o.code != 4 || !strings.Contains(o.stderr, `did you mean "plants"?`) {
		t.Errorf("an unknown name: %+v", o)
	}
	if o := p.run(t, "doc", "show", "plan"); o.code != 2 || !strings.Contains(o.stderr, "planning\n") {
		t.Errorf("an ambiguous name: %+v", o)
	}
}

func TestEveryFormOfAPeersNameIsAccepted(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	keys := map[string]string{}
	for _, name := range []string{"berlin", "bern", "oslo"} {
		keys[name] = identity.Generate().Public().String()
		want(t, p.run(t, "peers", "pair", keys[name], "--name", name), 0, "paired with "+name)
	}
	for given, message := range map[string]string{"ber": "more than one peer:\n  ber", "osl0": `did you mean "oslo"?`, "latest": "no peer is called"} {
		if o := p.run(t, "peers", "remove", given); o.code != 2 || !strings.Contains(o.stderr, message) {
			t.Errorf("%s: %+v", given, o)
		}
	}
	if got := p.completions(t, "peers", "remove", ""); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"berlin", "bern", "oslo"}) {
		t.Errorf("offered: %q", got)
	}
	want(t, p.run(t, "peers", "remove", "berl"), 0, "removed berlin\n")
	want(t, p.run(t, "peers", "remove", keys["oslo"][:12]), 0, "removed oslo\n")
}

func TestEveryFormOfAListIsAccepted(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	if o := p.run(t, "loop", "status", "latest"); o.code != 4 || !strings.Contains(o.stderr, "there is no list yet") {
		t.Errorf("%+v", o)
	}
	var paths []string
	for _, name := range []string{"cleanup.md", "clients.md"} {
		paths = append(paths, filepath.Join(p.dir, name))
		if err := os.WriteFile(paths[len(paths)-1], []byte("- [ ] work on "+name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		want(t, p.run(t, "loop", "run", paths[len(paths)-1], "--agent", "words"), 0, "completed")
	}
	want(t, p.run(t, "loop", "status", "latest"), 0, "clients.md")
	want(t, p.run(t, "loop", "status", "cle"), 0, "cleanup.md")
	want(t, p.run(t, "loop", "stop", paths[0][:len(paths[0])-1]), 0, "No loop is running on this list.")
	if o := p.run(t, "loop", "status", "cl"); o.code != 2 || !strings.Contains(o.stderr, paths[0]+"\n") {
		t.Errorf("an ambiguous name: %+v", o)
	}
	if o := p.run(t, "loop", "status", "celanup.md"); o.code != 4 || !strings.Contains(o.stderr, `did you mean "cleanup.md"?`) {
		t.Errorf("an unknown name: %+v", o)
	}
	if got := p.completions(t, "loop", "status", ""); !slices.Equal(got, []string{paths[1], paths[0]}) {
		t.Errorf("offered: %q", got)
	}
}

// The short forms of a table differ, and each is an end of its id.
func TestPropertyShortIDsDiffer(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfDistinct(rapid.StringMatching(`[01]{8}-0000-7000-8000-[01]{3}000000000|[a-z]{1,10}`), rapid.ID).Draw(t, "ids")
		shorten, seen := cli.ShortIDs(ids), map[string]bool{}
		for _, id := range ids {
			short := shorten(id)
			if seen[short] || !strings.HasSuffix(id, short) || short == "" {
				t.Fatalf("%s becomes %q", id, short)
			}
			seen[short] = true
		}
	})
}

func TestUnknownNamesGetASuggestion(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"send", "ecko", "hi"}, `did you mean "echo"?`}, {[]string{"send", "hos", "hi"}, `did you mean "hostile"?`},
		{[]string{"task", "shwo"}, `did you mean "show"?`}, {[]string{"swarm", "run", "--agents", "word", "x"}, `did you mean "words"?`},
		{[]string{"tasks", "--agent", "wrds"}, `did you mean "words"?`},
	} {
		if o := p.run(t, tt.args...); !strings.Contains(o.stderr, tt.want) {
			t.Errorf("%q: %+v", tt.args, o)
		}
	}
}

func TestTimesInEveryForm(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{"5s", "5s"}, {"250", "250ms"}, {"1h30m", "1h30m0s"}, {"2d", "48h0m0s"}, {"0", "0"}, {"-1", "error"}, {"-5s", "error"}, {"soon", "error"}, {"", "error"}, {"9223372036854775807", "error"},
	} {
		if got := cli.ParseTimeFlag(tt.in); got != tt.want {
			t.Errorf("%q is %s, want %s", tt.in, got, tt.want)
		}
	}
	if diff := cmp.Diff(cli.Milliseconds("1us"), int64(1)); diff != "" {
		t.Error(diff)
	}
}
