package daemon

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/ralph"
)

// loopRig is the loops that failed, with a clock.
type loopRig struct {
	*failedLoops
	t    *testing.T
	time time.Time
}

func newLoopRig(t *testing.T) *loopRig {
	r := &loopRig{t: t, time: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)}
	r.reopen(filepath.Join(t.TempDir(), "loops.json"))
	return r
}

func (r *loopRig) reopen(path string) {
	r.t.Helper()
	l, err := openLoops(path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.failedLoops = l
}

func (r *loopRig) takes(list string, steps ...ralph.Step) {
	r.t.Helper()
	for _, s := range steps {
		r.time = r.time.Add(time.Second)
		s.Time = r.time
		if err := r.step(list, s); err != nil {
			r.t.Fatal(err)
		}
	}
}

// waits compares the loops that failed, as "LIST GIVENUP REASON".
func (r *loopRig) waits(want ...string) {
	r.t.Helper()
	var got []string
	for _, f := range r.Failed() {
		got = append(got, fmt.Sprint(f.List, " ", f.GivenUp, " ", f.Reason))
	}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		r.t.Errorf("failed are %q, want %q", got, want)
	}
}

func TestALoopThatFailedWaitsForItsUser(t *testing.T) {
	r := newLoopRig(t)
	r.takes("fine", ralph.Step{Kind: ralph.Began}, ralph.Step{Kind: ralph.Failed, Detail: "once"}, ralph.Step{Kind: ralph.Done}, ralph.Step{Kind: ralph.Finished})
	r.takes("gave-up", ralph.Step{Kind: ralph.Began}, ralph.Step{Kind: ralph.Dropped, Detail: "the tests\nfail"})
	r.waits() // it goes on
	r.takes("gave-up", ralph.Step{Kind: ralph.Finished, GivenUp: 2})
	r.takes("by-user", ralph.Step{Kind: ralph.Began}, ralph.Step{Kind: ralph.Dropped, Detail: "x"}, ralph.Step{Kind: ralph.Halted, Code: ralph.CodeStopped, Detail: "interrupted"})
	r.takes("no-agent", ralph.Step{Kind: ralph.Began}, ralph.Step{Kind: ralph.Halted, Code: ralph.CodeUnavailable, Detail: "nobody is logged in"})
	r.waits("gave-up 2 the tests fail", "no-agent 0 nobody is logged in")

	r.reopen(r.file.Path) // the hub was killed
	r.waits("gave-up 2 the tests fail", "no-agent 0 nobody is logged in")

	r.takes("no-agent", ralph.Step{Kind: ralph.Began})
	r.waits("gave-up 2 the tests fail")
	if found, err := r.Dismiss("gave-up"); err != nil || !found {
		t.Errorf("dismissed %v: %v", found, err)
	}
	if found, err := r.Dismiss("gave-up"); err != nil || found {
		t.Errorf("dismissed again %v: %v", found, err)
	}
	r.reopen(r.file.Path)
	r.waits()
}

func TestALoopFailsWithItsLastStepOnly(t *testing.T) {
	for _, tc := range []struct {
		step ralph.Step
		want string
	}{
		{ralph.Step{Kind: ralph.Finished}, ""}, {ralph.Step{Kind: ralph.Finished, GivenUp: 1}, "gave up 1 item"}, {ralph.Step{Kind: ralph.Dropped}, ""},
		{ralph.Step{Kind: ralph.Halted, Code: ralph.CodeStopped}, ""}, {ralph.Step{Kind: ralph.Halted, Code: ralph.CodeUnavailable, Detail: "secret"}, "an error AGENTS_AWAY"},
		{ralph.Step{Kind: ralph.Halted}, "an error"},
	} {
		if got := loopFailure(tc.step); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.step, got, tc.want)
		}
	}
}

func TestFailedLoopsAreBounded(t *testing.T) {
	r := newLoopRig(t)
	for i := range maxFailedLoops + 3 {
		r.takes(fmt.Sprint("loop-", i), ralph.Step{Kind: ralph.Halted, Code: ralph.CodeList, Detail: strings.Repeat("é", 1000)})
	}
	failed := r.Failed()
	if len(failed) != maxFailedLoops || failed[0].List != "loop-3" || len(failed[0].Reason) > maxLoopReason+10 {
		t.Errorf("%d from %s, a reason of %d bytes", len(failed), failed[0].List, len(failed[0].Reason))
	}
}

// The file of former programs was a list without a version.
func TestFailedLoopsOfAFormerProgramAreThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "loops.json")
	if err := os.WriteFile(path, []byte(`[{"list":"/l","at":"2026-11-28T10:00:00Z","givenUp":2,"reason":"r"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := openLoops(path, nil); err != nil || len(l.Failed()) != 1 || l.Failed()[0].List != "/l" {
		t.Errorf("%+v, %v", l.Failed(), err)
	}
}

func TestUnreadableFailedLoopsAreNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "loops.json")
	if err := os.WriteFile(path, []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	noted := 0
	if l, err := openLoops(path, func(statefile.Damage) { noted++ }); err != nil || len(l.Failed()) != 0 || noted != 1 {
		t.Errorf("damaged: %v: %v, noted %d times", l, err, noted)
	}
	if l, err := openLoops(filepath.Dir(path), nil); err == nil || l == nil || len(l.Failed()) != 0 {
		t.Errorf("a directory: %v: %v", l, err)
	}
}

// A hub whose file of failed loops cannot be read starts, and says so in its log.
func TestAHubStartsWithoutItsFailedLoops(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "failed-loops.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Options{Overrides: []config.Override{{Key: "dataDir", Value: dir}, {Key: "socket.path", Value: filepath.Join(dir, "hub.sock")}, {Key: "http.enabled", Value: "false"}},
		LookupEnv: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var log bytes.Buffer
	started := false
	err = Run(ctx, cfg, Options{Version: "test", Logger: slog.New(slog.NewTextHandler(&log, nil)), Ready: func(Info) { started = true; cancel() }})
	if err != nil || !started || !strings.Contains(log.String(), "loops that failed before cannot be read") {
		t.Errorf("started %v: %v\n%s", started, err, log.String())
	}
}
