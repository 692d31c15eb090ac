package chat

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/statefile"
)

// keepVersion is the version of the format of kept messages: lines of keptFile.
const keepVersion = 1

const (
	// maxKeptFile bounds a file of kept messages that is read, in bytes.
	maxKeptFile = 4 * maxQueuedBytes
	// A file of more messages or bytes than these is written anew, without those that are stored.
	maxKeptLines = 2 * MaxQueued
	maxKeptBytes = 2 * maxQueuedBytes
)

// keptFile is one line of a file of kept messages.
type keptFile struct {
	Version  int           `json:"version"`
	Messages []keptMessage `json:"messages"`
}

type keptMessage struct {
	Channel string    `json:"channel"`
	ID      string    `json:"id"`
	Data    []byte    `json:"data"` // as it is published
	Sent    time.Time `json:"sent"`
	Tried   time.Time `json:"tried,omitzero"`
}

// journal is a file of queued messages, from which a later Space stores them if this process is killed. Messages that are
// stored stay in it until all are: the next process finds their ids. It is safe for concurrent use.
type journal struct {
	path string
	lock *flock.Flock // held while a process stores the messages

	writing sync.Mutex // serializes the I/O
	file    *os.File   // nil if there is none, or it is of an earlier Space
	lines   int
	size    int
	torn    bool // a write failed: the file's end is not known

	mu      sync.Mutex
	pending int // messages of the outbox that are in the file
}

// newJournal returns the journal of a file, which need not exist yet.
func newJournal(path string) *journal {
	return &journal{path: path, lock: flock.New(path+".lock", flock.SetPermissions(0o600))}
}

// kept reports whether a message is in the journal.
func (j *journal) kept(e *entry) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return e.kept
}

// entered counts a message that was written, unless it has left the outbox meanwhile.
func (j *journal) entered(e *entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !e.left && !e.kept {
		e.kept = true
		j.pending++
	}
}

// left counts a message that has left the outbox. It does no I/O: the outbox is locked.
func (j *journal) left(e *entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e.left = true
	if e.kept {
		j.pending--
	}
}

func (j *journal) empty() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.pending == 0
}

// add writes a message durably. live are the messages that are in the journal and in the outbox.
func (j *journal) add(e *entry, live func() []*entry) error {
	j.writing.Lock()
	defer j.writing.Unlock()
	if j.file == nil || j.torn || j.lines >= maxKeptLines || j.size >= maxKeptBytes {
		return j.rewrite(append(live(), e))
	}
	line, err := keptLine(e)
	if err != nil {
		return err
	}
	if _, err = j.file.Write(line); err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		j.torn = true
		return err
	}
	j.lines++
	j.size += len(line)
	j.entered(e)
	return nil
}

// rewrite replaces the file by one of these messages. The lock for writing is held.
func (j *journal) rewrite(entries []*entry) error {
	var data []byte
	for _, e := range entries {
		line, err := keptLine(e)
		if err != nil {
			return err
		}
		data = append(data, line...)
	}
	j.close()
	if err := j.claim(); err != nil {
		return err
	}
	if err := local.ReplaceFile(j.path, data); err != nil {
		return err
	}
	file, err := os.OpenFile(j.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	j.file, j.torn, j.lines, j.size = file, false, len(entries), len(data)
	for _, e := range entries {
		j.entered(e)
	}
	return nil
}

// claim locks the journal, unless it is locked.
func (j *journal) claim() error {
	if j.lock.Locked() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(j.path), 0o700); err != nil {
		return err
	}
	locked, err := j.lock.TryLock()
	if err == nil && !locked {
		err = errors.New("another process has the file")
	}
	return err
}

// close closes the file. The lock for writing is held.
func (j *journal) close() {
	if j.file != nil {
		_ = j.file.Close() // each write is synced
		j.file = nil
	}
}

// settle deletes the file once all of its messages have left the outbox, and reports whether there is none.
func (j *journal) settle() bool {
	j.writing.Lock()
	defer j.writing.Unlock()
	if !j.empty() {
		return false
	}
	if j.lock.Locked() {
		j.close()
		_ = os.Remove(j.path) // its messages are stored: the next process finds their ids
	}
	return true
}

// end releases the file to the next process.
func (j *journal) end() {
	settled := j.settle()
	j.writing.Lock()
	defer j.writing.Unlock()
	if !j.lock.Locked() {
		return
	}
	j.close()
	if settled {
		_ = os.Remove(j.lock.Path()) // nobody looks for the lock of a file that is gone
	}
	_ = j.lock.Unlock() // the end of the process does it at the latest
}

// keptLine encodes a message. An attempt to store it may have begun when the line is read.
func keptLine(e *entry) ([]byte, error) {
	line, err := json.Marshal(keptFile{Version: keepVersion,
		Messages: []keptMessage{{Channel: e.channel.Name, ID: e.id, Data: e.data, Sent: e.sent, Tried: e.sent}}})
	if err != nil {
		return nil, err
	}
	return append(statefile.SignLine(line), '\n'), nil
}

const lineBegin = `{"version":`

// keepPrefix begins the names of the files of this namespace and server.
func (s *Space) keepPrefix() string {
	sum := sha256.Sum256([]byte(s.cfg.Namespace + "\x00" + s.cfg.Server))
	return filepath.Join(s.cfg.KeepDir, "unsent-"+hex.EncodeToString(sum[:])[:16])
}

// takeKept queues the messages of earlier Spaces, but for those whose process runs. A file that cannot be read stays, and one with damaged
// lines is kept aside.
func (s *Space) takeKept() {
	if s.cfg.KeepDir == "" {
		return
	}
	var entries []*entry
	for _, file := range s.keptFiles() {
		j := newJournal(file)
		if locked, err := j.lock.TryLock(); err != nil || !locked {
			s.log.Debug("kept messages are those of another process", "file", file, "error", err)
			continue
		}
		messages, damage, err := readKept(file)
		if damage != nil {
			err = s.setAside(file, damage)
		}
		if err != nil {
			_ = j.lock.Unlock()
			if !errors.Is(err, os.ErrNotExist) { // stored meanwhile
				s.log.Error("kept messages cannot be read", "file", file, "error", err)
			}
			continue
		}
		s.earlier = append(s.earlier, j)
		for _, m := range messages {
			if e := s.keptEntry(j, m); e != nil {
				entries = append(entries, e)
			}
		}
	}
	slices.SortStableFunc(entries, func(a, b *entry) int { return a.sent.Compare(b.sent) })
	for _, e := range entries {
		e.journal.entered(e)
		s.outbox.push(e)
	}
	if len(entries) > 0 {
		s.log.Info("messages of an earlier process are stored now", "messages", len(entries))
	}
	s.settleKept()
}

// setAside keeps a file with damaged lines, of which only the others are stored.
func (s *Space) setAside(file string, damage error) error {
	kept, err := statefile.KeepDamaged(file)
	if err == nil {
		s.log.Error("kept messages are damaged; the others are stored", "file", file, "kept", kept, "error", damage)
	}
	return err
}

// keptFiles returns the paths of the files of this namespace and server.
func (s *Space) keptFiles() (files []string) {
	entries, err := os.ReadDir(s.cfg.KeepDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Error("the directory of kept messages cannot be read", "error", err)
	}
	prefix := s.keepPrefix()
	for _, e := range entries {
		if path := filepath.Join(s.cfg.KeepDir, e.Name()); strings.HasPrefix(path, prefix+"-") && filepath.Ext(path) == ".json" {
			files = append(files, path)
		}
	}
	return files
}

// keptEntry returns the entry of a kept message, nil if the channel is gone or would have removed the message by now.
func (s *Space) keptEntry(j *journal, m keptMessage) *entry {
	c, err := s.channel(m.Channel)
	if err == nil && s.cfg.Now().Sub(m.Sent) > c.MaxAge {
		err = errors.New("it is older than the channel keeps messages")
	}
	if err != nil {
		s.log.Warn("a kept message is dropped", "channel", m.Channel, "error", err)
		return nil
	}
	return &entry{channel: c, id: m.ID, data: m.Data, sent: m.Sent, tried: m.Tried, stored: make(chan struct{}), journal: j, former: true}
}

func readKept(file string) (messages []keptMessage, damage, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeptFile+1))
	if err != nil {
		return nil, nil, err
	}
	if len(data) > maxKeptFile {
		return nil, nil, fmt.Errorf("it is larger than %d bytes", maxKeptFile)
	}
	return decodeKept(data)
}

// errVersion is the error of a line in another format, which is no damage.
var errVersion = errors.New("its version is not known")

// decodeKept decodes and checks a file's content. The damage is that of the lines that are left out; a last line that was not written to its
// end is none: its sender was told nothing.
func decodeKept(data []byte) (messages []keptMessage, damage, err error) {
	for line := 1; len(data) > 0; line++ {
		text, rest, ended := bytes.Cut(data, []byte("\n"))
		of, bad := decodeKeptLine(text)
		if next := bytes.Index(text[min(1, len(text)):], []byte(lineBegin)); bad != nil && next >= 0 { // its newline is damaged
			text, rest, ended = text[:next], data[next+1:], true
			of, bad = decodeKeptLine(text)
		}
		if bad != nil && !ended {
			of, bad = decodeKeptLine(text[:len(text)-1]) // its newline is damaged
		}
		switch {
		case bad == nil:
			messages = append(messages, of...)
		case !ended:
			return messages, damage, nil
		case errors.Is(bad, errVersion):
			return nil, nil, fmt.Errorf("line %d: %w", line, bad)
		case damage == nil:
			damage = fmt.Errorf("line %d: %w", line, bad)
		}
		if data = rest; len(messages) > maxKeptLines {
			return nil, nil, fmt.Errorf("it has more than %d messages", maxKeptLines)
		}
	}
	return messages, damage, nil
}

func decodeKeptLine(line []byte) ([]keptMessage, error) {
	if _, err := statefile.CheckLine(line); err != nil {
		return nil, err
	}
	var k keptFile
	if err := json.Unmarshal(line, &k); err != nil {
		return nil, err
	}
	if k.Version != keepVersion {
		return nil, fmt.Errorf("%w: %d", errVersion, k.Version)
	}
	for i, m := range k.Messages {
		if _, err := decode(m.Data); err != nil {
			return nil, fmt.Errorf("message %d: %w", i+1, err)
		}
		if m.ID == "" || len(m.ID) > 128 || strings.ContainsAny(m.ID, "\r\n") {
			return nil, fmt.Errorf("message %d has no valid id", i+1)
		}
	}
	return k.Messages, nil
}

// keep writes a queued message durably, unless it is.
func (s *Space) keep(e *entry) error {
	if s.own == nil {
		return errors.New("no directory is configured to keep it")
	}
	if e.journal.kept(e) {
		return nil
	}
	return s.own.add(e, func() (live []*entry) {
		for _, e := range s.outbox.all() {
			if e.journal == s.own && s.own.kept(e) {
				live = append(live, e)
			}
		}
		return live
	})
}

// keepRest leaves the queued messages to the next Space, and returns how many are lost.
func (s *Space) keepRest() (lost int) {
	rest := s.outbox.all()
	var failure error
	for _, e := range rest {
		if err := s.keep(e); err != nil {
			lost, failure = lost+1, err
		}
	}
	if lost > 0 {
		s.log.Error("queued messages were lost at the end", "lost", lost, "error", failure)
	}
	if kept := len(rest) - lost; kept > 0 {
		s.log.Warn("queued messages are kept for the project's next process", "messages", kept, "directory", s.cfg.KeepDir)
	}
	if s.own != nil {
		s.own.end()
	}
	for _, j := range s.earlier {
		j.end()
	}
	return lost
}

// settleKept deletes the files whose messages are stored.
func (s *Space) settleKept() {
	if s.own != nil {
		s.own.settle()
	}
	for _, j := range s.earlier {
		j.settle()
	}
}
