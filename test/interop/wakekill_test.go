//go:build interop && linux

package interop_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/stubmodel"
)

var wakeKills = flag.Int("wake-kills", 1, "second opinions with a kill, in TestSecondOpinionsSurviveKills")

// The steps at which something is killed.
const (
	given    = "given"    // the task is stored
	read     = "read"     // codex has read it and has not answered
	answered = "answered" // the answer is stored
)

// killedAt has what is killed in turn, and when.
var killedAt = []struct{ victim, step string }{
	{"hub", answered}, {"hub", given}, {"hub", read},
	{"session", given}, {"session", read}, {"server", given}, {"server", read},
}

// reviews are what the models of both sessions see.
type reviews struct {
	mu    sync.Mutex
	tasks map[string]int // how often codex has read a task
	shown map[string]int // how often claude has read an answer

	hold    bool
	reached chan string   // has the task that codex has read, if hold is set
	release chan struct{} // has a value when codex may answer it
}

func (r *reviews) script(said, result string, used int) string {
	next := secondOpinion(said, result, used)
	m := taskID.FindStringSubmatch(result)
	if used != 1 || m == nil || strings.Contains(said, askReview) {
		return next
	}
	r.mu.Lock()
	if answerType.MatchString(result) {
		r.shown[m[1]]++
		r.mu.Unlock()
		return next
	}
	r.tasks[m[1]]++
	hold := r.hold
	r.hold = false
	r.mu.Unlock()
	if hold {
		r.reached <- m[1]
		<-r.release
	}
	return next
}

// counts says how often a task and its answer were read.
func (r *reviews) counts(id string) (task, answer int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tasks[id], r.shown[id]
}

// Whatever is killed at whatever step: the answer comes to the session that asked, once, and the task says truly what happened.
func TestSecondOpinionsSurviveKills(t *testing.T) {
	t.Parallel()
	r := &reviews{tasks: make(map[string]int), shown: make(map[string]int), reached: make(chan string, 1), release: make(chan struct{}, 1)}
	o := newOpinions(t, &stubmodel.Handler{Script: r.script})
	for i := range *wakeKills {
		k := killedAt[i%len(killedAt)]
		began := time.Now()
		o.survives(t, r, k.victim, k.step)
		t.Logf("%d: %s killed when the task was %s: %s", i, k.victim, k.step, time.Since(began).Round(time.Millisecond))
	}
}

func (o *opinions) survives(t *testing.T, r *reviews, victim, step string) {
	t.Helper()
	before := len(o.hubTasks())
	r.mu.Lock()
	r.hold = step == read
	r.mu.Unlock()
	var id string
	o.claude.enter(t, askReview, func() bool {
		all := o.hubTasks()
		if len(all) > before {
			id = all[0].ID
		}
		return id != ""
	})
	switch step {
	case read:
		select {
		case <-r.reached:
		case <-time.After(2 * time.Minute):
			t.Fatalf("codex has not read %s", id)
		}
	case answered:
		until(t, "it is answered", func() bool { return o.hubTask(id).Status.State == dialect.StateCompleted })
	}
	o.kill(t, victim)
	if step == read {
		r.release <- struct{}{}
	}
	if victim != "hub" {
		o.resume(t)
	}
	until(t, "the answer is in the session that asked", func() bool {
		_, answer := r.counts(id)
		return answer > 0 && o.hubTask(id).Status.State == dialect.StateCompleted
	})
	until(t, "the answer is on the screen", func() bool { return strings.Contains(o.claude.screen(t), "codexsays:VERDICT-"+id) })
	task, answer := r.counts(id)
	most := 1
	if victim != "hub" {
		most = 2 // the conversation that read it may be gone
	}
	if task > most || answer != 1 {
		t.Errorf("%s killed when the task was %s: codex has read it %d times, claude the answer %d times", victim, step, task, answer)
	}
	done := o.hubTask(id)
	if got := done.Status.Message.Text(); got != "VERDICT-"+id {
		t.Errorf("the answer is %q", got)
	}
	if x := hub.ReceiptsOf(done.Metadata); x.HeldAt+x.RefusedAt != "" {
		t.Errorf("the receipts are %+v", x)
	}
}

// kill ends a process as kill -9 does.
func (o *opinions) kill(t *testing.T, victim string) {
	t.Helper()
	pid := 0
	switch victim {
	case "hub":
		until(t, "the hub is there", func() bool {
			_ = o.onHub(func(ctx context.Context, c *client.Client) error {
				status, err := c.Status(ctx)
				if err == nil {
					pid = status.PID
				}
				return err
			})
			return pid != 0
		})
	case "session":
		var err error
		pid, err = strconv.Atoi(strings.TrimSpace(o.tmux(t, "display-message", "-p", "-t", o.codex.id, "#{pane_pid}")))
		if err != nil {
			t.Fatal(err)
		}
	case "server":
		until(t, "codex has an MCP server", func() bool { // one that is just opened again has none yet
			pid = o.codexServer(t)
			return pid != 0
		})
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(victim, pid, err)
	}
}

// codexServer returns the process of Codex's MCP server, 0 if there is none.
func (o *opinions) codexServer(t *testing.T) (pid int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || string(line) != o.parley+"\x00mcp\x00" {
			continue
		}
		id := filepath.Base(filepath.Dir(file))
		env, err := os.ReadFile("/proc/" + id + "/environ")
		if err == nil && !strings.Contains(string(env), "CLAUDE_CODE_SESSION_ID=") {
			pid, _ = strconv.Atoi(id)
		}
	}
	return pid
}

// resume opens codex's session again.
func (o *opinions) resume(t *testing.T) {
	t.Helper()
	_ = o.command("kill-session", "-t", o.codex.id).Run() // it may be gone
	o.codex.cli = []string{"codex", "resume", "--last"}
	o.codex.begin(t)
}

// onHub calls the hub, if it is there.
func (o *office) onHub(do func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, filepath.Join(o.Dir, ".a2a-hub", "hub.sock"))
	if err != nil {
		return err
	}
	defer c.Close()
	return do(ctx, c)
}

// hubTasks returns all tasks, the newest first; none if the hub is not there now.
func (o *office) hubTasks() (all []dialect.Task) {
	_ = o.onHub(func(ctx context.Context, c *client.Client) error {
		page, err := c.Tasks(ctx, dialect.TasksListParams{Limit: 1000})
		all = page.Tasks
		return err
	})
	return all
}

// hubTask returns a task, the zero value if the hub is not there now.
func (o *office) hubTask(id string) dialect.Task {
	for _, task := range o.hubTasks() {
		if task.ID == id {
			return task
		}
	}
	return dialect.Task{}
}
