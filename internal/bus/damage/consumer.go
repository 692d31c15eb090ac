package damage

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/parleyhub/parley/internal/base/local"
)

// stateFile has the position of a consumer: what was delivered, and what was acknowledged.
const stateFile = "o.dat"

// Why a consumer begins anew.
const (
	reasonSettings = "its settings are not complete, so that the server leaves it out at each start"
	reasonState    = "its position cannot be read, so that the server refuses to make it"
	reasonStream   = "its stream is made anew"
)

// checkConsumer removes what would let a consumer stall. The server compares the position of a consumer with its stream
// only when it recovers the consumer. One that it leaves out, because its settings are not complete, or its stream's are
// not, is created again later on top of its old position, which may be ahead of a stream that a power cut has shortened:
// no message is delivered then until the stream has caught up. usable says that the server recovers the consumer from its
// settings, ofStream that it recovers the stream.
func (k *Keeper) checkConsumer(s *stream, dir string, usable, ofStream bool) {
	state, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return // the server decides
	}
	r := Record{Kind: KindPosition, Action: ActionRebuilt, File: k.relative(filepath.Join(dir, stateFile))}
	remove := func() error { return removeFile(filepath.Join(dir, stateFile)) }
	switch {
	case !usable:
		// The settings stay as they are for as long as the directory does.
		r.Reason, remove = reasonSettings, func() error { return os.RemoveAll(dir) }
	case !readableState(state):
		r.Reason = reasonState
	case !ofStream && err == nil:
		r.Reason = reasonStream
	default:
		return
	}
	k.note(s, r, state)
	if err := remove(); err != nil {
		k.Logger.Error("the position of a consumer cannot be removed", "stream", s.name, "file", r.File, "error", err)
	}
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return local.SyncDir(filepath.Dir(path))
}

// The beginning of a state file.
const (
	stateMagic   = 22
	stateVersion = 2 // version 1 is of servers that no hub has had
)

// readableState reports whether the server accepts a state file. An empty one is that of a new consumer. There is no
// checksum in it, so that a wrong number may go unnoticed.
func readableState(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if len(b) < 2 || b[0] != stateMagic || b[1] != stateVersion {
		return false
	}
	n := numbers{rest: b[2:]}
	floor := [2]uint64{n.next(), n.next()} // of the acknowledged: in the consumer, in the stream
	delivered := [2]uint64{n.next(), n.next()}
	if floor[0] > delivered[0] || floor[1] > delivered[1] || delivered[1] >= 1<<63 {
		return false
	}
	if pending := n.next(); pending > 0 {
		n.next() // the least time
		for range pending {
			if n.next()+floor[1] > delivered[1] || n.failed {
				return false
			}
			n.next() // its number in the consumer
			n.next() // its time
		}
	}
	for range n.next() {
		n.next() // a sequence that was delivered again
		n.next() // how often
		if n.failed {
			return false
		}
	}
	return !n.failed
}

// numbers reads numbers of variable length. Signed ones have the same length as unsigned ones.
type numbers struct {
	rest   []byte
	failed bool
}

func (n *numbers) next() uint64 {
	value, length := binary.Uvarint(n.rest)
	if n.failed = n.failed || length <= 0; n.failed {
		return 0
	}
	n.rest = n.rest[length:]
	return value
}
