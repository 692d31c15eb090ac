package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// restore reads the index, the sessions and the expired contexts from the store, and
// fails the tasks that a crash has interrupted.
func (h *Hub) restore(ctx context.Context) error {
	var cut []head
	damaged := h.store.damaged() // what seems to be live may have ended
	bad := func(err error) { h.log.Warn("a stored entry cannot be read and is ignored", "error", err) }
	err := h.store.load(ctx, func(x *index) { h.index = x },
		func(hd head) {
			h.index.add(hd)
			switch {
			case hd.Live && damaged[hd.ID]:
				cut = append(cut, hd)
			case hd.Live && (hd.Durable || hd.Held && h.configured(hd.Agent)):
				h.suspended[hd.Agent] = append(h.suspended[hd.Agent], hd.ID)
			case hd.Live:
				cut = append(cut, hd)
			}
		},
		func(kind, _ string, value []byte) {
			switch kind {
			case kindSession:
				if err := h.pool.restore(value); err != nil {
					bad(err)
				}
			case kindExpired:
				var rec expiredRecord
				if err := json.Unmarshal(value, &rec); err != nil {
					bad(fmt.Errorf("decode an expired context: %w", err))
					return
				}
				h.expired.add(rec.Context, rec.At)
			}
		}, bad)
	if err != nil {
		return &Error{Code: CodeInternal, Message: "cannot read the hub's store", Err: err}
	}
	for _, hd := range cut {
		err := h.endCutOff(ctx, hd, damaged[hd.ID])
		if isDamage(err) {
			h.giveUp(hd, err)
			err = nil
		}
		if err != nil {
			return &Error{Code: CodeInternal, Message: fmt.Sprintf("cannot end task %s, which a crash interrupted", hd.ID), Err: err}
		}
	}
	if err := h.store.dropAllDeltas(ctx); err != nil {
		return &Error{Code: CodeInternal, Message: "cannot clear the hub's store of output", Err: err}
	}
	if len(cut) > 0 {
		h.log.Warn("tasks that ran when the hub stopped have failed", "tasks", len(cut))
	}
	return nil
}

// configured reports whether an agent is one that the hub starts with.
func (h *Hub) configured(id string) bool {
	return slices.ContainsFunc(h.cfg.Agents, func(a Agent) bool { return a.Definition.ID == id && !a.Definition.Disabled })
}

// endCutOff fails a task whose turn ran when the process died, and keeps the output of the turn; or one whose state after that is damaged.
func (h *Hub) endCutOff(ctx context.Context, hd head, damaged bool) error {
	body, err := h.store.task(ctx, hd.ID)
	if err != nil {
		return err
	}
	e := h.index.entryAt(hd.ID, hd.Updated)
	rec, err := decodeRecord(body)
	if err != nil {
		h.giveUp(hd, err)
		return nil
	}
	data, err := h.store.deltas(ctx, hd.ID)
	if err != nil {
		return err
	}
	t := newTask(h, e, rec)
	for _, m := range rec.Waiting {
		t.addHistory(m)
	}
	output := t.replay(data)
	begun, err := h.interruptTrace(ctx, hd.ID, rec.Turns+1)
	if err != nil {
		return err
	}
	if begun || len(output) > 0 {
		t.turns++
	}
	steps, err := path(t.status.State, a2a.TaskStateFailed)
	if err != nil {
		return err
	}
	for range steps[:len(steps)-1] {
		h.index.stamp() // of the intermediate state
	}
	msg := t.errorMessage(CodeStopped, "the hub stopped while the task was "+cutOffState(hd.State), "send the message again")
	if damaged {
		msg = t.errorMessage(string(CodeInternal), "the record of the task's last state is damaged, so that its end is not known", "see what the agent has done before you send the message again; `parley repair` lists the damage")
	}
	status := t.newStatus(a2a.TaskStateFailed, msg)
	end := ending{state: a2a.TaskStateFailed, message: msg, history: true, output: output}
	if body, err = t.body(status, end); err != nil {
		return err
	}
	if err := h.store.putTask(ctx, t.head(status, false), body); err != nil {
		return err
	}
	h.index.update(e, status.State, *status.Timestamp)
	t.publishState(status)
	return nil
}

// giveUp lists an interrupted task that cannot be read as failed. What is stored of it stays.
func (h *Hub) giveUp(hd head, err error) {
	h.log.Error("an interrupted task cannot be read", "task", hd.ID, "error", err)
	if e := h.index.entryAt(hd.ID, hd.Updated); e != nil {
		h.index.update(e, a2a.TaskStateFailed, h.index.stamp())
	}
}

// cutOffState describes the state of an interrupted task. Short tasks are stored only at
// the end, so that a stored "submitted" may have been working.
func cutOffState(stored a2a.TaskState) string {
	if stored == a2a.TaskStateSubmitted || stored == a2a.TaskStateWorking {
		return "under way"
	}
	return StateName(stored)
}

// replay returns the artifacts of a turn's stored output.
func (t *task) replay(data []byte) []*a2a.Artifact {
	tn := &turn{task: t, n: t.turns + 1, seen: true}
	for _, d := range decodeDeltas(data, t.turns) {
		tn.text.WriteString(d.Text)
		if up := d.Artifact; up != nil && up.Artifact != nil {
			tn.putArtifact(up.Artifact, up.Append)
		}
	}
	tn.over = true
	return tn.artifacts()
}
