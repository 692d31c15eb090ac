package hub

import (
	"maps"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Summary is what a list shows of a task besides its state. It is part of the metadata of each task that the hub
// returns, see MetaSummary, so that lists have it without reading the traces of the task's turns.
type Summary struct {
	Prompt    string // the first line of the first message, at most 200 bytes
	Model     string // that answered last; "" if the agent does not name it
	CreatedAt time.Time
	StartedAt time.Time     // when the last turn that ended had started; zero before
	Duration  time.Duration // of the turns that have ended, in whole milliseconds
	Turns     int           // that have ended
	Usage     runner.Usage  // of the turns that have ended
}

// maxPromptLine bounds Summary.Prompt, in bytes.
const maxPromptLine = 200

// ReadSummary returns the summary in a task's metadata, here or at a client. Members that are missing or of another
// type are zero.
func ReadSummary(metadata map[string]any) Summary {
	m, _ := metadata[MetaSummary].(map[string]any)
	u, _ := m["usage"].(map[string]any)
	return Summary{
		Prompt: member[string](m, "prompt"), Model: member[string](m, "model"),
		CreatedAt: timeIn(m, "createdAt"), StartedAt: timeIn(m, "startedAt"),
		Duration: time.Duration(member[float64](m, "durationMs")) * time.Millisecond, Turns: int(member[float64](m, "turns")),
		Usage: readUsage(u),
	}
}

// readUsage reads the decoded form of a runner.Usage.
func readUsage(u map[string]any) runner.Usage {
	return runner.Usage{
		InputTokens: int64(member[float64](u, "inputTokens")), OutputTokens: int64(member[float64](u, "outputTokens")),
		CachedTokens: int64(member[float64](u, "cachedTokens")), CostUSD: member[float64](u, "costUsd"),
	}
}

// member returns a member of the type T, the zero value for any other.
func member[T any](m map[string]any, name string) T {
	v, _ := m[name].(T)
	return v
}

func timeIn(m map[string]any, name string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, member[string](m, name))
	if err != nil {
		return time.Time{}
	}
	return at.UTC()
}

// data returns the summary for the metadata. Zero members are missing.
func (s Summary) data() map[string]any {
	m := make(map[string]any, 8)
	for _, f := range [...]struct{ name, value string }{
		{"prompt", s.Prompt}, {"model", s.Model}, {"createdAt", stamp(s.CreatedAt)}, {"startedAt", stamp(s.StartedAt)},
	} {
		if f.value != "" {
			m[f.name] = f.value
		}
	}
	if s.Turns > 0 {
		m["turns"], m["durationMs"] = float64(s.Turns), float64(s.Duration.Milliseconds())
	}
	if s.Usage != (runner.Usage{}) {
		m["usage"] = plain(s.Usage)
	}
	return m
}

func stamp(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano)
}

// tally is what a summary says of the turns that have ended. It is stored beside the task; the rest of the summary
// comes from the task itself, so that storing a task costs no map for it.
type tally struct {
	Model      string       `json:"model,omitempty"`
	StartedAt  int64        `json:"startedAt"`  // of the last turn, in Unix milliseconds
	DurationMs int64        `json:"durationMs"` // of all turns
	Turns      int          `json:"turns"`
	Usage      runner.Usage `json:"usage,omitzero"` // of all turns
}

// add adds an ended turn.
func (s *tally) add(tn *turn, model string) {
	s.StartedAt = tn.began.UnixMilli()
	s.DurationMs += max(time.Since(tn.began).Milliseconds(), 0) // by the wall clock after a restart of the hub
	s.Turns++
	if model != "" {
		s.Model = text.Clip(model, maxPromptLine)
	}
	s.Usage = s.Usage.Plus(tn.usage)
}

// summary returns the summary of a task with a history.
func (s tally) summary(history []*a2a.Message, created time.Time) Summary {
	sum := Summary{
		Model: s.Model, CreatedAt: created.Truncate(time.Millisecond),
		Duration: time.Duration(s.DurationMs) * time.Millisecond, Turns: s.Turns, Usage: s.Usage,
	}
	if len(history) > 0 {
		sum.Prompt = promptLine(history[0].Parts)
	}
	if s.Turns > 0 {
		sum.StartedAt = time.UnixMilli(s.StartedAt)
	}
	return sum
}

// promptLine returns the first line of the text of parts that is not blank; without text, what the parts are.
func promptLine(parts a2a.ContentParts) string {
	for _, p := range parts {
		for line := range strings.Lines(p.Text()) {
			if line = text.OneLine(line); line != "" {
				return text.Clip(line, maxPromptLine-len("…"))
			}
		}
	}
	for _, p := range parts {
		if p.Filename != "" {
			return text.Clip("[file "+text.OneLine(p.Filename)+"]", maxPromptLine-len("…"))
		}
	}
	return ""
}

// shownMeta returns the metadata with the task's summary. mu is held.
func (t *task) shownMeta() map[string]any {
	return withSummary(t.metadata, t.tally.summary(t.history, time.Unix(0, t.entry.created)))
}

func withSummary(metadata map[string]any, s Summary) map[string]any {
	m := make(map[string]any, len(metadata)+1)
	maps.Copy(m, metadata)
	m[MetaSummary] = s.data()
	return m
}

// summarize adds the summary to the metadata of a task from the store. A task of an older hub has no tally; its
// usage is that of its last turn.
func (r *record) summarize(created time.Time) {
	s := r.Tally.summary(r.History, created)
	if r.Tally == (tally{}) {
		u, _ := r.Metadata[MetaUsage].(map[string]any)
		s.Usage = readUsage(u)
	}
	r.Metadata = withSummary(r.Metadata, s)
}
