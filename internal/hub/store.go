package hub

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// head is the part of a stored task that the index needs. It is stored beside the body,
// so that the hub's start reads no bodies.
type head struct {
	ID      a2a.TaskID
	Agent   string
	Context string
	State   a2a.TaskState
	Created int64 // Unix nanoseconds
	Updated int64 // Unix nanoseconds
	Spent   spent
	// Live is set while a turn is queued or running. A live task in the store of a starting hub was interrupted.
	Live bool
	// Durable is set for a task of a durable agent: a starting hub resumes it if it is live.
	Durable bool
	// Held is set for a task whose turn had not begun when the hub was replaced: a starting hub begins it if it is live.
	Held bool
}

// A store keeps tasks and small records. Its methods are safe for concurrent use; one
// goroutine at a time writes a task.
type store interface {
	// load calls task and record with everything stored, the tasks in the order of their last write. It may first call indexed with an
	// index of tasks, and then calls task with the others and the live ones. It reports unreadable entries to bad.
	load(ctx context.Context, indexed func(*index), task func(head), record func(kind, key string, value []byte), bad func(error)) error
	// damaged has the tasks whose last state cannot be read: load has an older one of them, if any.
	damaged() map[a2a.TaskID]bool
	// saveHeads stores what makes the next load faster, if enough has changed. One goroutine calls it.
	saveHeads(ctx context.Context) error

	// putTask replaces a task and returns when the change is durable.
	putTask(ctx context.Context, h head, body []byte) error
	// task returns a task's body, or errNotStored.
	task(ctx context.Context, id a2a.TaskID) ([]byte, error)
	// deleteTask deletes a task with its traces.
	deleteTask(ctx context.Context, id a2a.TaskID) error

	// putTrace replaces the trace of a turn and returns when the change is durable.
	putTrace(ctx context.Context, id a2a.TaskID, turn int, body []byte) error
	// trace returns the trace of a turn, or errNotStored.
	trace(ctx context.Context, id a2a.TaskID, turn int) ([]byte, error)
	// trimTraces removes the oldest traces until they have at most maxBytes.
	trimTraces(ctx context.Context, maxBytes int64) error

	// appendDelta adds to the output of a running task since its last head. It returns when
	// the order is fixed, not when the change is durable.
	appendDelta(ctx context.Context, id a2a.TaskID, data []byte) error
	// deltas returns all output of a task.
	deltas(ctx context.Context, id a2a.TaskID) ([]byte, error)
	dropDeltas(ctx context.Context, id a2a.TaskID) error
	dropAllDeltas(ctx context.Context) error

	// putRecord replaces a small record and returns when the change is durable.
	putRecord(ctx context.Context, kind, key string, value []byte) error
	deleteRecord(ctx context.Context, kind, key string) error
}

// The kinds of small records.
const (
	kindSession = "session" // sessionRecord
	kindExpired = "expired" // expiredRecord
)

// storeTimeout bounds a write that no caller waits for.
const storeTimeout = 10 * time.Second

var errNotStored = errors.New("not stored")

// Memory is the store of a hub without a bus, in memory. Its zero value is ready. It is safe for concurrent use.
type Memory struct {
	// Watch is called before and after each change of a task or a small record, for simulations. It must not block. Set it
	// before the first use; nil does nothing.
	Watch func(done bool)

	tasks   sync.Map // of memoryTask, by id
	output  sync.Map // of []byte, by the task's id
	records sync.Map // of []byte, by kind and key
	traces  sync.Map // of []byte, by traceKey
}

type traceKey struct {
	id   a2a.TaskID
	turn int
}

type memoryTask struct {
	head head
	body []byte
}

// Clone returns a copy of what is stored now, without Watch.
func (m *Memory) Clone() *Memory {
	c := &Memory{}
	for id, t := range m.tasks.Range {
		c.tasks.Store(id, t) // is never changed
	}
	for id, data := range m.output.Range {
		c.output.Store(id, bytes.Clone(data.([]byte))) // is appended to in place
	}
	for k, v := range m.records.Range {
		c.records.Store(k, v)
	}
	for k, v := range m.traces.Range {
		c.traces.Store(k, v)
	}
	return c
}

// change tells Watch of a change.
func (m *Memory) change(f func()) {
	if m.Watch == nil {
		f()
		return
	}
	m.Watch(false)
	f()
	m.Watch(true)
}

func (m *Memory) damaged() map[a2a.TaskID]bool { return nil }

func (m *Memory) saveHeads(context.Context) error { return nil }

func (m *Memory) load(_ context.Context, _ func(*index), task func(head), record func(kind, key string, value []byte), _ func(error)) error {
	var heads []head
	for _, t := range m.tasks.Range {
		heads = append(heads, t.(memoryTask).head)
	}
	slices.SortFunc(heads, func(a, b head) int { return cmp.Compare(a.Updated, b.Updated) })
	for _, h := range heads {
		task(h)
	}
	for k, v := range m.records.Range {
		key := k.([2]string)
		record(key[0], key[1], v.([]byte))
	}
	return nil
}

func (m *Memory) putTask(_ context.Context, h head, body []byte) error {
	m.change(func() { m.tasks.Store(h.ID, memoryTask{h, bytes.Clone(body)}) })
	return nil
}

func (m *Memory) task(_ context.Context, id a2a.TaskID) ([]byte, error) {
	t, ok := m.tasks.Load(id)
	if !ok {
		return nil, errNotStored
	}
	return t.(memoryTask).body, nil
}

func (m *Memory) deleteTask(_ context.Context, id a2a.TaskID) error {
	m.change(func() { m.tasks.Delete(id) })
	m.output.Delete(id)
	for k := range m.traces.Range {
		if k.(traceKey).id == id {
			m.traces.Delete(k)
		}
	}
	return nil
}

func (m *Memory) putTrace(_ context.Context, id a2a.TaskID, turn int, body []byte) error {
	m.traces.Store(traceKey{id, turn}, bytes.Clone(body))
	return nil
}

func (m *Memory) trace(_ context.Context, id a2a.TaskID, turn int) ([]byte, error) {
	body, ok := m.traces.Load(traceKey{id, turn})
	if !ok {
		return nil, errNotStored
	}
	return body.([]byte), nil
}

// trimTraces keeps everything: a store in memory is for tests.
func (m *Memory) trimTraces(context.Context, int64) error { return nil }

func (m *Memory) appendDelta(ctx context.Context, id a2a.TaskID, data []byte) error {
	old, err := m.deltas(ctx, id)
	m.output.Store(id, append(old, data...)) // readers of old do not see the rest of its array
	return err
}

func (m *Memory) deltas(_ context.Context, id a2a.TaskID) ([]byte, error) {
	data, _ := m.output.Load(id)
	all, _ := data.([]byte) // nil if there is none
	return all, nil
}

func (m *Memory) dropDeltas(_ context.Context, id a2a.TaskID) error {
	m.output.Delete(id)
	return nil
}

func (m *Memory) dropAllDeltas(context.Context) error {
	m.output.Clear()
	return nil
}

func (m *Memory) putRecord(_ context.Context, kind, key string, value []byte) error {
	m.change(func() { m.records.Store([2]string{kind, key}, bytes.Clone(value)) })
	return nil
}

func (m *Memory) deleteRecord(_ context.Context, kind, key string) error {
	m.change(func() { m.records.Delete([2]string{kind, key}) })
	return nil
}
