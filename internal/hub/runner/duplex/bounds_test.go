package duplex_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
	test "github.com/parleyhub/parley/internal/hub/runner/duplex/duplextest"
)

func TestLabels(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"\n \n  two words \nmore": "two words",
		strings.Repeat("ä", 1000): strings.Repeat("ä", 510) + "…",
		strings.Repeat("x", 1024): strings.Repeat("x", 1024),
	} {
		if got := duplex.OneLine(in); got != want {
			t.Errorf("%.20q…: %d bytes, want %d", in, len(got), len(want))
		}
	}
	if got := duplex.ErrorText(" plain "); got != "plain" {
		t.Error(got)
	}
	if got := duplex.ErrorText(`{"error":{"message":"inner"}}`); got != "inner" {
		t.Error(got)
	}
}

func TestToolCallsAreBounded(t *testing.T) {
	d := &dialect{prompt: func(_ *peer, _ string, tn *duplex.Turn) (duplex.Result, error) {
		for i := range 6000 {
			tn.Tool(runner.ToolCall{ID: fmt.Sprint(i), Title: strings.Repeat("t", 5000), Output: "o"})
			tn.Tool(runner.ToolCall{ID: fmt.Sprint(i), Status: runner.ToolCompleted, Input: []byte("1"), Output: "p"})
		}
		tn.Tool(runner.ToolCall{ID: strings.Repeat("i", 5000)})
		return duplex.Result{}, nil
	}}
	h := &test.Handler{}
	if _, err := newSession(t, d, nil, nil).Turn(t.Context(), test.Prompt("x"), h); err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]bool)
	for _, ev := range h.Events() {
		if tc, ok := ev.(runner.ToolCall); ok {
			ids[tc.ID] = true
		}
	}
	if len(ids) != 4096 || !strings.Contains(h.Notices(), "too many tools") {
		t.Errorf("%d tools, notices %q", len(ids), h.Notices())
	}
	if tc := h.Tool("7"); len(tc.Title) > 1024 || tc.Status != runner.ToolCompleted || tc.Output != "p" {
		t.Errorf("tool %.100v", tc)
	}
}

func TestProcessesThatCannotBeEndedAreReported(t *testing.T) {
	left := errors.New("still there")
	tests := map[string]struct {
		change func(*test.Process)
		result duplex.Result
		notice string
	}{
		"orphans":              {change: func(p *test.Process) { p.Orphans = 2 }, notice: "ended 2 processes that tools of Test Agent left behind"},
		"orphans that survive": {change: func(p *test.Process) { p.SweepErr = left }, notice: "could not be ended"},
		"a program that survives": {
			change: func(p *test.Process) { p.Left = left },
			result: duplex.Result{Err: &runner.Error{Code: runner.CodeAuth}},
			notice: "not every process that Test Agent started could be ended",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := &dialect{prompt: func(*peer, string, *duplex.Turn) (duplex.Result, error) { return tt.result, nil }}
			var p *test.Process
			s := newSession(t, d, nil, func(o *duplex.Options) {
				o.Start = func(args []string, _ func(string) bool) (duplex.Process, error) {
					p = test.NewProcess(args, idle)
					tt.change(p)
					return p, nil
				}
			})
			h := &test.Handler{}
			_, _ = s.Turn(t.Context(), test.Prompt("x"), h) // only the notices matter
			if !strings.Contains(h.Notices(), tt.notice) {
				t.Errorf("notices %q", h.Notices())
			}
			p.Left = nil
		})
	}
}

func TestAProgramThatEndsWithoutALoginRequiresAuthentication(t *testing.T) {
	d := &dialect{open: func(int, string, *duplex.Turn) (duplex.Opened, error) { return duplex.Opened{}, duplex.ErrClosed }}
	s := newSession(t, d, nil, func(o *duplex.Options) {
		o.Start = func(args []string, _ func(string) bool) (duplex.Process, error) {
			p := test.NewProcess(args, func(a *test.Agent) {
				a.Exit(1, strings.Repeat("noise ", 1000)+"Error: not logged in")
			})
			<-p.Ended()
			return p, nil
		}
	})
	out, err := s.Turn(t.Context(), test.Prompt("x"), &test.Handler{})
	e := wantCode(t, err, runner.CodeAuth)
	if out.Status != runner.OutcomeAuthRequired || !strings.Contains(e.Message, "not logged in") || len(e.Message) > 1100 {
		t.Errorf("outcome %+v, %v", out, err)
	}
}

var _ duplex.Process = (*process.Process)(nil)
