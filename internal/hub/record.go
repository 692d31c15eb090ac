package hub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// record is the stored body of a task. A text that the task shows in several places (the
// last message, the status, the streamed artifact) is stored once.
type record struct {
	*a2a.Task
	// StatusInHistory is set if the status's message is the last of the history.
	StatusInHistory bool `json:"statusInHistory,omitempty"`
	// AnswerInHistory is the index (from 1) of an artifact with the text of the history's
	// last message.
	AnswerInHistory int `json:"answerInHistory,omitempty"`
	// Turns is the number of turns whose output is in the task; the output of the next one
	// is in the deltas. Waiting are the messages of later turns.
	Turns   int            `json:"turns,omitempty"`
	Waiting []*a2a.Message `json:"waiting,omitempty"`
}

func encodeRecord(r record) ([]byte, error) {
	t := *r.Task
	if n := len(t.History); n > 0 {
		last := t.History[n-1]
		if t.Status.Message == last {
			r.StatusInHistory, t.Status.Message = true, nil
		}
		for i, a := range t.Artifacts {
			if len(last.Parts) == 1 && sameText(a.Parts, last.Parts) {
				slim := *a
				slim.Parts = a2a.ContentParts{}
				t.Artifacts = append([]*a2a.Artifact(nil), t.Artifacts...)
				t.Artifacts[i], r.AnswerInHistory = &slim, i+1
				break
			}
		}
	}
	r.Task = &t
	return json.Marshal(r)
}

func sameText(a, b a2a.ContentParts) bool {
	if len(a) != 1 || len(b) != 1 {
		return false
	}
	x, ok := plainText(a[0])
	y, ok2 := plainText(b[0])
	return ok && ok2 && x == y
}

// plainText returns the text of a part that has no other content.
func plainText(p *a2a.Part) (a2a.Text, bool) {
	s, ok := p.Content.(a2a.Text)
	return s, ok && p.Filename == "" && p.MediaType == "" && len(p.Metadata) == 0
}

var errUnreadable = errors.New("a stored task cannot be decoded")

func decodeRecord(body []byte) (record, error) {
	var stored storedRecord
	if err := json.Unmarshal(body, &stored); err != nil {
		return record{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	r, err := stored.record()
	if err != nil {
		return record{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	n := len(r.History)
	if (r.StatusInHistory || r.AnswerInHistory > 0) && n == 0 || r.AnswerInHistory > len(r.Artifacts) {
		return record{}, fmt.Errorf("%w: it refers to a message that is missing", errUnreadable)
	}
	if r.StatusInHistory {
		r.Status.Message = r.History[n-1]
	}
	if i := r.AnswerInHistory; i > 0 {
		r.Artifacts[i-1].Parts = r.History[n-1].Parts
	}
	return r, nil
}

// delta is one line of the output of a running turn.
type delta struct {
	Turn     int                          `json:"turn"`
	Text     string                       `json:"text,omitempty"`
	Artifact *a2a.TaskArtifactUpdateEvent `json:"artifact,omitempty"`
}

// decodeDeltas reads the lines of the turns after the given number of turns. It stops at
// a truncated line, or one that cannot be read.
func decodeDeltas(data []byte, turns int) []delta {
	var ds []delta
	for line := range bytes.Lines(data) {
		var stored storedDelta
		if !bytes.HasSuffix(line, []byte("\n")) || json.Unmarshal(line, &stored) != nil {
			break
		}
		d, err := stored.delta()
		if err != nil {
			break
		}
		if d.Turn > turns {
			ds = append(ds, d)
		}
	}
	return ds
}
