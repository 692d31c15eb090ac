// Package duplextest runs sessions of package duplex against agents that are simulated
// within the test, by a recorded conversation or by code.
package duplextest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// Process simulates a program, which an [Agent] plays over pipes in memory. It implements duplex.Process.
type Process struct {
	stdin  *io.PipeWriter
	stdout *io.PipeReader
	agent  *Agent

	mu    sync.Mutex
	tail  string
	exit  process.Exit // set before ended is closed
	once  sync.Once
	ended chan struct{}

	// Orphans and SweepErr are the result of SweepOrphans, Left is the error of Stop. Set
	// them before the process is used.
	Orphans  int
	SweepErr error
	Left     error
}

// Agent is the program's side of a [Process].
type Agent struct {
	Args []string       // of the program
	In   *bufio.Scanner // the lines of the host
	in   *io.PipeReader
	out  *io.PipeWriter
	p    *Process
}

// NewProcess runs play on its own goroutine. The process exits with 0 when play returns.
func NewProcess(args []string, play func(*Agent)) *Process {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p := &Process{stdin: inW, stdout: outR, ended: make(chan struct{})}
	in := bufio.NewScanner(inR)
	in.Buffer(nil, 64<<20)
	p.agent = &Agent{Args: args, In: in, in: inR, out: outW, p: p}
	go func() {
		play(p.agent)
		p.end(process.Exit{})
	}()
	return p
}

// end ends the process; the first call counts.
func (p *Process) end(exit process.Exit) {
	p.once.Do(func() {
		p.exit = exit
		close(p.ended)
		_ = p.agent.out.Close() // never fails
		_ = p.agent.in.Close()  // never fails
	})
}

// Stdin implements duplex.Process.
func (p *Process) Stdin() io.WriteCloser { return p.stdin }

// Stdout implements duplex.Process.
func (p *Process) Stdout() io.Reader { return p.stdout }

// Stderr implements duplex.Process.
func (p *Process) Stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tail
}

// Ended implements duplex.Process.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Stop implements duplex.Process: the process ends at once.
func (p *Process) Stop(context.Context, process.StopPolicy) process.Exit {
	_ = p.stdin.Close() // never fails
	p.end(process.Exit{Code: -1, Signal: "killed"})
	exit := p.exit
	exit.Err = p.Left
	return exit
}

// Close implements duplex.Process.
func (p *Process) Close() error {
	p.Stop(context.Background(), process.StopPolicy{})
	return p.stdout.Close()
}

// SweepOrphans implements duplex.Process.
func (p *Process) SweepOrphans() (int, error) {
	return p.Orphans, p.SweepErr
}

// Send writes raw bytes to the host. It fails when the host has stopped the process.
func (a *Agent) Send(b string) error {
	_, err := io.WriteString(a.out, b)
	return err
}

// SendLine writes v as a line of JSON.
func (a *Agent) SendLine(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return a.Send(string(b) + "\n")
}

// Next returns the next line of the host as an object, false at the end.
func (a *Agent) Next() (map[string]any, bool) {
	if !a.In.Scan() {
		return nil, false
	}
	var m map[string]any
	if err := json.Unmarshal(a.In.Bytes(), &m); err != nil {
		panic(fmt.Sprintf("the host sent %q: %v", a.In.Text(), err))
	}
	return m, true
}

// Exit ends the process with an exit code and a text on standard error.
func (a *Agent) Exit(code int, stderr string) {
	a.p.mu.Lock()
	a.p.tail = stderr
	a.p.mu.Unlock()
	a.p.end(process.Exit{Code: code})
}

// Wait blocks until the host has stopped the process.
func (a *Agent) Wait() { <-a.p.ended }

// Line is a line of a recorded conversation.
type Line struct {
	FromHost bool
	JSON     map[string]any
	Text     string
}

// Load reads a recording. A line of the host begins with ">> ", one of the agent with
// "<< " or, if the recorder was too late, with nothing.
func Load(tb testing.TB, file string) []Line {
	tb.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	var lines []Line
	for text := range strings.Lines(string(b)) {
		text = strings.TrimRight(text, "\n")
		rest, fromHost := strings.CutPrefix(text, ">> ")
		rest = strings.TrimPrefix(rest, "<< ")
		if rest == "" {
			continue
		}
		l := Line{FromHost: fromHost, Text: rest}
		dec := json.NewDecoder(strings.NewReader(rest))
		dec.UseNumber()
		if err := dec.Decode(&l.JSON); err != nil {
			tb.Fatalf("%s: %v", file, err)
		}
		lines = append(lines, l)
	}
	return lines
}

// Replay plays the agent's part of a recording, and waits for the host where the
// recorded host sent a line. A line with another [Key] than the recorded one is an
// error. The ids of the host replace the recorded ones in the answers.
func (a *Agent) Replay(lines []Line) error {
	ids := make(map[string]string) // recorded to real
	for i, l := range lines {
		if !l.FromHost {
			if err := a.Send(answerTo(l, ids) + "\n"); err != nil {
				return fmt.Errorf("line %d: %w", i+1, err)
			}
			continue
		}
		got, ok := a.Next()
		if !ok {
			return fmt.Errorf("line %d: the host exited; expected %s", i+1, Key(l.JSON))
		}
		if Key(got) != Key(l.JSON) {
			return fmt.Errorf("line %d: the host sent %s, %s was expected", i+1, Key(got), Key(l.JSON))
		}
		if id := hostID(l.JSON); id != "" {
			ids[id] = hostID(got)
		}
	}
	return nil
}

// Key returns the method of a line of the host, or its type.
func Key(m map[string]any) string {
	switch {
	case m["method"] != nil:
		return fmt.Sprint(m["method"])
	case m["type"] == "control_request":
		request, _ := m["request"].(map[string]any)
		return fmt.Sprint(request["subtype"])
	case m["type"] != nil:
		return fmt.Sprint(m["type"])
	case m["id"] != nil:
		return "answer"
	}
	return "unknown"
}

// Split divides a recording into the handshake and the turns. Each turn begins with a
// line of the host that has the key.
func Split(lines []Line, key string) (handshake []Line, turns [][]Line) {
	for _, l := range lines {
		if l.FromHost && Key(l.JSON) == key {
			turns = append(turns, nil)
		}
		if len(turns) == 0 {
			handshake = append(handshake, l)
			continue
		}
		turns[len(turns)-1] = append(turns[len(turns)-1], l)
	}
	return handshake, turns
}

// hostID returns the id of a request of the host.
func hostID(m map[string]any) string {
	switch {
	case m["method"] != nil && m["id"] != nil:
		return fmt.Sprint(m["id"])
	case m["type"] == "control_request":
		return fmt.Sprint(m["request_id"])
	}
	return ""
}

// answerTo returns a line of the agent with the id of the host's actual request.
func answerTo(l Line, ids map[string]string) string {
	recorded := ""
	switch {
	case l.JSON["id"] != nil && l.JSON["method"] == nil:
		recorded = fmt.Sprint(l.JSON["id"])
		if id, ok := ids[recorded]; ok && id != recorded {
			return strings.Replace(l.Text, `"id":`+recorded, `"id":`+id, 1)
		}
	case l.JSON["type"] == "control_response":
		response, _ := l.JSON["response"].(map[string]any)
		recorded = fmt.Sprint(response["request_id"])
		if id, ok := ids[recorded]; ok {
			return strings.Replace(l.Text, recorded, id, 1)
		}
	}
	return l.Text
}

// Handler records the events of a turn. It implements runner.Handler.
type Handler struct {
	// Answer decides about permission requests; nil blocks until ctx ends.
	Answer func(ctx context.Context, req runner.PermissionRequest) (runner.PermissionAnswer, error)
	// Refuse says why a tool must not run; nil refuses none.
	Refuse func(call runner.ToolCall) runner.Refusal

	mu     sync.Mutex
	events []runner.Event
	asked  []runner.PermissionRequest
	added  wait.Signal
}

// Event implements runner.Handler.
func (h *Handler) Event(ev runner.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, ev)
	h.added.Send()
}

// Permission implements runner.Handler.
func (h *Handler) Permission(ctx context.Context, req runner.PermissionRequest) (runner.PermissionAnswer, error) {
	h.mu.Lock()
	h.asked = append(h.asked, req)
	h.added.Send()
	h.mu.Unlock()
	if h.Answer == nil {
		<-ctx.Done()
		return runner.PermissionAnswer{}, ctx.Err()
	}
	return h.Answer(ctx, req)
}

// Claimed implements runner.Guard.
func (h *Handler) Claimed(_ context.Context, call runner.ToolCall) runner.Refusal {
	if h.Refuse == nil {
		return runner.Refusal{}
	}
	return h.Refuse(call)
}

// Await blocks until ok returns true for the events and requests so far.
func (h *Handler) Await(ok func(events []runner.Event, asked []runner.PermissionRequest) bool) {
	for {
		added := h.added.Wait()
		if ok(h.Events(), h.Asked()) {
			return
		}
		<-added
	}
}

// AwaitText blocks until the answer contains text.
func (h *Handler) AwaitText(text string) {
	h.Await(func(events []runner.Event, _ []runner.PermissionRequest) bool {
		return strings.Contains(joined(events), text)
	})
}

// Events returns the events so far.
func (h *Handler) Events() []runner.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}

// Asked returns the permission requests so far.
func (h *Handler) Asked() []runner.PermissionRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

// Text returns the answer so far.
func (h *Handler) Text() string { return joined(h.Events()) }

// Notices returns the notices so far, one on each line.
func (h *Handler) Notices() string {
	var b strings.Builder
	for _, ev := range h.Events() {
		if r, ok := ev.(runner.Retry); ok {
			ev = runner.Notice{Text: r.String()}
		}
		if n, ok := ev.(runner.Notice); ok {
			b.WriteString(n.Text + "\n")
		}
	}
	return b.String()
}

// Tool returns the tool call with the id, from all its events.
func (h *Handler) Tool(id string) (tc runner.ToolCall) {
	for _, ev := range h.Events() {
		if t, ok := ev.(runner.ToolCall); ok && t.ID == id {
			tc = tc.Update(t)
		}
	}
	return tc
}

func joined(events []runner.Event) string {
	var b strings.Builder
	for _, ev := range events {
		if d, ok := ev.(runner.TextDelta); ok {
			b.WriteString(d.Text)
		}
	}
	return b.String()
}

// Choose returns an answer for every request: the first option of the kind.
func Choose(kind runner.PermissionKind, message string) func(context.Context, runner.PermissionRequest) (runner.PermissionAnswer, error) {
	return func(_ context.Context, req runner.PermissionRequest) (runner.PermissionAnswer, error) {
		if o, ok := runner.Choose(req.Options, []runner.PermissionKind{kind}); ok {
			return runner.PermissionAnswer{OptionID: o.ID, Message: message}, nil
		}
		return runner.PermissionAnswer{}, errors.New("no option of the kind " + string(kind))
	}
}

// Definition returns a completed definition for tests. Its grace is short, because the
// simulated agents end immediately.
func Definition(tb testing.TB, driver string, change func(*runner.Definition)) runner.Definition {
	tb.Helper()
	def := runner.Definition{
		ID: "test-agent", Name: "Test Agent", Driver: driver, Command: "test-agent",
		Probe: runner.ProbeSpec{Login: "log in with: test-agent login"},
		Stop:  runner.StopSpec{Grace: 100 * time.Millisecond},
	}
	if change != nil {
		change(&def)
	}
	def, err := def.Complete()
	if err != nil {
		tb.Fatal(err)
	}
	return def
}

// Session returns a session that calls play for each process.
func Session(tb testing.TB, def runner.Definition, dialect duplex.Dialect, play func(*Agent), change func(*duplex.Options)) *duplex.Session {
	tb.Helper()
	o := duplex.Options{
		Definition: def,
		Spec:       runner.SessionSpec{ContextID: "context", WorkDir: tb.TempDir()},
		Dialect:    dialect,
		Start: func(args []string, _ func(string) bool) (duplex.Process, error) {
			return NewProcess(args, play), nil
		},
	}
	if change != nil {
		change(&o)
	}
	s := duplex.New(o)
	tb.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return s
}

// Prompt returns a turn of one text.
func Prompt(text string) runner.Turn {
	return runner.Turn{Parts: []*a2a.Part{a2a.NewTextPart(text)}, TaskID: "task"}
}
