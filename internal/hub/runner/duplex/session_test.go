package duplex_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
	test "github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dialect is a protocol in memory; its connections behave as the fields say and exchange
// no lines.
type dialect struct {
	greet     func(ctx context.Context, n int) error
	open      func(n int, resume string, t *duplex.Turn) (duplex.Opened, error)
	prompt    func(p *peer, text string, t *duplex.Turn) (duplex.Result, error)
	deaf      bool // an interrupt does not end the prompt
	resumable bool

	mu    sync.Mutex
	peers []*peer
}

type peer struct {
	d           *dialect
	n           int // sequence number of the process
	interrupted chan struct{}
	once        sync.Once
	closed      chan struct{}
}

func (d *dialect) Args(resume string) []string { return []string{"resume=" + resume} }

func (d *dialect) Connect(duplex.Pipes) duplex.Connection {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &peer{d: d, n: len(d.peers), interrupted: make(chan struct{}), closed: make(chan struct{})}
	d.peers = append(d.peers, p)
	return p
}

func (d *dialect) started() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.peers)
}

func (p *peer) Greet(ctx context.Context) error {
	if p.d.greet != nil {
		return p.d.greet(ctx, p.n)
	}
	return nil
}

func (p *peer) Open(_ context.Context, resume string, t *duplex.Turn) (duplex.Opened, error) {
	if p.d.open != nil {
		return p.d.open(p.n, resume, t)
	}
	return duplex.Opened{Session: runner.SessionStarted{ID: "session-1"}}, nil
}

func (p *peer) Prompt(ctx context.Context, text string, t *duplex.Turn) (duplex.Result, error) {
	play := p.d.prompt
	if play == nil {
		t.Text(text)
		return duplex.Result{}, nil
	}
	type answer struct {
		r   duplex.Result
		err error
	}
	done := make(chan answer, 1)
	go func() {
		r, err := play(p, text, t)
		done <- answer{r, err}
	}()
	select {
	case a := <-done:
		return a.r, a.err
	case <-p.closed:
	case <-ctx.Done():
	}
	return duplex.Result{}, duplex.ErrClosed
}

func (p *peer) Interrupt() error {
	if !p.d.deaf {
		p.once.Do(func() { close(p.interrupted) })
	}
	return nil
}

func (p *peer) Resumable() bool { return p.d.resumable }
func (p *peer) Close()          { close(p.closed) }

// untilInterrupted blocks until the turn is interrupted, and returns its result.
func untilInterrupted(p *peer, _ string, t *duplex.Turn) (duplex.Result, error) {
	t.Text("tick")
	select {
	case <-p.interrupted:
		return duplex.Result{Canceled: true}, nil
	case <-p.closed:
		return duplex.Result{}, duplex.ErrClosed
	}
}

func idle(a *test.Agent) { a.Wait() }

func newSession(t *testing.T, d *dialect, change func(*runner.Definition), options func(*duplex.Options)) *duplex.Session {
	t.Helper()
	return test.Session(t, test.Definition(t, runner.DriverACP, change), d, idle, options)
}

func TestTheFirstTurnStartsOneProcessThatIsKept(t *testing.T) {
	d := &dialect{}
	s := newSession(t, d, nil, nil)
	if d.started() != 0 {
		t.Fatal("a process was started before the first turn")
	}
	h := &test.Handler{}
	for _, text := range []string{"one", "two"} {
		out, err := s.Turn(t.Context(), test.Prompt(text), h)
		if err != nil || out.Status != runner.OutcomeCompleted || out.Text != text || out.ExitCode != -1 {
			t.Fatalf("outcome %+v, %v", out, err)
		}
	}
	if d.started() != 1 {
		t.Errorf("%d processes", d.started())
	}
	var ids []string
	for _, ev := range h.Events() {
		if s, ok := ev.(runner.SessionStarted); ok {
			ids = append(ids, s.ID)
		}
	}
	if !slices.Equal(ids, []string{"session-1"}) {
		t.Errorf("SessionStarted events %v, want one", ids)
	}
}

func TestAConcurrentTurnIsRefusedAsBusy(t *testing.T) {
	d := &dialect{prompt: untilInterrupted}
	s := newSession(t, d, nil, nil)
	h := &test.Handler{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if out, err := s.Turn(ctx, test.Prompt("x"), h); err != nil || out.Status != runner.OutcomeCanceled {
			t.Errorf("outcome %+v, %v", out, err)
		}
	}()
	h.AwaitText("tick")
	_, err := s.Turn(t.Context(), test.Prompt("y"), &test.Handler{})
	wantCode(t, err, runner.CodeBusy)
	cancel()
	<-done
}

func wantCode(t *testing.T, err error, code runner.Code) *runner.Error {
	t.Helper()
	e, ok := errors.AsType[*runner.Error](err)
	if !ok || e.Code != code {
		t.Fatalf("error %v, want code %s", err, code)
	}
	return e
}

// clock provides timers that fire when the test calls fire.
type clock struct {
	mu     sync.Mutex
	timers []*timer
}

type timer struct {
	d       time.Duration
	f       func()
	stopped bool
}

func (c *clock) AfterFunc(d time.Duration, f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	tm := &timer{d: d, f: f}
	c.timers = append(c.timers, tm)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		was := !tm.stopped
		tm.stopped = true
		return was
	}
}

// fire runs every timer that was not stopped; with late, also the stopped ones, as if
// Stop had come too late.
func (c *clock) fire(late bool) {
	c.mu.Lock()
	var run []func()
	for _, tm := range c.timers {
		if !tm.stopped || late {
			run = append(run, tm.f)
		}
	}
	c.timers = nil
	c.mu.Unlock()
	for _, f := range run {
		f()
	}
}

func TestAnIdleProcessIsEndedAndResumed(t *testing.T) {
	c := &clock{}
	var resumed []string
	d := &dialect{open: func(n int, resume string, _ *duplex.Turn) (duplex.Opened, error) {
		resumed = append(resumed, resume)
		return duplex.Opened{Session: runner.SessionStarted{ID: "abc"}}, nil
	}}
	s := newSession(t, d, func(d *runner.Definition) { d.Limits.SessionIdle = time.Minute },
		func(o *duplex.Options) { o.Clock = c })
	turn := func() {
		t.Helper()
		if _, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{}); err != nil {
			t.Fatal(err)
		}
	}
	turn()
	if c.timers[0].d != time.Minute {
		t.Errorf("idle after %v", c.timers[0].d)
	}
	c.fire(false)
	<-d.peers[0].closed
	turn()
	if !slices.Equal(resumed, []string{"", "abc"}) {
		t.Errorf("resumed %q", resumed)
	}
	// A timer that fires despite Stop does not end the process of a later turn.
	late := c.timers[0].f
	turn()
	late()
	turn()
	if d.started() != 2 {
		t.Errorf("%d processes", d.started())
	}
}

func TestAProcessThatDiedBetweenTurnsIsResumed(t *testing.T) {
	d := &dialect{}
	var procs []*test.Process
	s := newSession(t, d, nil, func(o *duplex.Options) {
		o.Start = func(args []string, _ func(string) bool) (duplex.Process, error) {
			p := test.NewProcess(args, idle)
			procs = append(procs, p)
			return p, nil
		}
	})
	for range 2 {
		if out, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{}); err != nil || out.Text != "x" {
			t.Fatalf("outcome %+v, %v", out, err)
		}
		procs[len(procs)-1].Stop(t.Context(), process.StopPolicy{})
	}
	if len(procs) != 2 {
		t.Errorf("%d processes", len(procs))
	}
}

func TestAFailedResumeStartsANewConversationWithANotice(t *testing.T) {
	tests := map[string]func(n int, resume string, t *duplex.Turn) (duplex.Opened, error){
		"the process ends": func(_ int, resume string, _ *duplex.Turn) (duplex.Opened, error) {
			if resume != "" {
				return duplex.Opened{}, duplex.ErrClosed
			}
			return duplex.Opened{Session: runner.SessionStarted{ID: "new"}}, nil
		},
		"the agent reports it": func(_ int, resume string, _ *duplex.Turn) (duplex.Opened, error) {
			return duplex.Opened{Session: runner.SessionStarted{ID: "new"}, Lost: "no such session"}, nil
		},
	}
	for name, open := range tests {
		t.Run(name, func(t *testing.T) {
			var prompts []string
			d := &dialect{open: open, prompt: func(_ *peer, text string, _ *duplex.Turn) (duplex.Result, error) {
				prompts = append(prompts, text)
				return duplex.Result{Text: "whole"}, nil
			}}
			s := newSession(t, d, func(d *runner.Definition) { d.SystemPrompt = "You are a critic." },
				func(o *duplex.Options) { o.Spec.Resume = "old" })
			h := &test.Handler{}
			for range 2 {
				out, err := s.Turn(t.Context(), test.Prompt("x"), h)
				if err != nil || out.Text != "whole" {
					t.Fatalf("outcome %+v, %v", out, err)
				}
			}
			if !strings.Contains(h.Notices(), "begins a new one") {
				t.Errorf("notices %q", h.Notices())
			}
			// Only the first turn of the new conversation contains the role.
			if want := []string{"You are a critic.\n\nx", "x"}; !slices.Equal(prompts, want) {
				t.Errorf("prompts %q", prompts)
			}
		})
	}
}

func TestAResumedConversationGetsNoSecondRole(t *testing.T) {
	var prompts []string
	d := &dialect{prompt: func(_ *peer, text string, _ *duplex.Turn) (duplex.Result, error) {
		prompts = append(prompts, text)
		return duplex.Result{}, nil
	}}
	s := newSession(t, d, func(d *runner.Definition) { d.SystemPrompt = "role" },
		func(o *duplex.Options) { o.Spec.Resume = "old" })
	if _, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(prompts, []string{"x"}) {
		t.Errorf("prompts %q", prompts)
	}
}

func TestCancelAsksTheAgentFirst(t *testing.T) {
	for _, resumable := range []bool{true, false} {
		t.Run(fmt.Sprintf("resumable=%v", resumable), func(t *testing.T) {
			d := &dialect{prompt: untilInterrupted, resumable: resumable}
			s := newSession(t, d, nil, nil)
			for range 2 {
				h := &test.Handler{}
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					h.AwaitText("tick")
					cancel()
				}()
				out, err := s.Turn(ctx, test.Prompt("x"), h)
				if err != nil || out.Status != runner.OutcomeCanceled || out.Text != "tick" {
					t.Fatalf("outcome %+v, %v", out, err)
				}
				d.peers[len(d.peers)-1].once = sync.Once{}
				d.peers[len(d.peers)-1].interrupted = make(chan struct{})
			}
			// A conversation that can be resumed leaves no process after a cancel.
			want := 1
			if resumable {
				want = 2
			}
			if d.started() != want {
				t.Errorf("%d processes, want %d", d.started(), want)
			}
		})
	}
}

func TestCancelEndsAnAgentThatIgnoresIt(t *testing.T) {
	d := &dialect{prompt: untilInterrupted, deaf: true}
	s := newSession(t, d, func(d *runner.Definition) { d.Stop.Grace = time.Millisecond }, nil)
	h := &test.Handler{}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		h.AwaitText("tick")
		cancel()
	}()
	out, err := s.Turn(ctx, test.Prompt("x"), h)
	if err != nil || out.Status != runner.OutcomeCanceled {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	<-d.peers[0].closed
}

func TestTheFirstTurnUsesTheWarmProcess(t *testing.T) {
	c := &clock{}
	d := &dialect{}
	s := newSession(t, d, nil, func(o *duplex.Options) { o.Clock = c })
	warm := func(processes int) {
		t.Helper()
		if err := s.Warm(t.Context()); err != nil || d.started() != processes {
			t.Fatalf("%d processes instead of %d: %v", d.started(), processes, err)
		}
	}
	turn := func() {
		t.Helper()
		h := &test.Handler{}
		if out, err := s.Turn(t.Context(), test.Prompt("x"), h); err != nil || out.Text != "x" {
			t.Fatalf("outcome %+v, %v", out, err)
		}
	}
	warm(1)
	warm(1)
	c.fire(false)
	<-d.peers[0].closed
	warm(2)
	turn()
	turn()
	warm(2)
	if d.started() != 2 {
		t.Errorf("%d processes", d.started())
	}
}

// A conversation that a warm process cannot begin is begun by a new one: the first may have another login.
func TestAWarmProcessThatFailsIsReplaced(t *testing.T) {
	processes := map[string]func(*dialect, *test.Process){
		"refuses": func(d *dialect, _ *test.Process) {
			d.open = func(n int, _ string, _ *duplex.Turn) (duplex.Opened, error) {
				if n == 0 {
					return duplex.Opened{}, &runner.Error{Code: runner.CodeAuth, Message: "not logged in"}
				}
				return duplex.Opened{Session: runner.SessionStarted{ID: "new"}}, nil
			}
		},
		"has died": func(_ *dialect, p *test.Process) { p.Stop(t.Context(), process.StopPolicy{}) },
	}
	for name, spoil := range processes {
		t.Run(name, func(t *testing.T) {
			var first *test.Process
			d := &dialect{}
			s := newSession(t, d, nil, func(o *duplex.Options) {
				o.Start = func(args []string, _ func(string) bool) (duplex.Process, error) {
					p := test.NewProcess(args, idle)
					if first == nil {
						first = p
					}
					return p, nil
				}
			})
			if err := s.Warm(t.Context()); err != nil {
				t.Fatal(err)
			}
			spoil(d, first)
			out, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
			if err != nil || out.Status != runner.OutcomeCompleted || d.started() != 2 {
				t.Fatalf("%d processes; outcome %+v, %v", d.started(), out, err)
			}
		})
	}
}

func TestATurnWaitsForTheWarmProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := make(chan struct{})
		d := &dialect{greet: func(context.Context, int) error { <-ready; return nil }}
		s := newSession(t, d, nil, nil)
		go func() { _ = s.Warm(t.Context()) }()
		synctest.Wait()
		turn := make(chan error, 1)
		go func() {
			_, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
			turn <- err
		}()
		synctest.Wait()
		close(ready)
		if err := <-turn; err != nil || d.started() != 1 {
			t.Errorf("%d processes: %v", d.started(), err)
		}
		must(t, s.Close(t.Context()))
	})
}

func TestWarmEndsWithItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialect{greet: func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }}
		s := newSession(t, d, nil, nil)
		warm := make(chan error, 1)
		go func() { warm <- s.Warm(t.Context()) }()
		synctest.Wait()
		must(t, s.Close(t.Context()))
		if err := <-warm; !errors.Is(err, context.Canceled) {
			t.Errorf("warming ended with %v", err)
		}
		<-d.peers[0].closed
		if err := s.Warm(t.Context()); !errors.Is(err, context.Canceled) || d.started() != 1 {
			t.Errorf("a closed session was warmed: %v", err)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCancelDuringTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		def := test.Definition(t, runner.DriverACP, nil)
		s := duplex.New(duplex.Options{
			Definition: def, Dialect: hanging{}, Spec: runner.SessionSpec{WorkDir: t.TempDir()},
			Start: func(args []string, _ func(string) bool) (duplex.Process, error) {
				return test.NewProcess(args, idle), nil
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		out, err := s.Turn(ctx, test.Prompt("x"), &test.Handler{})
		if err != nil || out.Status != runner.OutcomeCanceled {
			t.Fatalf("outcome %+v, %v", out, err)
		}
		_, err = s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
		wantCode(t, err, runner.CodeTimeout)
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// hanging is a dialect whose agent never answers the handshake.
type hanging struct{}

func (hanging) Args(string) []string                   { return nil }
func (hanging) Connect(duplex.Pipes) duplex.Connection { return hangingPeer{} }

type hangingPeer struct{}

func (hangingPeer) Greet(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hangingPeer) Open(context.Context, string, *duplex.Turn) (duplex.Opened, error) {
	return duplex.Opened{}, nil
}

func (hangingPeer) Prompt(context.Context, string, *duplex.Turn) (duplex.Result, error) {
	return duplex.Result{}, nil
}
func (hangingPeer) Interrupt() error { return nil }
func (hangingPeer) Resumable() bool  { return false }
func (hangingPeer) Close()           {}

func TestTimeLimits(t *testing.T) {
	tests := map[string]struct {
		limits runner.Limits
		text   string
	}{
		"run":  {runner.Limits{Run: time.Minute, Idle: time.Hour}, "limits.run"},
		"idle": {runner.Limits{Run: time.Hour, Idle: time.Minute}, "limits.idle"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &dialect{prompt: untilInterrupted}
				s := newSession(t, d, func(d *runner.Definition) { d.Limits = tt.limits }, nil)
				start := time.Now()
				out, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
				if e := wantCode(t, err, runner.CodeTimeout); !strings.Contains(e.Message, tt.text) {
					t.Errorf("message %q", e.Message)
				}
				if out.Status != runner.OutcomeFailed || time.Since(start) != time.Minute {
					t.Errorf("outcome %+v after %v", out, time.Since(start))
				}
			})
		})
	}
}

// The time that the user needs counts neither as run time nor as idle time.
func TestTimeLimitsPauseDuringAPermissionRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialect{prompt: func(_ *peer, _ string, tn *duplex.Turn) (duplex.Result, error) {
			if d := tn.Ask(context.Background(), request("1")); !d.Allowed() {
				return duplex.Result{}, errors.New("denied")
			}
			return duplex.Result{Text: "done"}, nil
		}}
		s := newSession(t, d, func(d *runner.Definition) {
			d.Limits.Run, d.Limits.Idle = time.Minute, time.Minute
		}, nil)
		h := &test.Handler{Answer: func(ctx context.Context, req runner.PermissionRequest) (runner.PermissionAnswer, error) {
			time.Sleep(24 * time.Hour) // on the bubble's clock
			return test.Choose(runner.AllowOnce, "")(ctx, req)
		}}
		out, err := s.Turn(t.Context(), test.Prompt("x"), h)
		if err != nil || out.Text != "done" {
			t.Fatalf("outcome %+v, %v", out, err)
		}
	})
}

func request(id string) runner.PermissionRequest {
	return runner.PermissionRequest{
		ID: id, Title: "Run it?", Tool: runner.ToolCall{ID: "tool-" + id, Name: "Bash"},
		Options: []runner.PermissionOption{
			{ID: "yes", Name: "Yes", Kind: runner.AllowOnce},
			{ID: "always", Name: "Always", Kind: runner.AllowAlways},
			{ID: "no", Name: "No", Kind: runner.RejectOnce},
		},
	}
}

func TestPermissionPolicies(t *testing.T) {
	without := func(kinds ...runner.PermissionKind) runner.PermissionRequest {
		req := request("1")
		req.Options = slices.DeleteFunc(req.Options, func(o runner.PermissionOption) bool { return slices.Contains(kinds, o.Kind) })
		return req
	}
	tests := map[string]struct {
		policy  string
		req     runner.PermissionRequest
		answer  func(context.Context, runner.PermissionRequest) (runner.PermissionAnswer, error)
		option  string
		allowed bool
		asked   int
		denials int
	}{
		"allow chooses once":                 {policy: "allow", req: request("1"), option: "yes", allowed: true},
		"allow chooses always":               {policy: "allow", req: without(runner.AllowOnce), option: "always", allowed: true},
		"allow without such an option":       {policy: "allow", req: without(runner.AllowOnce, runner.AllowAlways), option: "no", denials: 1},
		"deny":                               {policy: "deny", req: request("1"), option: "no", denials: 1},
		"deny without such an option":        {policy: "deny", req: without(runner.RejectOnce), option: "", denials: 1},
		"ask, allowed":                       {req: request("1"), answer: test.Choose(runner.AllowAlways, ""), option: "always", allowed: true, asked: 1},
		"ask, denied":                        {req: request("1"), answer: test.Choose(runner.RejectOnce, "no"), option: "no", asked: 1, denials: 1},
		"ask, answer with an unknown option": {req: request("1"), answer: foreign, option: "no", asked: 1, denials: 1},
		"ask, no answer":                     {req: request("1"), answer: nobody, option: "no", asked: 1, denials: 1},
		"ask without options":                {req: without(runner.AllowOnce, runner.AllowAlways, runner.RejectOnce), denials: 1},
		"options of unknown kinds only":      {req: runner.PermissionRequest{ID: "1", Options: []runner.PermissionOption{{ID: "x", Kind: "whatever"}, {Kind: runner.AllowOnce}}}, denials: 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got duplex.Decision
			d := &dialect{prompt: func(_ *peer, _ string, tn *duplex.Turn) (duplex.Result, error) {
				got = tn.Ask(context.Background(), tt.req)
				return duplex.Result{}, nil
			}}
			s := newSession(t, d, func(d *runner.Definition) { d.Permissions = tt.policy }, nil)
			h := &test.Handler{Answer: tt.answer}
			out, err := s.Turn(t.Context(), test.Prompt("x"), h)
			if err != nil {
				t.Fatal(err)
			}
			if got.Option.ID != tt.option || got.Allowed() != tt.allowed {
				t.Errorf("decision %+v", got)
			}
			if len(h.Asked()) != tt.asked {
				t.Errorf("asked %d times", len(h.Asked()))
			}
			if len(out.Denials) != tt.denials {
				t.Errorf("denials %+v", out.Denials)
			}
			// What the user was not asked is reported with what decided.
			var unasked []runner.PermissionDecided
			for _, ev := range h.Events() {
				if d, ok := ev.(runner.PermissionDecided); ok {
					unasked = append(unasked, d)
				}
			}
			if len(unasked) != 1-tt.asked {
				t.Fatalf("decisions reported: %+v", unasked)
			}
			by := runner.ByLimit
			if tt.policy != "" {
				by = runner.ByPolicy
			}
			if tt.asked == 0 && (unasked[0].By != by || unasked[0].Answer.OptionID != tt.option || unasked[0].Request.ID != "1") {
				t.Errorf("%+v", unasked[0])
			}
		})
	}
}

// A file that another agent has claimed is refused before anybody is asked, whatever the agent's permissions are.
func TestAClaimedFileIsRefusedUnasked(t *testing.T) {
	for _, policy := range []string{"", "allow", "deny"} {
		var got duplex.Decision
		d := &dialect{prompt: func(_ *peer, _ string, tn *duplex.Turn) (duplex.Result, error) {
			got = tn.Ask(context.Background(), request("1"))
			return duplex.Result{}, nil
		}}
		s := newSession(t, d, func(d *runner.Definition) { d.Permissions = policy }, nil)
		h := &test.Handler{Answer: foreign, Refuse: func(runner.ToolCall) runner.Refusal { return runner.Refusal{Text: "bob's words", Plain: "ours"} }}
		out, err := s.Turn(t.Context(), test.Prompt("x"), h)
		if err != nil || len(out.Denials) != 1 || len(h.Asked()) != 0 {
			t.Errorf("%q: %+v, %v, asked %d times", policy, out, err, len(h.Asked()))
		}
		if got.Allowed() || !got.Answered() || got.Message != "bob's words" || got.Claimed != "ours" {
			t.Errorf("%q: %+v", policy, got)
		}
		decided := slices.ContainsFunc(h.Events(), func(ev runner.Event) bool {
			d, ok := ev.(runner.PermissionDecided)
			return ok && d.By == runner.ByClaim && d.Answer.Message == "bob's words"
		})
		if !decided {
			t.Errorf("%q: the decision is not reported", policy)
		}
	}
}

func foreign(context.Context, runner.PermissionRequest) (runner.PermissionAnswer, error) {
	return runner.PermissionAnswer{OptionID: "rm -rf"}, nil
}

func nobody(context.Context, runner.PermissionRequest) (runner.PermissionAnswer, error) {
	return runner.PermissionAnswer{}, errors.New("nobody")
}

func TestPermissionRequestsAreBounded(t *testing.T) {
	const storm = 500
	d := &dialect{prompt: func(p *peer, _ string, tn *duplex.Turn) (duplex.Result, error) {
		var wg sync.WaitGroup
		for i := range storm {
			wg.Go(func() { tn.Ask(context.Background(), request(fmt.Sprint(i))) })
		}
		wg.Wait()
		return duplex.Result{Canceled: true}, nil
	}}
	s := newSession(t, d, nil, nil)
	h := &test.Handler{}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		h.Await(func(events []runner.Event, asked []runner.PermissionRequest) bool {
			denied := 0
			for _, ev := range events {
				if tc, ok := ev.(runner.ToolCall); ok && tc.Status == runner.ToolDenied {
					denied++
				}
			}
			return len(asked)+denied >= storm
		})
		cancel()
	}()
	out, err := s.Turn(ctx, test.Prompt("x"), h)
	if err != nil || out.Status != runner.OutcomeCanceled {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if n := len(h.Asked()); n != 32 {
		t.Errorf("%d requests reached the user at once", n)
	}
	if !strings.Contains(h.Notices(), "too many permissions") {
		t.Errorf("notices %q", h.Notices())
	}
}

func TestTheAnswerIsBoundedAtACharacter(t *testing.T) {
	d := &dialect{prompt: func(_ *peer, _ string, tn *duplex.Turn) (duplex.Result, error) {
		for range 10 {
			tn.Text("ääää")
			tn.Thought("ääää")
		}
		return duplex.Result{}, nil
	}}
	s := newSession(t, d, func(d *runner.Definition) { d.Limits.MaxOutput = 21 }, nil)
	h := &test.Handler{}
	out, err := s.Turn(t.Context(), test.Prompt("x"), h)
	if err != nil || !out.Truncated || out.Text != strings.Repeat("ä", 10) || h.Text() != out.Text {
		t.Errorf("outcome %+v, %v; streamed %q", out, err, h.Text())
	}
}

func TestMessagesAreSeparated(t *testing.T) {
	d := &dialect{prompt: func(_ *peer, _ string, tn *duplex.Turn) (duplex.Result, error) {
		tn.Paragraph()
		tn.Text("Let me look.")
		tn.Paragraph()
		tn.Text("Done.\n")
		tn.Paragraph()
		tn.Text("Bye.")
		return duplex.Result{Text: "not again"}, nil
	}}
	out, err := newSession(t, d, nil, nil).Turn(t.Context(), test.Prompt("x"), &test.Handler{})
	if err != nil || out.Text != "Let me look.\n\nDone.\nBye." {
		t.Errorf("outcome %+v, %v", out, err)
	}
}

func TestTurnOutcomes(t *testing.T) {
	tests := map[string]struct {
		result duplex.Result
		err    error
		status runner.OutcomeStatus
		code   runner.Code
		text   string
		drop   bool
	}{
		"completed":            {status: runner.OutcomeCompleted},
		"stopped by the agent": {result: duplex.Result{Canceled: true}, status: runner.OutcomeCanceled},
		"refused":              {result: duplex.Result{Rejected: true}, status: runner.OutcomeRejected},
		"an error":             {result: duplex.Result{Err: &runner.Error{Code: runner.CodeAgent, Message: "kaputt, token=abcdefgh12345"}}, status: runner.OutcomeFailed, code: runner.CodeAgent, text: "Test Agent reported an error: kaputt, token=[redacted]"},
		"no login":             {result: duplex.Result{Err: &runner.Error{Code: runner.CodeAuth, Message: "401"}}, status: runner.OutcomeAuthRequired, code: runner.CodeAuth, text: "Test Agent is not logged in: 401; log in with: test-agent login", drop: true},
		"a long line":          {err: &runner.Error{Code: runner.CodeLimit, Message: "too long"}, status: runner.OutcomeFailed, code: runner.CodeLimit, text: "too long", drop: true},
		"process ends":         {err: duplex.ErrClosed, status: runner.OutcomeFailed, code: runner.CodeProtocol, text: "Test Agent ended in the middle of its answer (killed); try again; if it happens again, run the program by hand", drop: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := &dialect{prompt: func(*peer, string, *duplex.Turn) (duplex.Result, error) { return tt.result, tt.err }}
			redactor := process.NewRedactor(nil)
			s := newSession(t, d, nil, func(o *duplex.Options) { o.Redact = redactor.Redact })
			out, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
			if out.Status != tt.status {
				t.Errorf("status %s", out.Status)
			}
			switch {
			case tt.code == "" && err != nil:
				t.Errorf("error %v", err)
			case tt.code != "":
				if e := wantCode(t, err, tt.code); e.Error() != tt.text {
					t.Errorf("error %q", e)
				}
			}
			d.prompt = nil
			if _, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{}); err != nil {
				t.Fatalf("the next turn: %v", err)
			}
			if dropped := d.started() == 2; dropped != tt.drop {
				t.Errorf("%d processes", d.started())
			}
		})
	}
}

func TestStartErrors(t *testing.T) {
	tests := map[string]struct {
		err  error
		code runner.Code
	}{
		"not installed": {fmt.Errorf("%w: x", process.ErrNotFound), runner.CodeNotInstalled},
		"too old":       {&runner.Error{Code: runner.CodeConfig, Message: "too old"}, runner.CodeConfig},
		"something":     {errors.New("fork failed"), runner.CodeInternal},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSession(t, &dialect{}, nil, func(o *duplex.Options) {
				if tt.code == runner.CodeConfig {
					o.Check = func(context.Context) error { return tt.err }
					return
				}
				o.Start = func([]string, func(string) bool) (duplex.Process, error) { return nil, tt.err }
			})
			_, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
			wantCode(t, err, tt.code)
		})
	}
}

func TestCloseCancelsTheTurnAndRefusesOthers(t *testing.T) {
	d := &dialect{prompt: untilInterrupted}
	s := newSession(t, d, nil, nil)
	h := &test.Handler{}
	done := make(chan runner.Outcome)
	go func() {
		out, _ := s.Turn(context.Background(), test.Prompt("x"), h)
		done <- out
	}()
	h.AwaitText("tick")
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := <-done; out.Status != runner.OutcomeCanceled {
		t.Errorf("outcome %+v", out)
	}
	<-d.peers[0].closed
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := s.Turn(t.Context(), test.Prompt("x"), h); err == nil {
		t.Error("a closed session accepted a turn")
	}
}

func TestCloseEndsWithItsContext(t *testing.T) {
	release := make(chan struct{})
	d := &dialect{prompt: func(_ *peer, _ string, tn *duplex.Turn) (duplex.Result, error) {
		tn.Text("tick")
		return duplex.Result{}, nil
	}}
	s := newSession(t, d, nil, nil)
	done := make(chan struct{})
	h := &blocking{release: release, began: make(chan struct{})}
	go func() {
		defer close(done)
		_, _ = s.Turn(context.Background(), test.Prompt("x"), h) // only Close matters here
	}()
	<-h.began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	close(release)
	<-done
}

// blocking is a handler that blocks until release is closed.
type blocking struct {
	release, began chan struct{}
	once           sync.Once
}

func (b *blocking) Event(runner.Event) {
	b.once.Do(func() { close(b.began) })
	<-b.release
}

func (b *blocking) Permission(ctx context.Context, _ runner.PermissionRequest) (runner.PermissionAnswer, error) {
	<-ctx.Done()
	return runner.PermissionAnswer{}, ctx.Err()
}

// A slow handler receives fewer events, but the whole answer; it does not delay the
// agent.
func TestASlowHandlerLosesNothingOfTheAnswer(t *testing.T) {
	const pieces = 100_000
	h := &collector{release: make(chan struct{})}
	d := &dialect{prompt: func(_ *peer, _ string, tn *duplex.Turn) (duplex.Result, error) {
		for i := range pieces {
			tn.Text("x")
			tn.Thought("y")
			tn.Tool(runner.ToolCall{ID: fmt.Sprint("tool-", i%10), Status: runner.ToolRunning})
			tn.Usage(runner.Usage{InputTokens: int64(i + 1)})
			tn.Notice("n")
		}
		close(h.release) // the handler continues only now
		return duplex.Result{}, nil
	}}
	out, err := newSession(t, d, nil, nil).Turn(t.Context(), test.Prompt("x"), h)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat("x", pieces); out.Text != want || h.text.String() != want {
		t.Errorf("%d of %d bytes received", h.text.Len(), pieces)
	}
	if h.thoughts != pieces || h.usage.InputTokens != pieces {
		t.Errorf("thoughts %d, usage %+v", h.thoughts, h.usage)
	}
	if h.events > 5000 {
		t.Errorf("%d events were queued", h.events)
	}
}

type collector struct {
	release  chan struct{}
	text     strings.Builder
	thoughts int
	usage    runner.Usage
	events   int
}

func (c *collector) Event(ev runner.Event) {
	<-c.release
	c.events++
	switch ev := ev.(type) {
	case runner.TextDelta:
		c.text.WriteString(ev.Text)
	case runner.Thought:
		c.thoughts += len(ev.Text)
	case runner.Usage:
		c.usage = ev
	}
}

func (c *collector) Permission(context.Context, runner.PermissionRequest) (runner.PermissionAnswer, error) {
	return runner.PermissionAnswer{}, errors.New("nobody")
}

// The agent acts at random from several goroutines. The turn ends with one outcome that
// is consistent with its events, and the session remains usable.
func TestAnyInterleavingEndsInOneOutcome(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		scripts := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(0, 9), 0, 12), 1, 4).Draw(rt, "scripts")
		result := rapid.SampledFrom([]duplex.Result{
			{}, {Text: "whole"}, {Canceled: true}, {Rejected: true},
			{Err: &runner.Error{Code: runner.CodeAgent, Message: "no"}}, {Err: &runner.Error{Code: runner.CodeAuth}},
		}).Draw(rt, "result")
		broken := rapid.Bool().Draw(rt, "broken")
		cancelAfter := rapid.IntRange(-1, 20).Draw(rt, "cancel")
		d := &dialect{resumable: rapid.Bool().Draw(rt, "resumable"), deaf: rapid.Bool().Draw(rt, "deaf")}
		d.prompt = func(p *peer, _ string, tn *duplex.Turn) (duplex.Result, error) {
			var wg sync.WaitGroup
			for _, script := range scripts {
				wg.Go(func() { act(p, tn, script) })
			}
			wg.Wait()
			if broken {
				return duplex.Result{}, duplex.ErrClosed
			}
			return result, nil
		}
		s := newSession(t, d, func(d *runner.Definition) { d.Stop.Grace = time.Millisecond }, nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h := &test.Handler{Answer: test.Choose(runner.AllowOnce, "")}
		counted := &counting{Handler: h, after: cancelAfter, cancel: cancel}
		out, err := s.Turn(ctx, test.Prompt("x"), counted)
		n := len(h.Events())
		checkOutcome(rt, out, err, h)
		d.prompt = nil
		if _, err := s.Turn(t.Context(), test.Prompt("y"), &test.Handler{}); err != nil {
			rt.Fatalf("the next turn: %v", err)
		}
		if len(h.Events()) != n {
			rt.Fatal("events after the end of the turn")
		}
		if err := s.Close(t.Context()); err != nil {
			rt.Fatal(err)
		}
	})
}

func checkOutcome(rt *rapid.T, out runner.Outcome, err error, h *test.Handler) {
	switch out.Status {
	case runner.OutcomeCompleted, runner.OutcomeCanceled, runner.OutcomeRejected:
		if err != nil {
			rt.Fatalf("%s with %v", out.Status, err)
		}
	case runner.OutcomeFailed, runner.OutcomeAuthRequired:
		if _, ok := errors.AsType[*runner.Error](err); !ok {
			rt.Fatalf("%s with %v", out.Status, err)
		}
	default:
		rt.Fatalf("status %q", out.Status)
	}
	if h.Text() != out.Text {
		rt.Fatalf("text %q, streamed %q", out.Text, h.Text())
	}
}

// act interprets a number as an action of the agent.
func act(p *peer, tn *duplex.Turn, script []int) {
	for i, n := range script {
		id := fmt.Sprint(i)
		switch n {
		case 0:
			tn.Text("text")
		case 1:
			tn.Thought("thought")
		case 2:
			tn.Tool(runner.ToolCall{ID: id, Name: "Bash", Status: runner.ToolPending})
		case 3:
			tn.Tool(runner.ToolCall{ID: id, Status: runner.ToolCompleted, Output: "out"})
		case 4:
			tn.Usage(runner.Usage{InputTokens: int64(i)})
		case 5:
			tn.Notice("notice")
		case 6:
			tn.Session(runner.SessionStarted{ID: "session-" + id})
		case 7:
			tn.Deny(runner.ToolCall{ID: id})
		case 8:
			tn.Ask(context.Background(), request(id))
		case 9:
			tn.Paragraph()
		}
	}
}

// counting is a handler that cancels the turn after a number of events.
type counting struct {
	*test.Handler
	after  int
	cancel func()
}

func (c *counting) Event(ev runner.Event) {
	c.Handler.Event(ev)
	if len(c.Handler.Events()) == c.after {
		c.cancel()
	}
}
