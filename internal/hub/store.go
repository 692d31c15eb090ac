package hub

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// head is what the index needs to know of a stored task; it travels beside the
// body, so that a start reads no bodies.
type head struct {
	ID      a2a.TaskID
	Agent   string
	Context string
	State   a2a.TaskState
	Created int64 // Unix nanoseconds
	Updated int64 // Unix nanoseconds
	// Live is set while a turn is queued or running: a live task that is found
	// at a start was cut off.
	Live bool
}

// A store keeps tasks and small records. Its methods are safe for concurrent
// use; the writes of one task come from one goroutine at a time.
type store interface {
	// load visits everything that is stored, tasks in the order of their last
	// write. What cannot be read is told to bad and left out.
	load(ctx context.Context, task func(head), record func(kind, key string, value []byte), bad func(error)) error

	// putTask replaces a task and returns when that is durable.
	putTask(ctx context.Context, h head, body []byte) error
	// task returns a task's body, or errNotStored.
	task(ctx context.Context, id a2a.TaskID) ([]byte, error)
	deleteTask(ctx context.Context, id a2a.TaskID) error

	// appendDelta adds to what a running task has put out since its last head.
	// It returns when the order is settled, not when it is durable.
	appendDelta(ctx context.Context, id a2a.TaskID, data []byte) error
	// deltas returns all of it.
	deltas(ctx context.Context, id a2a.TaskID) ([]byte, error)
	dropDeltas(ctx context.Context, id a2a.TaskID) error
	dropAllDeltas(ctx context.Context) error

	// putRecord replaces a small record and returns when that is durable.
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

// memory is the store of a hub without a bus: nothing outlives the process.
type memory struct {
	mu      sync.Mutex
	heads   map[a2a.TaskID]head
	bodies  map[a2a.TaskID][]byte
	output  map[a2a.TaskID][]byte
	records map[[2]string][]byte
}

func newMemory() *memory {
	return &memory{
		heads:   map[a2a.TaskID]head{},
		bodies:  map[a2a.TaskID][]byte{},
		output:  map[a2a.TaskID][]byte{},
		records: map[[2]string][]byte{},
	}
}

func (m *memory) load(_ context.Context, task func(head), record func(kind, key string, value []byte), _ func(error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	heads := slices.SortedFunc(maps.Values(m.heads), func(a, b head) int { return int(min(max(a.Updated-b.Updated, -1), 1)) })
	for _, h := range heads {
		task(h)
	}
	for k, v := range m.records {
		record(k[0], k[1], v)
	}
	return nil
}

func (m *memory) putTask(_ context.Context, h head, body []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heads[h.ID], m.bodies[h.ID] = h, bytes.Clone(body)
	return nil
}

func (m *memory) task(_ context.Context, id a2a.TaskID) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	body, ok := m.bodies[id]
	if !ok {
		return nil, errNotStored
	}
	return body, nil
}

func (m *memory) deleteTask(_ context.Context, id a2a.TaskID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.heads, id)
	delete(m.bodies, id)
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
