package terminal

import (
	"context"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/parleyhub/parley/internal/hub/events"
)

// Still shows the screens without a terminal and without waiting: each key and event has all its consequences before the
// method returns. It is for pictures and tests.
type Still struct {
	*model
	cancel context.CancelFunc
	quit   bool
}

// NewStill returns screens of a size for a hub. now is the time that they show. Close ends them.
func NewStill(h Hub, where string, width, height int, now func() time.Time) *Still {
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{ctx: ctx, cancel: cancel, hub: h, feed: make(chan feedMsg, 1)}
	s := &Still{model: newModel(ctx, Options{Where: where, Shell: "sh"}, l), cancel: cancel}
	s.now, s.next = now, nil
	s.tick = func(_ time.Duration, msg tea.Msg) tea.Cmd {
		if _, replay := msg.(replayMsg); replay || msg == (refreshMsg{}) {
			return func() tea.Msg { return msg }
		}
		return nil
	}
	s.run(s.Init())
	s.post(tea.WindowSizeMsg{Width: width, Height: height})
	s.post([]feedMsg{{up: true}})
	return s
}

// Close ends what the screens have begun.
func (s *Still) Close() { s.cancel() }

// Lines returns the lines of the screen, with the colours as escape sequences.
func (s *Still) Lines() []string {
	lines, _ := s.lines()
	return lines
}

// Events reports events of the hub.
func (s *Still) Events(list ...events.Event) { s.post([]feedMsg{{events: list}}) }

func (s *Still) post(msg tea.Msg) {
	_, cmd := s.Update(msg)
	s.run(cmd)
}

func (s *Still) run(cmd tea.Cmd) {
	if cmd == nil {
		return
	}
	switch msg := cmd().(type) {
	case nil:
	case tea.BatchMsg:
		for _, c := range msg {
			s.run(c)
		}
	case tea.QuitMsg:
		s.quit = true
	default:
		if !strings.HasPrefix(fmt.Sprintf("%T", msg), "tea.") {
			s.post(msg)
		}
	}
}

var special = map[string]rune{
	"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "up": tea.KeyUp, "down": tea.KeyDown, "end": tea.KeyEnd, "home": tea.KeyHome,
	"backspace": tea.KeyBackspace, "left": tea.KeyLeft, "right": tea.KeyRight, "delete": tea.KeyDelete,
}

// Keys presses keys: names of special ones, or texts of which each letter is a key.
func (s *Still) Keys(names ...string) {
	for _, name := range names {
		if code, ok := special[name]; ok {
			s.post(tea.KeyPressMsg{Code: code})
			continue
		}
		if ctrl, ok := strings.CutPrefix(name, "ctrl+"); ok {
			s.post(tea.KeyPressMsg{Code: rune(ctrl[0]), Mod: tea.ModCtrl})
			continue
		}
		for _, c := range name {
			s.post(tea.KeyPressMsg{Code: c, Text: string(c)})
		}
	}
}
