package runner

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
)

// echo is an agent that every hub has, for trials and measurements. It answers with the message's text, in the hub's
// process. With the argument "words" it streams the text word by word.
type echo struct {
	def   Definition
	words bool
}

func openEcho(def Definition, _ Options) (Agent, error) {
	return &echo{def: def, words: slices.Contains(def.Args, "words")}, nil
}

// Probe never fails.
func (e *echo) Probe(context.Context) Probe {
	return Probe{Stage: StageAuthenticated, AuthKnown: true}
}

// Open never fails.
func (e *echo) Open(SessionSpec) (Session, error) { return &echoSession{agent: e}, nil }

type echoSession struct {
	agent *echo
	busy  atomic.Bool
}

func (s *echoSession) Turn(ctx context.Context, turn Turn, h Handler) (Outcome, error) {
	if !s.busy.CompareAndSwap(false, true) {
		return failed(Outcome{ExitCode: -1}, errBusy(s.agent.def))
	}
	defer s.busy.Store(false)
	began := time.Now()
	answer, err := s.agent.answer(turn.Parts)
	if err != nil {
		return failed(Outcome{ExitCode: -1}, err)
	}
	out := Outcome{Status: OutcomeCompleted, Text: answer, ExitCode: -1}
	if len(answer) > s.agent.def.Limits.MaxOutput {
		out.Text, out.Truncated = text.Cut(answer, s.agent.def.Limits.MaxOutput), true
	}
	if !s.agent.emit(ctx, out.Text, h) {
		out.Status = OutcomeCanceled
	}
	out.Duration = time.Since(began)
	return out, nil
}

// emit returns false if ctx ended before all text was reported.
func (e *echo) emit(ctx context.Context, text string, h Handler) bool {
	words := slices.Values([]string{text})
	if e.words {
		words = strings.SplitAfterSeq(text, " ")
	}
	for word := range words {
		if ctx.Err() != nil {
			return false
		}
		h.Event(TextDelta{Text: word})
	}
	return true
}

// answer returns the message's text. A message of one text part, the usual one, is not copied.
func (e *echo) answer(parts []*a2a.Part) (string, *Error) {
	if len(parts) == 1 && parts[0] != nil {
		if t, ok := parts[0].Content.(a2a.Text); ok && len(t) <= e.def.Limits.MaxPrompt {
			return string(t), nil
		}
	}
	return PromptText(parts, e.def.Limits.MaxPrompt)
}

// Close does nothing: there is no process.
func (s *echoSession) Close(context.Context) error { return nil }
