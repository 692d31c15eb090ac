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
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/local"
)

// storedHead is the head of a task as the stream has it: the id and two headers.
type storedHead struct{ id, head, spent string }

// decode returns the head and the revision of the body's pieces. bad receives what is left out.
func (s storedHead) decode(bad func(error)) (h head, rev int64, ok bool) {
	h, rev, _, err := decodeHead(s.head)
	if err != nil {
		bad(fmt.Errorf("task %s: %w", s.id, err))
		return head{}, 0, false
	}
	if h.Spent, err = decodeSpent(s.spent); err != nil {
		bad(fmt.Errorf("task %s: %w", s.id, err)) // totals lack it
	}
	h.ID = a2a.TaskID(s.id)
	return h, rev, true
}

// headsFile is a file with the heads of all tasks as of one message of the stream, in the order of their last write. A start reads it and
// the heads that were written since, instead of a message for each task. The file is never the truth: it is used only if it and
// the newer heads are as many tasks as the stream has. Then they are the same ones, since a task that has not changed since
// is in it, and one too many would be one that was removed.
type headsFile struct {
	created int64  // when the stream was made, in Unix nanoseconds
	last    uint64 // the newest message of the stream when the heads were read
	heads   []storedHead
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
	if end < 0 {
		return nil, errHeads
	}
	_, _ = sum.Write(data[:end])
	if hex.EncodeToString(sum.Sum(nil)) != string(data[end:]) {
		return nil, errHeads
	}
	first, rest, _ := strings.Cut(string(data[:end]), "\n")
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

// loadHeads returns the heads of all tasks in the order of their last write. The error is a *missingError if there are fewer than the
// server says.
func (s *jetStream) loadHeads(ctx context.Context) ([]storedHead, error) {
	f, err := s.emptyHeads(ctx)
	if err != nil {
		return nil, err
	}
	known, changed, err := s.knownHeads(ctx, f)
	if err != nil {
		return nil, err
	}
	if known {
		s.inFile.Store(f.last) // at least what is in it
		if s.changed.Store(int64(changed)); s.due(len(f.heads)) {
			s.unsaved.Store(f)
		}
		return f.heads, nil
	}
	if s.headsDir != "" { // it must not be believed when the stream has grown
		if err := os.Remove(s.headsPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove the file of heads: %w", err)
		}
		s.removeUnfinished()
	}
	f.heads, err = s.readHeads(ctx, 0)
	if s.changed.Store(int64(len(f.heads))); err == nil && s.due(len(f.heads)) {
		s.unsaved.Store(f)
	}
	return f.heads, err
}

// knownHeads sets the heads of f from the file and what was written since, and reports whether it could, and how many were.
func (s *jetStream) knownHeads(ctx context.Context, f *headsFile) (known bool, changed int, err error) {
	if s.headsDir == "" {
		return false, 0, nil
	}
	file, err := readHeads(s.headsPath())
	if err != nil || file.created != f.created || file.last > f.last {
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
	since := make(map[string]struct{}, len(newer))
	for _, h := range newer {
		since[h.id] = struct{}{}
	}
	f.heads = file.heads[:0]
	for _, h := range file.heads {
		if _, ok := since[h.id]; !ok {
			f.heads = append(f.heads, h)
		}
	}
	f.heads = append(f.heads, newer...)
	return uint64(len(f.heads)) == count, len(newer), nil
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
