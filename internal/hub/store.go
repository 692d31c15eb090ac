package hub

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
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
	// Live is set while a turn is queued or running. A live task in the store of a
	// starting hub was interrupted.
	Live bool
}

// A store keeps tasks and small records. Its methods are safe for concurrent use; one
// goroutine at a time writes a task.
type store interface {
	// load calls task and record with everything stored, the tasks in the order of their
	// last write. It reports unreadable entries to bad.
	load(ctx context.Context, task func(head), record func(kind, key string, value []byte), bad func(error)) error

	// putTask replaces a task and returns when the change is durable.
	putTask(ctx context.Context, h head, body []byte) error
	// task returns a task's body, or errNotStored.
	task(ctx context.Context, id a2a.TaskID) ([]byte, error)
	deleteTask(ctx context.Context, id a2a.TaskID) error

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

// memory is the store of a hub without a bus, in memory.
type memory struct {
	mu      sync.Mutex
	tasks   map[a2a.TaskID]memoryTask
	output  map[a2a.TaskID][]byte
	records map[[2]string][]byte
}

type memoryTask struct {
	head head
	body []byte
}

func newMemory() *memory {
	return &memory{
		tasks: map[a2a.TaskID]memoryTask{}, output: map[a2a.TaskID][]byte{}, records: map[[2]string][]byte{},
	}
}

func (m *memory) load(_ context.Context, task func(head), record func(kind, key string, value []byte), _ func(error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	byUpdate := func(a, b memoryTask) int { return cmp.Compare(a.head.Updated, b.head.Updated) }
	for _, t := range slices.SortedFunc(maps.Values(m.tasks), byUpdate) {
		task(t.head)
	}
	for k, v := range m.records {
		record(k[0], k[1], v)
	}
	return nil
}

func (m *memory) putTask(_ context.Context, h head, body []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tasks[h.ID] = memoryTask{h, bytes.Clone(body)}
	return nil
}

func (m *memory) task(_ context.Context, id a2a.TaskID) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.tasks[id]
	if !ok {
		return nil, errNotStored
	}
	return t.body, nil
}

func (m *memory) deleteTask(_ context.Context, id a2a.TaskID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.tasks, id)
	delete(m.output, id)
	return nil
}

func (m *memory) appendDelta(_ context.Context, id a2a.TaskID, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.output[id] = append(m.output[id], data...)
	return nil
}

func (m *memory) deltas(_ context.Context, id a2a.TaskID) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.output[id]), nil
}

func (m *memory) dropDeltas(_ context.Context, id a2a.TaskID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.output, id)
	return nil
}

func (m *memory) dropAllDeltas(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.output)
	return nil
}

func (m *memory) putRecord(_ context.Context, kind, key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records[[2]string{kind, key}] = bytes.Clone(value)
	return nil
}

func (m *memory) deleteRecord(_ context.Context, kind, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, [2]string{kind, key})
	return nil
}
