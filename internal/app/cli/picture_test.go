//go:build unix

package cli_test

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// At a terminal a swarm is shown as a picture that is redrawn in place, with a colour for each part.
func TestSwarmIsAPictureAtATerminal(t *testing.T) {
	t.Parallel()
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
	s.await("Give up: the swarm fails")
	if _, err := s.master.WriteString("n\n"); err != nil {
		t.Fatal(err)
	}
	s.await("\x1b[31merror:")
	if c := <-code; c != 5 {
		t.Errorf("exit %d", c)
	}
	s.await("\x1b[31m  ✗ ")
}

// A dumb terminal cannot move the cursor, so it gets lines.
func TestDumbTerminalsGetLines(t *testing.T) {
	t.Parallel()
	p, s := newHub(t), newScreen(t)
	code := s.run(p, map[string]string{"TERM": "dumb"}, nil, "swarm", "run", "--plan", p.plan(t, plan))
	text := s.await("<end>")
	if c := <-code; c != 0 || strings.Contains(text, "\x1b[") || !strings.Contains(text, ": completed") {
		t.Errorf("exit %d, %q", c, text)
	}
}

func TestDemoIsAPictureAtATerminal(t *testing.T) {
	t.Parallel()
	p, s := newSetup(t), newScreen(t)
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

var terminalTokens = regexp.MustCompile(`\x1b\[(\d*)([A-Za-z])|\r|\n|[^\x1b\r\n]`)

var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// shown returns the lines that a terminal of this size shows for text, with those that scrolled out.
func shown(text string, rows, cols int) []string {
	lines, row, col := [][]rune{nil}, 0, 0
	down := func() {
		if row++; row == len(lines) {
			lines = append(lines, nil)
		}
	}
	for _, m := range terminalTokens.FindAllStringSubmatch(text, -1) {
		switch {
		case m[2] == "A":
			n, _ := strconv.Atoi(m[1])
			row = max(row-n, len(lines)-rows, 0)
		case m[2] == "J":
			lines[row] = lines[row][:min(col, len(lines[row]))]
			lines = lines[:row+1]
		case m[2] != "": // colours
		case m[0] == "\r":
			col = 0
		case m[0] == "\n":
			down()
		default:
			if col == cols {
				down()
				col = 0
			}
			for len(lines[row]) <= col {
				lines[row] = append(lines[row], ' ')
			}
			lines[row][col] = []rune(m[0])[0]
			col++
		}
	}
	all := make([]string, len(lines))
	for i, l := range lines {
		all[i] = strings.TrimRight(string(l), " ")
	}
	return all
}

func count(lines []string, part string) int {
	n := 0
	for _, l := range lines {
		if strings.Contains(l, part) {
			n++
		}
	}
	return n
}

func (s *screen) resize(t *testing.T, rows, cols uint16) {
	t.Helper()
	if err := pty.Setsize(s.tty, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		t.Fatal(err)
	}
}

// In a terminal of any size, a picture overwrites the one before.
func TestPicturesFitIntoSmallTerminals(t *testing.T) {
	t.Parallel()
	hub := newHub(t)
	for _, size := range [][2]uint16{{24, 80}, {24, 30}, {24, 12}, {9, 25}, {4, 20}} {
		rows, cols := int(size[0]), int(size[1])
		s := newScreen(t)
		s.resize(t, size[0], size[1])
		code := s.run(newSetup(t), nil, nil, "demo", "--pace", "0s")
		lines := shown(s.await("<end>"), rows, cols)
		if c := <-code; c != 0 {
			t.Errorf("%v: exit %d", size, c)
		}
		if n := count(lines, "● sun"); n != 1 {
			t.Errorf("%v: an agent is shown %d times:\n%s", size, n, strings.Join(lines, "\n"))
		}
		end := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "  all ") }) // the line below the picture
		if end < 0 || end > rows {
			t.Errorf("%v: the picture ends before line %d of\n%s", size, end, strings.Join(lines, "\n"))
		}
		s = newScreen(t)
		s.resize(t, size[0], size[1])
		code = s.run(hub, map[string]string{"NO_COLOR": "1"}, nil, "swarm", "run", "--plan", hub.plan(t, plan))
		text := s.await("<end>")
		if c := <-code; c != 0 {
			t.Errorf("%v: exit %d", size, c)
		}
		if colours.MatchString(text) {
			t.Errorf("%v: there are colours in %q", size, text)
		}
		if n := count(shown(text, rows, cols), "swarm "); n != 1 {
			t.Errorf("%v: %d pictures:\n%s", size, n, strings.Join(shown(text, rows, cols), "\n"))
		}
	}
}

// After Ctrl-C the cursor is below the picture's last line.
func TestCtrlCEndsThePictureBelowItsLastLine(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	for _, tt := range []struct {
		args []string
		wait string
		says string
	}{
		{[]string{"demo", "--pace", "1m"}, "works on ", ""},
		{[]string{"swarm", "run", "--agents", "hangs", "wait"}, "running", "is stopped"},
	} {
		s, signals := newScreen(t), make(chan os.Signal, 1)
		code := s.run(p, nil, signals, tt.args...)
		s.await(tt.wait)
		signals <- os.Interrupt
		lines := shown(s.await("<end>"), 24, 80)
		if c := <-code; c != 130 {
			t.Errorf("%q: exit %d", tt.args, c)
		}
		text := strings.Join(lines, "\n")
		if !strings.Contains(text, tt.says) || count(lines, "● titan")+count(lines, "swarm ") == 0 || strings.Contains(text, "\x1b") {
			t.Errorf("%q: the screen shows\n%s", tt.args, text)
		}
		if at := strings.Index(text, "<end>"); at > 0 && text[at-1] != '\n' {
			t.Errorf("%q: the output ends within a line:\n%s", tt.args, text)
		}
	}
}
