package hub

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/a2aproject/a2a-go/v2/a2a"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// record is the stored body of a task. A text that the task shows in several places (the
// last message, the status, the streamed artifact) is stored once.
type record struct {
	*a2a.Task
	// StatusInHistory is set if the status's message is the last of the history.
	StatusInHistory bool `json:"statusInHistory,omitempty"`
	// AnswerInHistory is the index (from 1) of an artifact with the text of the history's last message.
	AnswerInHistory int `json:"answerInHistory,omitempty"`
	// Turns is the number of turns whose output is in the task; the output of the next one
	// is in the deltas. Waiting are the messages of later turns.
	Turns   int            `json:"turns,omitempty"`
	Waiting []*a2a.Message `json:"waiting,omitempty"`
	// WaitingFrom are the senders of Waiting, in its order; nil if all are the hub's own user.
	WaitingFrom []Sender `json:"waitingFrom,omitempty"`
	Tally       tally    `json:"tally,omitzero"`
}

// waitingMessage is the message of a later turn, with its sender.
type waitingMessage struct {
	msg    *a2a.Message
	sender Sender
}

// addWaiting adds the message of a later turn.
func (r *record) addWaiting(w waitingMessage) {
	if !w.sender.Own() || r.WaitingFrom != nil {
		from := make([]Sender, len(r.Waiting), len(r.Waiting)+1)
		copy(from, r.WaitingFrom)
		r.WaitingFrom = append(from, w.sender)
	}
	r.Waiting = append(r.Waiting, w.msg)
}

// waiting returns the messages of later turns.
func (r *record) waiting() []waitingMessage {
	list := make([]waitingMessage, len(r.Waiting))
	for i, m := range r.Waiting {
		list[i].msg = m
		if i < len(r.WaitingFrom) {
			list[i].sender = r.WaitingFrom[i]
		}
	}
	return list
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
	return appendRecord(make([]byte, 0, EncodedSize(&t)), r)
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
	var r record
	if err := jsonv2.Unmarshal(body, &r, exact); err != nil {
		return record{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	if r.Task == nil {
		r.Task = &a2a.Task{} // of an empty object
	}
	n := len(r.History)
	switch {
	case (r.StatusInHistory || r.AnswerInHistory > 0) && n == 0 || r.AnswerInHistory > len(r.Artifacts):
		return record{}, fmt.Errorf("%w: it refers to a message that is missing", errUnreadable)
	case slices.Contains(r.History, nil), slices.Contains(r.Artifacts, nil), slices.Contains(r.Waiting, nil):
		return record{}, fmt.Errorf("%w: %w", errUnreadable, errNull)
	}
	if r.StatusInHistory {
		r.Status.Message = r.History[n-1]
	}
	if i := r.AnswerInHistory; i > 0 {
		r.Artifacts[i-1].Parts = r.History[n-1].Parts
	}
	return r, nil
}

var errNull = errors.New("an element of a list is null")

// exact makes jsonv2 read the SDK's types with exact numbers. The SDK reads every number
// as a float64, which rounds large integers and rejects 1e400.
var exact = jsonv2.WithUnmarshalers(jsonv2.JoinUnmarshalers(
	jsonv2.UnmarshalFromFunc(readValue), jsonv2.UnmarshalFromFunc(readParts), jsonv2.UnmarshalFromFunc(readPart),
))

func readValue(dec *jsontext.Decoder, v *any) error {
	raw, err := dec.ReadValue()
	if err == nil {
		*v = rawjson.Value(raw)
	}
	return err
}

func readParts(dec *jsontext.Decoder, parts *a2a.ContentParts) error {
	err := jsonv2.UnmarshalDecode(dec, (*[]*a2a.Part)(parts))
	if err == nil && slices.Contains(*parts, nil) {
		return errNull
	}
	return err
}

func readPart(dec *jsontext.Decoder, part *a2a.Part) error {
	var p struct {
		Text      *string        `json:"text"`
		Raw       *[]byte        `json:"raw"`
		Data      jsontext.Value `json:"data"`
		URL       *string        `json:"url"`
		Filename  string         `json:"filename"`
		MediaType string         `json:"mediaType"`
		Metadata  map[string]any `json:"metadata"`
	}
	if err := jsonv2.UnmarshalDecode(dec, &p); err != nil {
		return err
	}
	*part = a2a.Part{Filename: p.Filename, MediaType: p.MediaType, Metadata: p.Metadata}
	switch {
	case p.Text != nil:
		part.Content = a2a.Text(*p.Text)
	case p.Raw != nil:
		part.Content = a2a.Raw(*p.Raw)
	case len(p.Data) > 0:
		part.Content = a2a.Data{Value: rawjson.Value(p.Data)}
	case p.URL != nil:
		part.Content = a2a.URL(*p.URL)
	default:
		return errors.New("a part has no content")
	}
	return nil
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
		var d delta
		if !bytes.HasSuffix(line, []byte("\n")) || jsonv2.Unmarshal(line, &d, exact) != nil {
			break
		}
		if d.Turn > turns {
			ds = append(ds, d)
		}
	}
	return ds
}
