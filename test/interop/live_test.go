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

// eachLive is each for the drivers whose process lives on between the turns.
func eachLive(t *testing.T, test func(t *testing.T, def runner.Definition)) {
	each(t, func(t *testing.T, def runner.Definition, _ bool) {
		if def.Driver == runner.DriverExec {
			return // a program that is run once a turn does not live on
		}
		test(t, def)
	})
}

// running are the processes of the conversation, by their command lines.
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
			continue // it has ended, or is somebody else's
		}
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			if !bytes.HasPrefix(kv, mark) || !bytes.Contains(kv, []byte(c.owner+".")) {
				continue
			}
			command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
			pid, _ := strconv.Atoi(filepath.Base(dir))
			if err == nil && len(command) > 0 { // an empty one is a zombie's
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
		after := c.running(t)
		// Short-lived helpers come and go; the program itself stays.
		kept := 0
		for pid, command := range before {
			if after[pid] == command {
				kept++
			}
		}
		if kept == 0 {
			t.Errorf("before: %v, after: %v", before, after)
		}
	})
}

// What a conversation can be continued without is ended with a cancelled turn;
// gemini keeps its process, which alone knows the conversation.
func TestACancelledTurnLeavesAtMostTheAgentAndItsMemory(t *testing.T) {
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
			t.Errorf("left: %v", left)
		}
		out, h := c.ok(t, "REMEMBER two")
		n, _ := strconv.Atoi(strings.TrimPrefix(out.Text, "user turns seen: "))
		if n < 2 { // gemini forgets the turn that was cancelled, others count more than one
			t.Errorf("after a cancelled turn: %q, %+v", out.Text, h.events)
		}
	})
}

func TestAToolsOrphanEndsWithItsTurn(t *testing.T) {
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

func TestAProgramThatIsKilledFailsTheTurnAndTheNextGoesOn(t *testing.T) {
	eachLive(t, func(t *testing.T, def runner.Definition) {
		c := converse(t, def, t.TempDir(), "")
		c.ok(t, "REMEMBER one")
		out, err := c.say(t, t.Context(), "SLOW", &record{seen: func(e runner.Event) {
			if d, ok := e.(runner.TextDelta); ok && strings.Contains(d.Text, "tick 2") {
				for pid := range c.running(t) {
					_ = syscall.Kill(pid, syscall.SIGKILL) // some end with their parent
				}
			}
		}})
		var re *runner.Error
		if out.Status != runner.OutcomeFailed || !errors.As(err, &re) || re.Code != runner.CodeProtocol {
			t.Fatalf("%s, %v", out.Status, err)
		}
		if left := c.running(t); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		out, h := c.ok(t, "REMEMBER two")
		if out.Text == "user turns seen: 1" && len(eventsOf[runner.Notice](h)) == 0 {
			t.Errorf("the conversation was lost without a word: %+v", h.events)
		}
		fmt.Fprintln(t.Output(), out.Text)
	})
}

func TestAPermissionQuestionIsAskedOfACancelledTurn(t *testing.T) {
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

// decidesItself tells of an agent that does not ask: codex-acp has a reviewer
// model of its own answer.
func decidesItself(def runner.Definition) bool { return def.ID == "codex-acp" }

// cancelling cancels the turn when it is asked.
type cancelling struct {
	*record
	cancel func()
}

func (c *cancelling) Permission(ctx context.Context, _ runner.PermissionRequest) (runner.PermissionAnswer, error) {
	c.cancel()
	<-ctx.Done()
	return runner.PermissionAnswer{}, ctx.Err()
}
