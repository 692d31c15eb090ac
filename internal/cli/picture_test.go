//go:build unix

package cli_test

import (
	"strings"
	"testing"
)

// At a terminal a swarm is a picture that is drawn over, in the colours of its parts.
func TestSwarmIsAPictureAtATerminal(t *testing.T) {
	p, s := newHub(t), newScreen(t)
	code := s.run(p, nil, nil, "swarm", "run", "--plan", p.plan(t, plan))
	text := s.await("<end>")
	if c := <-code; c != 0 {
		t.Errorf("exit %d", c)
	}
	for _, part := range []string{"0 of 3 done, ", "3 of 3 done, 2 agents", "\x1b[J", "\x1b[32m  ● end", "\x1b[1m## end ("} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in %q", part, text)
		}
	}
	code = s.run(p, nil, nil, "swarm", "run", "--agents", "fails", "do it")
	s.await("\x1b[31merror:")
	if c := <-code; c != 5 {
		t.Errorf("exit %d", c)
	}
	s.await("\x1b[31m  ✗ ")
}

// A picture moves the cursor, which a dumb terminal cannot.
func TestDumbTerminalsGetLines(t *testing.T) {
	p, s := newHub(t), newScreen(t)
	code := s.run(p, map[string]string{"TERM": "dumb"}, nil, "swarm", "run", "--plan", p.plan(t, plan))
	text := s.await("<end>")
	if c := <-code; c != 0 || strings.Contains(text, "\x1b[") || !strings.Contains(text, ": completed") {
		t.Errorf("exit %d, %q", c, text)
	}
}

func TestDemoIsAPictureAtATerminal(t *testing.T) {
	p, s := newPlace(t), newScreen(t)
	code := s.run(p, nil, nil, "demo", "--pace", "0s")
	text := s.await("<end>")
	if c := <-code; c != 0 {
		t.Errorf("exit %d", c)
	}
	for _, part := range []string{"\x1b[J", "has done ", "\x1b[31m  ● titan    dead", "5 chapters, 50 words"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in %q", part, text)
		}
	}
}
