package swarm

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/fault"
)

// Record is one entry of a swarm's journal.
type Record struct {
	// Sequence grows from record to record of a swarm.
	Sequence uint64
	Data     []byte
}

// Journal stores the events of swarms, each in one order. It must be safe for concurrent use. [MemoryJournal] is for
// one process; package swarm/busjournal has one on NATS for coordinators of several processes.
type Journal interface {
	// Append stores a record after the one with the sequence after (0: the first) and
	// returns its sequence once it is durable. If the swarm's last record is another one,
	// it returns [ErrConflict]; if storage is full, [ErrFull].
	Append(ctx context.Context, swarmID string, after uint64, data []byte) (uint64, error)
	// Read returns the records of a swarm after a sequence, in order.
	Read(ctx context.Context, swarmID string, after uint64) ([]Record, error)
	// LastOf returns the sequence of a swarm's last record, 0 without any. An incompletely written record may count.
	LastOf(ctx context.Context, swarmID string) (uint64, error)
	// Room returns the free and total storage for records in bytes, approximately. Append
	// accepts more: swarms store their end in a reserve that Room does not count.
	Room(ctx context.Context) (free, total int64, err error)
	// Last returns the sequence of the last record of each swarm that has one.
	Last(ctx context.Context) (map[string]uint64, error)
	// Forget deletes a swarm's records, if there are any.
	Forget(ctx context.Context, swarmID string) error
}

// guardedJournal is a Journal of the application. A panic of it is an error event, and the error.
type guardedJournal struct {
	Journal
	caught func(*fault.Panic)
}

func guarded[T any](j guardedJournal, f func() (T, error)) (value T, err error) {
	err = fault.CatchError(func() (err error) { value, err = f(); return err })
	if p, panicked := errors.AsType[*fault.Panic](err); panicked {
		j.caught(p)
	}
	return value, err
}

// Append implements [Journal].
func (j guardedJournal) Append(ctx context.Context, swarmID string, after uint64, data []byte) (uint64, error) {
	return guarded(j, func() (uint64, error) { return j.Journal.Append(ctx, swarmID, after, data) })
}

// Read implements [Journal].
func (j guardedJournal) Read(ctx context.Context, swarmID string, after uint64) ([]Record, error) {
	return guarded(j, func() ([]Record, error) { return j.Journal.Read(ctx, swarmID, after) })
}

// LastOf implements [Journal].
func (j guardedJournal) LastOf(ctx context.Context, swarmID string) (uint64, error) {
	return guarded(j, func() (uint64, error) { return j.Journal.LastOf(ctx, swarmID) })
}

// Room implements [Journal].
func (j guardedJournal) Room(ctx context.Context) (free, total int64, err error) {
	room, err := guarded(j, func() ([2]int64, error) {
		free, total, err := j.Journal.Room(ctx)
		return [2]int64{free, total}, err
	})
	return room[0], room[1], err
}

// Last implements [Journal].
func (j guardedJournal) Last(ctx context.Context) (map[string]uint64, error) {
	return guarded(j, func() (map[string]uint64, error) { return j.Journal.Last(ctx) })
}

// Forget implements [Journal].
func (j guardedJournal) Forget(ctx context.Context, swarmID string) error {
	_, err := guarded(j, func() (struct{}, error) { return struct{}{}, j.Journal.Forget(ctx, swarmID) })
	return err
}

// ErrConflict is the error of [Journal.Append] after another writer's record.
var ErrConflict = &Error{Code: CodeConflict, Message: "another coordinator has written to the journal"}

// ErrFull is the error of [Journal.Append] without space for a record.
var ErrFull = &Error{Code: CodeNoRoom, Message: "the journals of swarms are full"}

// MemoryJournal is a journal for the coordinators of one process. The zero value is ready.
type MemoryJournal struct {
	// MaxBytes bounds the records; 0 means DefaultMemory. An eighth is reserved for the ends of swarms.
	MaxBytes int64

	mu      sync.Mutex
	records map[string][]Record
	last    uint64
	bytes   int64
}

// DefaultMemory is the default of MemoryJournal.MaxBytes.
const DefaultMemory = 1 << 30

func (j *MemoryJournal) most() int64 { return defaults.Or(j.MaxBytes, DefaultMemory) }

// Append implements [Journal].
func (j *MemoryJournal) Append(_ context.Context, swarmID string, after uint64, data []byte) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lastOf(swarmID) != after {
		return 0, ErrConflict
	}
	if j.bytes+int64(len(data)) > j.most() {
		return 0, ErrFull
	}
	if j.records == nil {
		j.records = make(map[string][]Record)
	}
	j.last++
	j.bytes += int64(len(data))
	j.records[swarmID] = append(j.records[swarmID], Record{Sequence: j.last, Data: slices.Clone(data)})
	return j.last, nil
}

func (j *MemoryJournal) lastOf(swarmID string) uint64 {
	all := j.records[swarmID]
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].Sequence
}

// Read implements [Journal].
func (j *MemoryJournal) Read(_ context.Context, swarmID string, after uint64) ([]Record, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := j.records[swarmID]
	from := slices.IndexFunc(all, func(r Record) bool { return r.Sequence > after })
	if from < 0 {
		return nil, nil
	}
	return slices.Clone(all[from:]), nil
}

// Last implements [Journal].
func (j *MemoryJournal) Last(context.Context) (map[string]uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	last := make(map[string]uint64, len(j.records))
	for id := range maps.Keys(j.records) {
		last[id] = j.lastOf(id)
	}
	return last, nil
}

// Forget implements [Journal].
func (j *MemoryJournal) Forget(_ context.Context, swarmID string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.records[swarmID] {
		j.bytes -= int64(len(r.Data))
	}
	delete(j.records, swarmID)
	return nil
}

// LastOf implements [Journal].
func (j *MemoryJournal) LastOf(_ context.Context, swarmID string) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lastOf(swarmID), nil
}

// Room implements [Journal].
func (j *MemoryJournal) Room(context.Context) (free, total int64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	total = j.most() / 8 * 7
	return max(0, total-j.bytes), total, nil
}

// entry is the data of a record: events that take effect together.
type entry struct {
	Version int     `json:"v"`
	Writer  string  `json:"writer"` // unique to each term of a leader
	Number  uint64  `json:"n"`      // of the writer's entries
	Events  []event `json:"events"`
}

const entryVersion = 1

func decodeEntry(swarmID string, r Record) (entry, error) {
	var e entry
	if err := json.Unmarshal(r.Data, &e); err != nil {
		return e, &Error{Code: CodeJournal, Subject: swarmID, Message: "a record of the journal cannot be read", Err: err}
	}
	if e.Version != entryVersion {
		return e, errorf(CodeJournal, swarmID, "a record of the journal has version %d, this program reads %d", e.Version, entryVersion)
	}
	return e, nil
}

// load reads a swarm's journal.
func load(ctx context.Context, j Journal, swarmID string) (*state, error) {
	x := new(state)
	_, err := x.catchUp(ctx, j, swarmID)
	return x, err
}

// catchUp applies what the journal has beyond the state.
func (x *state) catchUp(ctx context.Context, j Journal, swarmID string) (bytes int, err error) {
	records, err := j.Read(ctx, swarmID, x.s.Sequence)
	if err != nil {
		return 0, &Error{Code: CodeJournal, Subject: swarmID, Message: "the journal cannot be read", Err: err}
	}
	for _, r := range records {
		e, err := decodeEntry(swarmID, r)
		if err != nil {
			return 0, err
		}
		for _, change := range e.Events {
			if err := x.apply(change); err != nil {
				return 0, err
			}
		}
		x.s.Sequence = r.Sequence
		bytes += len(r.Data)
	}
	if x.s.ID == "" {
		return 0, notFound(swarmID)
	}
	return bytes, nil
}
