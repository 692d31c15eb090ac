package duplextest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// Speaker writes and reads the lines of a protocol, for agents that misbehave.
type Speaker struct {
	// Handshake answers the host's handshake, and returns false at the end of its input.
	Handshake func(a *Agent) bool
	// Prompt reads the next prompt, skipping other lines, and returns its id.
	Prompt func(a *Agent) (id string, ok bool)
	// The lines of an agent: a piece of the answer, the end of a prompt, a permission
	// request, a request with an unknown method, an event of an unknown kind.
	Text       func(s string) string
	Done       func(id string) string
	Permission func(id string) string
	Unknown    func(id string) string
	Event      string
	// Answered returns the request that a line of the host answers, and the answer; "" for any other line.
	Answered func(m map[string]any) (id, answer string)
}

// The answers of Speaker.Answered.
const (
	Allowed = "allowed"
	Denied  = "denied"
	Refused = "refused" // with an error
)

// Hostile tests a protocol's driver with agents that misbehave. open returns a session
// that calls play for each process.
func Hostile(t *testing.T, sp Speaker, open func(t *testing.T, play func(*Agent)) *duplex.Session) {
	h := hostile{sp, open}
	t.Run("noise is ignored", h.noise)
	t.Run("a flood of updates arrives completely", h.flood)
	t.Run("a giant line ends the turn", h.giantLine)
	t.Run("an exit within an answer is reported with standard error", h.exit)
	t.Run("an answer counts although the agent exits after it", h.exitAfterAnswer)
	t.Run("an agent that never answers is stopped", h.silence)
	t.Run("a second answer is not the next prompt's", h.twice)
	t.Run("answers to no request are ignored", h.wrongIDs)
	t.Run("unknown requests are refused", h.unknownRequests)
	t.Run("a request without a turn is answered", h.betweenTurns)
	t.Run("many permission requests are answered", h.manyRequests)
	t.Run("an agent that does not read its answers ends with the turn", h.unreadAnswers)
	t.Run("the same request twice is asked once", h.sameRequest)
}

type hostile struct {
	Speaker
	open func(t *testing.T, play func(*Agent)) *duplex.Session
}

// play returns a session whose agent calls turn for each prompt.
func (h hostile) play(t *testing.T, turn func(a *Agent, n int, id string)) *duplex.Session {
	return h.open(t, func(a *Agent) {
		if !h.Handshake(a) {
			return
		}
		for n := 0; ; n++ {
			id, ok := h.Prompt(a)
			if !ok {
				return
			}
			turn(a, n, id)
		}
	})
}

// say sends lines. A failure shows in the turn.
func say(a *Agent, lines ...string) {
	for _, l := range lines {
		_ = a.Send(l + "\n") // the host has ended the process
	}
}

func completes(t *testing.T, s *duplex.Session, h runner.Handler, text string) {
	t.Helper()
	out, err := s.Turn(t.Context(), Prompt("x"), h)
	if err != nil || out.Status != runner.OutcomeCompleted || out.Text != text {
		if len(out.Text) > 100 {
			out.Text = out.Text[:100] + "…"
		}
		t.Fatalf("outcome %+v, %v", out, err)
	}
}

func fails(t *testing.T, s *duplex.Session, code runner.Code) *runner.Error {
	t.Helper()
	out, err := s.Turn(t.Context(), Prompt("x"), &Handler{})
	e, ok := errors.AsType[*runner.Error](err)
	if !ok || e.Code != code || out.Status != runner.OutcomeFailed {
		t.Fatalf("outcome %+v, %v; want code %s", out, err, code)
	}
	return e
}

func (h hostile) noise(t *testing.T) {
	noise := []string{
		"", " ", "Warning: this is no JSON", "{", "[]", "null", "42", `"text"`, "{}", `{"type":7}`, `{"type":{}}`, `{"id":null}`,
		`{"method":7,"id":1}`, `{"jsonrpc":"2.0","method":"x/y","params":[]}`, "\x00\xff\xfe", h.Event,
		strings.Repeat("[", 20_000),
	}
	s := h.play(t, func(a *Agent, _ int, id string) {
		for _, line := range noise {
			say(a, line, h.Text("a"))
		}
		say(a, h.Done(id))
	})
	completes(t, s, &Handler{}, strings.Repeat("a", len(noise)))
}

func (h hostile) flood(t *testing.T) {
	const n = 5000
	s := h.play(t, func(a *Agent, _ int, id string) {
		_ = a.Send(strings.Repeat(h.Text("x")+"\n", n)) // the host has ended the process
		say(a, h.Done(id))
	})
	completes(t, s, &Handler{}, strings.Repeat("x", n))
}

func (h hostile) giantLine(t *testing.T) {
	s := h.play(t, func(a *Agent, n int, id string) {
		if n == 0 && !strings.Contains(strings.Join(a.Args, " "), "again") {
			say(a, h.Text(strings.Repeat("x", 11<<20)))
		}
		say(a, h.Done(id))
	})
	fails(t, s, runner.CodeLimit)
}

func (h hostile) exit(t *testing.T) {
	s := h.play(t, func(a *Agent, _ int, _ string) {
		say(a, h.Text("half"))
		a.Exit(3, "panic: out of cheese")
	})
	e := fails(t, s, runner.CodeProtocol)
	if !strings.Contains(e.Message, "exit code 3") || !strings.Contains(e.Message, "out of cheese") {
		t.Errorf("message %q", e.Message)
	}
}

func (h hostile) exitAfterAnswer(t *testing.T) {
	for range 20 {
		s := h.play(t, func(a *Agent, _ int, id string) {
			say(a, h.Text("words"), h.Done(id))
			a.Exit(0, "")
		})
		completes(t, s, &Handler{}, "words")
	}
}

func (h hostile) silence(t *testing.T) {
	s := h.play(t, func(a *Agent, _ int, _ string) {
		say(a, h.Text("tick"))
		for { // reads, but does nothing
			if _, ok := a.Next(); !ok {
				return
			}
		}
	})
	canceled(t, s, &Handler{}, func(hd *Handler) { hd.AwaitText("tick") })
}

// canceled cancels a turn when until returns.
func canceled(t *testing.T, s *duplex.Session, hd *Handler, until func(*Handler)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		until(hd)
		cancel()
	}()
	out, err := s.Turn(ctx, Prompt("x"), hd)
	if err != nil || out.Status != runner.OutcomeCanceled {
		t.Fatalf("outcome %+v, %v", out, err)
	}
}

func (h hostile) twice(t *testing.T) {
	s := h.play(t, func(a *Agent, n int, id string) {
		say(a, h.Text(fmt.Sprint("answer ", n)), h.Done(id), h.Done(id), h.Done(id))
	})
	for n := range 3 {
		completes(t, s, &Handler{}, fmt.Sprint("answer ", n))
	}
}

func (h hostile) wrongIDs(t *testing.T) {
	s := h.play(t, func(a *Agent, _ int, id string) {
		for _, wrong := range []string{"4711", "-1", "no-such-id", ""} {
			say(a, h.Done(wrong))
		}
		say(a, h.Text("right"), h.Done(id))
	})
	completes(t, s, &Handler{}, "right")
}

func (h hostile) unknownRequests(t *testing.T) {
	got := make(chan string, 1)
	s := h.play(t, func(a *Agent, _ int, id string) {
		say(a, h.Unknown("77"))
		got <- h.await(a, "77")
		say(a, h.Text("on"), h.Done(id))
	})
	completes(t, s, &Handler{}, "on")
	if answer := <-got; answer != Refused {
		t.Errorf("answered %q", answer)
	}
}

// await reads lines until the answer to a request.
func (h hostile) await(a *Agent, id string) string {
	for {
		m, ok := a.Next()
		if !ok {
			return "nothing"
		}
		if got, answer := h.Answered(m); got == id {
			return answer
		}
	}
}

func (h hostile) betweenTurns(t *testing.T) {
	answered := make(chan string, 1)
	s := h.play(t, func(a *Agent, n int, id string) {
		say(a, h.Text("one"), h.Done(id))
		if n == 0 {
			// The turn has ended once the host has answered. Before that a request after the
			// end looks like one before it.
			say(a, h.Permission("88"))
			answered <- h.await(a, "88")
		}
	})
	completes(t, s, &Handler{}, "one")
	if answer := <-answered; answer != Denied {
		t.Errorf("answered %q", answer)
	}
	completes(t, s, &Handler{}, "one")
}

func (h hostile) manyRequests(t *testing.T) {
	const n = 300
	s := h.play(t, func(a *Agent, _ int, id string) {
		go func() {
			for i := range n {
				say(a, h.Permission(fmt.Sprint(1000+i)))
			}
		}()
		seen := make(map[string]bool)
		for len(seen) < n {
			m, ok := a.Next()
			if !ok {
				return
			}
			if got, answer := h.Answered(m); answer != "" {
				seen[got] = true
			}
		}
		say(a, h.Text("calm"), h.Done(id))
	})
	completes(t, s, &Handler{Answer: Choose(runner.AllowOnce, "")}, "calm")
}

func (h hostile) unreadAnswers(t *testing.T) {
	s := h.play(t, func(a *Agent, _ int, _ string) {
		say(a, h.Text("tick"))
		for i := 0; a.Send(h.Permission(fmt.Sprint(i))+"\n") == nil; i++ {
			continue
		}
	})
	canceled(t, s, &Handler{Answer: Choose(runner.RejectOnce, "")}, func(hd *Handler) {
		hd.Await(func(_ []runner.Event, asked []runner.PermissionRequest) bool { return len(asked) > 0 })
	})
}

func (h hostile) sameRequest(t *testing.T) {
	s := h.play(t, func(a *Agent, _ int, id string) {
		say(a, h.Permission("99"), h.Permission("99"), h.Permission("99"), h.Text("wait"))
		h.await(a, "99")
		say(a, h.Text("ed"), h.Done(id))
	})
	release := make(chan struct{})
	hd := &Handler{Answer: func(ctx context.Context, req runner.PermissionRequest) (runner.PermissionAnswer, error) {
		<-release
		return Choose(runner.AllowOnce, "")(ctx, req)
	}}
	go func() {
		hd.AwaitText("wait")
		close(release)
	}()
	completes(t, s, hd, "waited")
	if n := len(hd.Asked()); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// Fuzz passes lines to a turn, whose agent then ends, and checks that the turn's outcome agrees with its events.
func Fuzz(t *testing.T, def runner.Definition, d duplex.Dialect, sp Speaker, lines string) {
	t.Helper()
	s := Session(t, def, d, func(a *Agent) {
		if !sp.Handshake(a) {
			return
		}
		if _, ok := sp.Prompt(a); !ok {
			return
		}
		go func() {
			for a.In.Scan() {
				continue // discards the host's lines
			}
		}()
		_ = a.Send(lines + "\n") // the host may have ended the process
	}, nil)
	h := &Handler{Answer: Choose(runner.AllowAlways, "")}
	out, err := s.Turn(t.Context(), Prompt("x"), h)
	failed := out.Status == runner.OutcomeFailed || out.Status == runner.OutcomeAuthRequired
	if (err != nil) != failed || out.Status == "" {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	if h.Text() != out.Text {
		t.Fatalf("text %q, streamed %q", out.Text, h.Text())
	}
}
