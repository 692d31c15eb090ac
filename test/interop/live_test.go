//go:build interop && linux

package interop_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// eachLive is each for the drivers that keep their process between turns.
func eachLive(t *testing.T, test func(t *testing.T, def runner.Definition)) {
	each(t, func(t *testing.T, def runner.Definition, _ bool) {
		if def.Driver == runner.DriverExec {
			return // the program runs once per turn
		}
		test(t, def)
	})
}

// running returns the command lines of the conversation's processes by process id.
func (c *conversation) running(t *testing.T) map[int]string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[int]string)
	mark := []byte(process.MarkerEnv + "=")
	for _, dir := range dirs {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			continue // it has ended, or belongs to another user
		}
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			if !bytes.HasPrefix(kv, mark) || !bytes.Contains(kv, []byte(c.owner+".")) {
				continue
			}
			command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
			pid, _ := strconv.Atoi(filepath.Base(dir))
			if err == nil && len(command) > 0 { // a zombie's is empty
				found[pid] = string(bytes.ReplaceAll(command, []byte{0}, []byte(" ")))
			}
		}
	}
	return found
}

func TestOneProcessServesManyTurns(t *testing.T) {
	eachLive(t, func(t *testing.T, def runner.Definition) {
		c := converse(t, def, t.TempDir(), "")
		c.ok(t, "REMEMBER one")
		before := c.running(t)
		c.ok(t, "REMEMBER two")
		c.stays(t, before)
	})
}

func TestTheFirstTurnIsOfTheWarmProcess(t *testing.T) {
	eachLive(t, func(t *testing.T, def runner.Definition) {
		c := converse(t, def, t.TempDir(), "")
		if err := c.s.(runner.Warmer).Warm(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := c.running(t)
		c.ok(t, "REMEMBER one")
		c.stays(t, before)
	})
}

// stays fails the test unless the program is one of these processes; its short-lived helpers may differ.
func (c *conversation) stays(t *testing.T, before map[int]string) {
	t.Helper()
	after := c.running(t)
	for pid, command := range before {
		if after[pid] == command {
			return
		}
	}
	t.Errorf("before: %v, after: %v", before, after)
}

// A cancelled turn ends every process that the conversation can do without. gemini's
// process remains, because the conversation exists only there.
func TestACancelledTurnLeavesAtMostTheAgentsProcess(t *testing.T) {
	eachLive(t, func(t *testing.T, def runner.Definition) {
		c := converse(t, def, t.TempDir(), "")
		c.ok(t, "REMEMBER one")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out, err := c.say(t, ctx, "SLOW", &record{seen: func(e runner.Event) {
			if d, ok := e.(runner.TextDelta); ok && strings.Contains(d.Text, "tick") {
				cancel()
			}
		}})
		if out.Status != runner.OutcomeCanceled || err != nil {
			t.Fatalf("%s, %v", out.Status, err)
		}
		left := c.running(t)
		if def.ID != "gemini" && len(left) > 0 {
			t.Errorf("still running: %v", left)
		}
		out, h := c.ok(t, "REMEMBER two")
		n, _ := strconv.Atoi(strings.TrimPrefix(out.Text, "user turns seen: "))
		if n < 2 { // gemini does not count the cancelled turn; others do
			t.Errorf("after a cancelled turn: %q, %+v", out.Text, h.events)
		}
	})
}

func TestAnOrphanOfAToolEndsWithTheTurn(t *testing.T) {
	eachLive(t, func(t *testing.T, def runner.Definition) {
		def.Permissions = runner.PermissionsAllow
		c := converse(t, def, t.TempDir(), "")
		_, h := c.ok(t, "TOOL:setsid sleep 4711 >/dev/null 2>&1 </dev/null & echo started")
		if tools := eventsOf[runner.ToolCall](h); len(tools) == 0 {
			t.Errorf("no tool was used: %+v", h.events)
		}
		for pid, command := range c.running(t) {
			if strings.Contains(command, "sleep 4711") && !strings.Contains(command, "setsid") {
				t.Errorf("%d: %s", pid, command)
			}
		}
	})
}

func TestAKilledProgramFailsTheTurnAndTheNextWorks(t *testing.T) {
	eachLive(t, func(t *testing.T, def runner.Definition) {
		c := converse(t, def, t.TempDir(), "")
		c.ok(t, "REMEMBER one")
		out, err := c.say(t, t.Context(), "SLOW", &record{seen: func(e runner.Event) {
			if d, ok := e.(runner.TextDelta); ok && strings.Contains(d.Text, "tick 2") {
				for pid := range c.running(t) {
					_ = syscall.Kill(pid, syscall.SIGKILL) // some have ended with their parent
				}
			}
		}})
		var re *runner.Error
		if out.Status != runner.OutcomeFailed || !errors.As(err, &re) || re.Code != runner.CodeProtocol {
			t.Fatalf("%s, %v", out.Status, err)
		}
		if left := c.running(t); len(left) > 0 {
			t.Errorf("still running: %v", left)
		}
		out, h := c.ok(t, "REMEMBER two")
		if out.Text == "user turns seen: 1" && len(eventsOf[runner.Notice](h)) == 0 {
			t.Errorf("the conversation was lost without a notice: %+v", h.events)
		}
		fmt.Fprintln(t.Output(), out.Text)
	})
}

func TestCancelDuringAPermissionRequest(t *testing.T) {
	eachLive(t, func(t *testing.T, def runner.Definition) {
		if decidesItself(def) {
			return
		}
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		c := converse(t, def, dir, "")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h := &cancelling{record: &record{}, cancel: cancel}
		out, err := c.say(t, ctx, "ESC:touch "+file, h)
		if out.Status != runner.OutcomeCanceled || err != nil {
			t.Fatalf("%s, %v", out.Status, err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Error("the command was run")
		}
	})
}

// decidesItself reports whether an agent does not ask the user: a reviewer model of
// codex-acp answers permission requests.
func decidesItself(def runner.Definition) bool { return def.ID == "codex-acp" }

// cancelling is a Handler that cancels the turn at a permission request.
type cancelling struct {
	*record
	cancel func()
}

func (c *cancelling) Permission(ctx context.Context, _ runner.PermissionRequest) (runner.PermissionAnswer, error) {
	c.cancel()
	<-ctx.Done()
	return runner.PermissionAnswer{}, ctx.Err()
}
