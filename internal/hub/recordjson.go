package hub

import (
	"encoding/json"
	"errors"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// The types below read the JSON of the SDK's types with exact numbers. The SDK reads
// every number as a float64, which rounds large integers and rejects 1e400. Each type
// embeds the SDK's type and shadows the fields with numbers, so that fields of later
// versions of the SDK are read too.

type (
	plainTask     a2a.Task
	plainStatus   a2a.TaskStatus
	plainMessage  a2a.Message
	plainArtifact a2a.Artifact
	plainUpdate   a2a.TaskArtifactUpdateEvent
)

type storedRecord struct {
	plainTask
	Status    storedStatus      `json:"status"`
	History   []*storedMessage  `json:"history"`
	Artifacts []*storedArtifact `json:"artifacts"`
	Metadata  storedMap         `json:"metadata"`

	StatusInHistory bool             `json:"statusInHistory"`
	AnswerInHistory int              `json:"answerInHistory"`
	Turns           int              `json:"turns"`
	Waiting         []*storedMessage `json:"waiting"`
}

type storedStatus struct {
	plainStatus
	Message *storedMessage `json:"message"`
}

type storedMessage struct {
	plainMessage
	Parts    []*storedPart `json:"parts"`
	Metadata storedMap     `json:"metadata"`
}

type storedArtifact struct {
	plainArtifact
	Parts    []*storedPart `json:"parts"`
	Metadata storedMap     `json:"metadata"`
}

type storedDelta struct {
	Turn     int           `json:"turn"`
	Text     string        `json:"text"`
	Artifact *storedUpdate `json:"artifact"`
}

type storedUpdate struct {
	plainUpdate
	Artifact *storedArtifact `json:"artifact"`
	Metadata storedMap       `json:"metadata"`
}

type storedPart struct {
	Text      *string         `json:"text"`
	Raw       *[]byte         `json:"raw"`
	Data      json.RawMessage `json:"data"`
	URL       *string         `json:"url"`
	Filename  string          `json:"filename"`
	MediaType string          `json:"mediaType"`
	Metadata  storedMap       `json:"metadata"`
}

// storedMap is an object with exact numbers.
type storedMap map[string]any

func (m *storedMap) UnmarshalJSON(raw []byte) error {
	switch v := rawjson.Value(raw).(type) {
	case nil:
		*m = nil
	case map[string]any:
		*m = v
	default:
		return errors.New("metadata is not an object")
	}
	return nil
}

func (r *storedRecord) record() (record, error) {
	t := a2a.Task(r.plainTask)
	t.Metadata = r.Metadata
	t.Status = a2a.TaskStatus(r.Status.plainStatus)
	var err error
	if r.Status.Message != nil {
		if t.Status.Message, err = r.Status.Message.message(); err != nil {
			return record{}, err
		}
	}
	if t.History, err = storedList(r.History, (*storedMessage).message); err != nil {
		return record{}, err
	}
	if t.Artifacts, err = storedList(r.Artifacts, (*storedArtifact).artifact); err != nil {
		return record{}, err
	}
	rec := record{Task: &t, StatusInHistory: r.StatusInHistory, AnswerInHistory: r.AnswerInHistory, Turns: r.Turns}
	rec.Waiting, err = storedList(r.Waiting, (*storedMessage).message)
	return rec, err
}

func (m *storedMessage) message() (*a2a.Message, error) {
	msg := a2a.Message(m.plainMessage)
	msg.Metadata = m.Metadata
	var err error
	msg.Parts, err = storedList(m.Parts, (*storedPart).part)
	return &msg, err
}

func (a *storedArtifact) artifact() (*a2a.Artifact, error) {
	artifact := a2a.Artifact(a.plainArtifact)
	artifact.Metadata = a.Metadata
	var err error
	artifact.Parts, err = storedList(a.Parts, (*storedPart).part)
	return &artifact, err
}

func (d *storedDelta) delta() (delta, error) {
	out := delta{Turn: d.Turn, Text: d.Text}
	if d.Artifact == nil {
		return out, nil
	}
	update := a2a.TaskArtifactUpdateEvent(d.Artifact.plainUpdate)
	update.Metadata = d.Artifact.Metadata
	out.Artifact = &update
	if d.Artifact.Artifact == nil {
		return out, nil
	}
	var err error
	update.Artifact, err = d.Artifact.Artifact.artifact()
	return out, err
}

func (p *storedPart) part() (*a2a.Part, error) {
	part := &a2a.Part{Filename: p.Filename, MediaType: p.MediaType, Metadata: p.Metadata}
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
		return nil, errors.New("a part has no content")
	}
	return part, nil
}

// storedList converts the elements of a list; nil stays nil.
func storedList[S, T any](list []*S, convert func(*S) (*T, error)) ([]*T, error) {
	if list == nil {
		return nil, nil
	}
	out := make([]*T, len(list))
	for i, s := range list {
		if s == nil {
			return nil, errors.New("an element of a list is null")
		}
		var err error
		if out[i], err = convert(s); err != nil {
			return nil, err
		}
	}
	return out, nil
}
