package terminal

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/screens"
	"github.com/parleyhub/parley/internal/hub/events"
)

// maxTimeline bounds the events that the timeline shows.
const maxTimeline = 5000

func timelineScreen(now func() time.Time) *screen {
	var kept []events.Event
	return &screen{
		kinds:   []string{"agent.", "task.", "turn.", "permission.", "channel.", "mail.", "work.", "deadletter.", "swarm.", "loop.", "peer.", "document.", "claim.", "gap"},
		replays: true,
		load: func(ctx context.Context, h Hub, changed []events.Event) (table, error) {
			if changed == nil {
				var err error
				if kept, err = pastEvents(ctx, h, now().Add(-24*time.Hour)); err != nil {
					return table{}, err
				}
			}
			kept = append(kept, changed...)
			if len(kept) > maxTimeline {
				kept = slices.Clone(kept[len(kept)-maxTimeline:])
			}
			t := table{columns: []column{{"TIME", 8}, {"WHAT", 19}, {"WHO", 16}, {"", 0}}}
			for i := range slices.Backward(kept) {
				t.rows = append(t.rows, eventRow(&kept[i]))
			}
			return t, nil
		},
		open: func(r row) *page {
			switch {
			case r.task != "":
				return taskPage(r.subject)
			case r.swarm != "":
				return swarmPage(r.subject, now)
			case r.loop != "":
				return loopPage(r.subject, now)
			case r.document != "":
				return documentPage(r.subject)
			case r.agent != "":
				return agentPage(r.subject, now)
			}
			return nil
		},
	}
}

// pastEvents returns the latest events since a time, of the given kinds or of all.
func pastEvents(ctx context.Context, h Hub, since time.Time, kinds ...string) ([]events.Event, error) {
	p := dialect.EventsParams{Since: &dialect.Time{Time: since}, Follow: new(false)}
	for _, k := range kinds {
		p.Kinds = append(p.Kinds, strings.TrimSuffix(k, "."))
	}
	s, err := h.HubEvents(ctx, p)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var all []events.Event
	for {
		e, err := s.Next(ctx)
		if err != nil {
			return all, endOnly(err)
		}
		if e.Kind != events.Here {
			all = append(all, e)
		}
		if len(all) > 2*maxTimeline {
			all = slices.Clone(all[maxTimeline:])
		}
	}
}

func eventRow(e *events.Event) row {
	r := row{key: e.Position.String(), at: e.Time, subject: subject{task: e.Task, agent: e.Agent, context: e.Context}}
	switch {
	case strings.HasPrefix(string(e.Kind), "swarm."):
		r.swarm = e.Subject
	case e.Kind == events.LoopStep:
		r.loop = e.Subject
	case e.Kind == events.DocumentChanged:
		r.document = e.Subject
	}
	var details []string
	for _, key := range []string{"state", "status", "outcome", "step"} {
		if v, _ := e.Data[key].(string); v != "" {
			details = append(details, screens.Word(v))
		}
	}
	if to, _ := e.Data["toHandle"].(string); to != "" {
		details = append(details, "to "+to)
	}
	for _, key := range []string{"reason", "tool", "title", "from", "subTask", "item", "messages", "costUsd"} {
		if v, ok := e.Data[key]; ok && fmt.Sprint(v) != "" && fmt.Sprint(v) != "0" && !(key == "from" && e.Kind == events.MailSent) {
			details = append(details, fmt.Sprint(v))
		}
	}
	for _, key := range []string{"state", "status", "outcome"} {
		if state, _ := e.Data[key].(string); state != "" {
			r.state = state
			break
		}
	}
	who := cmp.Or(e.Agent, e.Subject, e.Channel)
	switch e.Kind {
	case events.LoopStep:
		who = filepath.Base(e.Subject)
		details = append(details, e.Subject)
	case events.MailSent: // its subject is an id
		who, _ = e.Data["fromHandle"].(string)
	default:
		details = append(details, e.Channel, e.Subject)
	}
	r.cells = []string{clock(e.Time), screens.Word(string(e.Kind)), clean(who), clean(strings.Join(details, " "))}
	return r.found(string(e.Kind), r.state, e.Task, e.Subject, e.Project)
}

// Replay shows what the timeline shows once more, in the order in which it happened: the rows that come later are hidden.

// replayMsg shows the next row, if it belongs to the replay that runs.
type replayMsg struct {
	s   *screen
	run int
}

const (
	replaySpeed   = 20 // times as fast as it was
	replayLeast   = 80 * time.Millisecond
	replayLongest = time.Second
)

// playKey begins a replay, or pauses it and continues.
func (m *model) playKey() tea.Cmd {
	s := m.current()
	if !s.replays || m.page != nil || s.len()+s.hidden == 0 {
		return nil
	}
	s.run++ // ends the one that runs
	if s.playing = !s.playing; !s.playing {
		return nil
	}
	if s.hidden == 0 {
		s.hidden = s.len() - 1
	}
	s.cursor = 0
	return m.replayNext(s)
}

// replayNext shows the next row after the time that it had come after the one before, shortened.
func (m *model) replayNext(s *screen) tea.Cmd {
	if s.hidden == 0 {
		s.playing = false
		return m.say("The replay is at the end.", good)
	}
	pause := s.rowAt(-1).at.Sub(s.rowAt(0).at) / replaySpeed
	return m.tick(min(max(pause, replayLeast), replayLongest), replayMsg{s, s.run})
}

func (m *model) replayed(r replayMsg) tea.Cmd {
	if !r.s.playing || r.s.run != r.run {
		return nil
	}
	r.s.step(1)
	return m.replayNext(r.s)
}

// step shows n rows more, or -n less.
func (s *screen) step(n int) {
	all := s.len() + s.hidden
	s.hidden = min(max(s.hidden-n, 0), max(all-1, 0))
	s.cursor = 0
}

// stopReplay shows all rows again. It reports whether there was a replay.
func (s *screen) stopReplay() bool {
	was := s.hidden > 0 || s.playing
	s.hidden, s.playing = 0, false
	s.run++
	return was
}
