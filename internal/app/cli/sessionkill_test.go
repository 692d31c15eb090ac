//go:build unix

package cli_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
)

var (
	sessionKills = flag.Int("session-kills", 5, "kills of hub and session while tasks are given and answered; `make soak` has 300")
	sessionSeed  = flag.Uint64("session-seed", 0, "repeats the moments of a run; 0 is a random one")
)

// maxKillDelay is the longest time between the begin of a step and the kill in it.
const maxKillDelay = 40 * time.Millisecond

// killed is a session whose tasks are given and answered while processes are killed.
type killed struct {
	*machine
	random   *rand.Rand
	s        *openedSession
	states   map[string]int // the furthest state in which each task was seen
	notified map[string]int // how often a hook has told the session of each task
	signs    map[string]hub.Receipts
}

// stateRanks are the states of a task that is answered, in their order.
var stateRanks = map[dialect.TaskState]int{dialect.StateSubmitted: 1, dialect.StateWorking: 2, dialect.StateCompleted: 3}

// look returns a task, which must not be in an earlier state than before.
func (k *killed) look(id string) dialect.Task {
	k.t.Helper()
	task := k.task(id)
	rank := stateRanks[task.Status.State]
	if rank == 0 || rank < k.states[id] {
		k.t.Fatalf("task %s is %s after state %d", id, task.Status.State, k.states[id])
	}
	k.states[id] = rank
	signs := hub.ReceiptsOf(task.Metadata)
	// A killed hub may have to take the sign from the message's receipt when it resumes the task.
	if before := k.signs[id]; before.ShownAt != "" && signs.ShownAt != "" && before != signs || signs.ShownAt != "" && k.notified[id] == 0 || signs.WokenAt+signs.HeldAt+signs.RefusedAt != "" {
		k.t.Fatalf("the receipts of task %s are %+v after %+v; the session was told of it %d times", id, signs, before, k.notified[id])
	}
	if signs.ShownAt != "" {
		k.signs[id] = signs
	}
	return task
}

// open opens the session, whose hooks are called as those of Claude Code.
func (k *killed) open() *openedSession {
	k.t.Helper()
	s := k.program("claude-code", "a")
	k.hook("SessionStart", hookInput("SessionStart"))
	return s
}

// tell calls the hook of a turn of the session, and reports whether it says a task.
func (k *killed) tell(id string) bool {
	k.t.Helper()
	said := strings.Contains(k.hook("UserPromptSubmit", hookInput("UserPromptSubmit")), id)
	if said {
		k.notified[id]++
	}
	return said
}

// soon kills the hub at a random moment. The caller waits for done.
func (k *killed) soon() (done chan struct{}) {
	done = make(chan struct{})
	delay := time.Duration(k.random.Int64N(int64(maxKillDelay)))
	go func() {
		defer close(done)
		time.Sleep(delay)
		k.killHub()
	}()
	return done
}

// killSession kills the session at a random moment of a call, and opens it again.
func (k *killed) killSession(tool, arguments string) {
	k.t.Helper()
	k.s.calls++
	fmt.Fprintf(k.s.in, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`+"\n", k.s.calls, tool, arguments)
	time.Sleep(time.Duration(k.random.Int64N(int64(maxKillDelay))))
	if err := k.s.Process.Kill(); err != nil {
		k.t.Fatal(err)
	}
	_ = k.s.Wait() // it was killed
	k.s = k.open()
}

func answerOf(id string) string { return fmt.Sprintf(`{"taskId":%q,"text":"answer to %s"}`, id, id) }

// answer answers all tasks that the session has, until the one with an id is completed.
func (k *killed) answer(id string) {
	k.t.Helper()
	had := map[string]bool{id: true} // it may have been read before
	wait.Eventually(k.t, "the task is completed", func() bool {
		text := k.s.say("read_direct_messages", `{"messageType":"task"}`)
		for _, match := range taskPattern.FindAllStringSubmatch(text, -1) {
			had[match[1]] = true
		}
		for one := range had {
			said := k.s.say("answer_task", "%s", answerOf(one))
			if strings.Contains(said, "is done") || strings.Contains(said, "is completed") || strings.HasPrefix(said, "ConflictError") {
				delete(had, one)
			}
		}
		return k.look(id).Status.State == dialect.StateCompleted
	})
}

// Whatever is killed at whatever moment: every task that was stored is answered, once, its state never goes back, and its receipt
// says that the session was told of it only if a hook has, and stays.
func TestKilledHubsAndSessionsLoseNoTask(t *testing.T) {
	t.Parallel()
	seed := *sessionSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat it with: -session-seed %d", seed)
	k := &killed{machine: newMachine(t), random: rand.New(rand.NewPCG(seed, 0)), states: map[string]int{}, notified: map[string]int{}, signs: map[string]hub.Receipts{}}
	k.s = k.open()
	k.awaitAgent("claude-a", "idle")
	counts := map[string]int{}
	for n := range *sessionKills {
		step := []string{"send", "hook", "read", "read by a killed session", "progress", "answer", "answer by a killed session"}[k.random.IntN(7)]
		counts[step]++
		during := func(name string, do func()) {
			if step != name {
				do()
				return
			}
			done := k.soon()
			do()
			<-done
		}
		var id string
		during("send", func() { id = k.ask("claude-a", fmt.Sprintf("task %d", n)) })
		k.look(id)
		during("hook", func() { k.tell(id) })
		if k.tell(id) && k.notified[id] > 1 {
			counts["notified twice"]++ // a kill, or the end of the hook's time, came before the receipt
		}
		k.look(id)
		during("read", func() { k.s.say("wait_for_direct_messages", `{"messageType":"task","timeout_seconds":2}`) })
		if step == "read by a killed session" {
			k.killSession("read_direct_messages", `{"messageType":"task"}`)
		}
		k.look(id)
		during("progress", func() { k.s.say("report_progress", `{"taskId":%q,"message":"reading"}`, id) })
		if step == "answer by a killed session" {
			k.killSession("answer_task", answerOf(id))
		}
		during("answer", func() { k.s.say("answer_task", "%s", answerOf(id)) })
		k.answer(id)
		wait.Eventually(k.t, "the task has the receipts that it had", func() bool { return hub.ReceiptsOf(k.look(id).Metadata) == k.signs[id] })
		task := k.look(id)
		if said := task.Status.Message.Text(); len(task.History) != 2 || said != "answer to "+id {
			t.Fatalf("the task has %d messages and the answer %q", len(task.History), said)
		}
	}
	t.Logf("kills: %v", counts)
	k.s.end()
}
