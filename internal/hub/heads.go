package hub

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/local"
)

// storedHead is the head of a task as the stream has it: the id and two headers.
type storedHead struct{ id, head, spent string }

// decodedHead is a head with the revision of the body's pieces.
type decodedHead struct {
	head
	rev   int64
	known bool
}

// decode decodes a head. known is false if it cannot be used; bad receives what is left out.
func (s storedHead) decode(bad func(error)) (d decodedHead) {
	h, rev, _, err := decodeHead(s.head)
	if err != nil {
		bad(fmt.Errorf("task %s: %w", s.id, err))
		return decodedHead{}
	}
	if h.Spent, err = decodeSpent(s.spent); err != nil {
		bad(fmt.Errorf("task %s: %w", s.id, err)) // totals lack it
	}
	h.ID = a2a.TaskID(s.id)
	return decodedHead{h, rev, true}
}

// headsFile is a file with the heads of all tasks as of one message of the stream, in the order of their last write. A start reads it and
// the heads that were written since, instead of a message for each task. The file is never the truth: it is used only if it and
// the newer heads are as many tasks as the stream has. Then they are the same ones, since a task that has not changed since
// is in it, and one too many would be one that was removed.
type headsFile struct {
	created int64  // when the stream was made, in Unix nanoseconds
	last    uint64 // the newest message of the stream when the heads were read
	heads   []storedHead
	ahead   *aheadOfStart // what was done with the heads while they were read; nil if nothing
	newer   []storedHead  // the last heads, which are not in ahead
}

// aheadOfStart is what a start needs of heads.
type aheadOfStart struct {
	index  *index        // of all but the flawed
	noted  []decodedHead // those with more than the index has: live ones, and those whose body is in pieces
	flawed []storedHead  // those that cannot be decoded without an error
}

// Heads is the file with the heads of all tasks, while it is read.
type Heads struct{ file chan *headsFile }

// ReadHeads begins to read the file of a data directory, so that the hub does not wait for it. No other hub may use the
// directory meanwhile, and one hub may use the result.
func ReadHeads(dataDir string) *Heads {
	h := &Heads{make(chan *headsFile, 1)}
	go func() {
		f, _ := readHeads(filepath.Join(dataDir, headsName)) // without the file the hub reads the stream
		if f != nil {
			f.decode()
		}
		h.file <- f
	}()
	return h
}

// decode decodes all heads, and indexes them.
func (f *headsFile) decode() {
	a := &aheadOfStart{index: newIndex()}
	a.index.expect(len(f.heads))
	for _, h := range f.heads {
		flawed := false
		d := h.decode(func(error) { flawed = true })
		if flawed {
			a.flawed = append(a.flawed, h)
			continue
		}
		a.index.add(d.head)
		if d.Live || d.rev != 0 {
			a.noted = append(a.noted, d)
		}
	}
	f.ahead = a
}

// replace removes the heads of tasks that have newer ones, and adds those.
func (f *headsFile) replace(newer []storedHead) {
	if len(newer) == 0 {
		return
	}
	since := make(map[string]struct{}, len(newer))
	for _, h := range newer {
		since[h.id] = struct{}{}
	}
	isNewer := func(h storedHead) bool { _, ok := since[h.id]; return ok }
	f.heads = append(slices.DeleteFunc(f.heads, isNewer), newer...)
	if f.ahead == nil {
		return
	}
	for id := range since {
		f.ahead.index.remove(a2a.TaskID(id))
	}
	f.ahead.flawed = slices.DeleteFunc(f.ahead.flawed, isNewer)
	f.ahead.noted = slices.DeleteFunc(f.ahead.noted, func(d decodedHead) bool { return isNewer(storedHead{id: string(d.ID)}) })
}

const (
	headsName   = "heads"
	headsFormat = "parley-heads 1"
	// The file is written again after so many changes, and a share of the tasks, but not more often than headsPause.
	headsChanges = 1000
	headsShare   = 8
	headsPause   = 10 * time.Minute
)

var errHeads = errors.New("the file of heads cannot be used")

func newHeadsSum() hash.Hash32 { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) }

// readHeads reads a file that [headsFile.write] has written.
func readHeads(path string) (*headsFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sum := newHeadsSum()
	end := len(data) - 2*sum.Size()
	if end <= 0 {
		return nil, errHeads
	}
	_, _ = sum.Write(data[:end])
	if hex.EncodeToString(sum.Sum(nil)) != string(data[end:]) {
		return nil, errHeads
	}
	first, rest, _ := strings.Cut(unsafe.String(&data[0], end), "\n") // nothing changes the data any more
	f, n := &headsFile{}, 0
	if _, err := fmt.Sscanf(first, headsFormat+" %d %d %d", &f.created, &f.last, &n); err != nil || n < 0 || n > len(rest) {
		return nil, errHeads
	}
	f.heads = make([]storedHead, 0, n)
	for line := range strings.Lines(rest) {
		id, line, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		head, spent, ok := strings.Cut(line, "\t")
		if !ok {
			return nil, errHeads
		}
		f.heads = append(f.heads, storedHead{id, head, spent})
	}
	if len(f.heads) != n {
		return nil, errHeads
	}
	return f, nil
}

// write replaces the file.
func (f *headsFile) write(path string) error {
	var b bytes.Buffer
	sum := newHeadsSum()
	w := bufio.NewWriter(io.MultiWriter(&b, sum))
	fmt.Fprintf(w, headsFormat+" %d %d %d\n", f.created, f.last, len(f.heads))
	for _, h := range f.heads {
		for _, part := range []string{h.id, "\t", h.head, "\t", h.spent, "\n"} {
			_, _ = w.WriteString(part) // a buffer takes it
		}
	}
	_ = w.Flush()
	b.WriteString(hex.EncodeToString(sum.Sum(nil)))
	return local.ReplaceFile(path, b.Bytes())
}

// visit calls indexed with the index of what was read ahead, if there is one, and visit with all heads that are not in it or of which it lacks something.
func (f *headsFile) visit(indexed func(*index), visit func(decodedHead), bad func(error)) {
	heads := f.heads
	if f.ahead != nil {
		indexed(f.ahead.index)
		for _, d := range f.ahead.noted {
			visit(d)
		}
		heads = append(f.ahead.flawed, f.newer...)
	}
	for _, h := range heads {
		if d := h.decode(bad); d.known {
			visit(d)
		}
	}
	f.ahead, f.newer = nil, nil // f may be saved later
}

// loadHeads returns the heads of all tasks in the order of their last write. The error is a *missingError if there are fewer than the
// server says.
func (s *jetStream) loadHeads(ctx context.Context) (*headsFile, error) {
	f, err := s.emptyHeads(ctx)
	if err != nil {
		return f, err
	}
	known, changed, err := s.knownHeads(ctx, f)
	if err != nil {
		return f, err
	}
	if known {
		s.inFile.Store(f.last) // at least what is in it
		if s.changed.Store(int64(changed)); s.due(len(f.heads)) {
			s.unsaved.Store(f)
		}
		return f, nil
	}
	f.heads, f.ahead = nil, nil
	if s.headsDir != "" { // it must not be believed when the stream has grown
		if err := os.Remove(s.headsPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return f, fmt.Errorf("remove the file of heads: %w", err)
		}
		s.removeUnfinished()
	}
	f.heads, err = s.readHeads(ctx, 0)
	if s.changed.Store(int64(len(f.heads))); err == nil && s.due(len(f.heads)) {
		s.unsaved.Store(f)
	}
	return f, err
}

// knownHeads sets the heads of f from the file and what was written since, and reports whether it could, and how many were.
func (s *jetStream) knownHeads(ctx context.Context, f *headsFile) (known bool, changed int, err error) {
	file := s.storedHeads()
	if file == nil || file.created != f.created || file.last > f.last {
		return false, 0, nil
	}
	newer, err := s.readHeads(ctx, file.last+1)
	if missing, ok := errors.AsType[*missingError](err); ok {
		s.log.Debug("the file of heads is not used", "error", missing)
		return false, 0, nil
	}
	if err != nil {
		return false, 0, err
	}
	count, err := s.count(ctx, s.prefix+"task.*")
	if err != nil {
		return false, 0, err
	}
	file.replace(newer)
	f.heads, f.ahead, f.newer = file.heads, file.ahead, newer
	return uint64(len(f.heads)) == count, len(newer), nil
}

// storedHeads returns the file, nil if there is none that can be used.
func (s *jetStream) storedHeads() *headsFile {
	if s.headsDir == "" {
		return nil
	}
	ahead := s.ahead
	if s.ahead = nil; ahead != nil {
		return <-ahead.file
	}
	f, err := readHeads(s.headsPath())
	if err != nil {
		return nil
	}
	return f
}

// readHeads reads heads from the stream, from a message on.
func (s *jetStream) readHeads(ctx context.Context, from uint64) (heads []storedHead, err error) {
	prefix := s.prefix + "task."
	err = s.read(ctx, s.state, prefix+"*", from, true, func(m jetstream.Msg) {
		headers := m.Headers()
		heads = append(heads, storedHead{strings.TrimPrefix(m.Subject(), prefix), headers.Get(taskHeader), headers.Get(spentHeader)})
	})
	return heads, err
}

// currentHeads reads what the file is to have. Tasks may change meanwhile: a change is newer than the file's last message.
func (s *jetStream) currentHeads(ctx context.Context) (*headsFile, error) {
	f, err := s.emptyHeads(ctx)
	if err == nil {
		f.heads, err = s.readHeads(ctx, 0)
	}
	return f, err
}

// emptyHeads returns a file without heads for the stream as it is now.
func (s *jetStream) emptyHeads(ctx context.Context) (*headsFile, error) {
	info, err := s.state.Info(ctx)
	if err != nil {
		return nil, err
	}
	return &headsFile{created: info.Created.UnixNano(), last: info.State.LastSeq}, nil
}

// saveHeads writes the file if enough has changed since it was written.
func (s *jetStream) saveHeads(ctx context.Context) error {
	if s.headsDir == "" {
		return nil
	}
	f := s.unsaved.Swap(nil)
	if f == nil {
		if time.Since(s.saved) < headsPause || !s.due(s.headCount) {
			return nil
		}
		var err error
		if f, err = s.currentHeads(ctx); err != nil {
			return err
		}
	}
	s.removeUnfinished()
	s.changed.Store(0)
	s.saved, s.headCount = time.Now(), len(f.heads)
	s.inFile.Store(f.last)
	return f.write(s.headsPath())
}

// checkHeads receives the sequence of a message that was written after the one in inFile. If it is not above that, the stream has lost its
// end, as that of another server may in a power cut, and when it has grown again it could fit the file: the file is removed.
func (s *jetStream) checkHeads(inFile, sequence uint64) {
	if sequence > inFile || s.headsDir == "" {
		return
	}
	s.unsaved.Store(nil)
	if err := os.Remove(s.headsPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Error("the file of heads is of a state of the store that is lost, and cannot be removed", "file", s.headsPath(), "error", err)
		return // the next write tries again
	}
	s.inFile.Store(0)
}

// removeUnfinished removes what kills within a write of the file have left.
func (s *jetStream) removeUnfinished() {
	left, _ := filepath.Glob(s.headsPath() + ".*") // the pattern is right
	for _, path := range left {
		_ = os.Remove(path) // else by a later start
	}
}

// due reports whether so much of n tasks has changed that the file is to be written.
func (s *jetStream) due(n int) bool { return s.changed.Load() > int64(max(headsChanges, n/headsShare)) }

func (s *jetStream) headsPath() string { return filepath.Join(s.headsDir, headsName) }
