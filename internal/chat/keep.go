package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/parleyhub/parley/internal/base/local"
)

// keepVersion is the version of the format of kept messages.
const keepVersion = 1

// maxKeptFile bounds a file of kept messages, in bytes: those of a full outbox in base64, and their envelopes.
const maxKeptFile = 2 * maxQueuedBytes

// keptFile is a file of messages that one Space could not store.
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

// kept is the messages of earlier Spaces that this one stores. Its lock keeps others from storing them too. It is safe for
// concurrent use; nil is none.
type kept struct {
	lock  *flock.Flock
	files []string

	mu      sync.Mutex
	pending int // messages in the outbox
	done    bool
}

// keepPrefix begins the names of the files of this namespace and server.
func (s *Space) keepPrefix() string {
	sum := sha256.Sum256([]byte(s.cfg.Namespace + "\x00" + s.cfg.Server))
	return filepath.Join(s.cfg.KeepDir, "unsent-"+hex.EncodeToString(sum[:])[:16])
}

// takeKept queues the messages that earlier Spaces have kept, unless another Space is storing them. A file that cannot be
// read stays.
func (s *Space) takeKept() *kept {
	if s.cfg.KeepDir == "" {
		return nil
	}
	files := s.keptFiles()
	if len(files) == 0 {
		return nil
	}
	k := &kept{lock: flock.New(s.keepPrefix()+".lock", flock.SetPermissions(0o600))}
	if locked, err := k.lock.TryLock(); err != nil || !locked {
		s.log.Debug("kept messages are stored by another process", "error", err)
		return nil
	}
	for _, file := range files {
		messages, err := readKept(file)
		if errors.Is(err, os.ErrNotExist) { // stored meanwhile
			continue
		}
		if err != nil {
			s.log.Error("kept messages cannot be read", "file", file, "error", err)
			continue
		}
		k.files = append(k.files, file)
		for _, m := range messages {
			s.queueKept(k, m)
		}
	}
	s.log.Info("messages of an earlier process are stored now", "messages", k.pending)
	k.settled()
	return k
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

// queueKept queues a kept message, unless the channel is gone or would have removed the message by now.
func (s *Space) queueKept(k *kept, m keptMessage) {
	c, err := s.channel(m.Channel)
	if err == nil && s.cfg.Now().Sub(m.Sent) > c.MaxAge {
		err = errors.New("it is older than the channel keeps messages")
	}
	if err != nil {
		s.log.Warn("a kept message is dropped", "channel", m.Channel, "error", err)
		return
	}
	k.pending++
	s.outbox.push(&entry{channel: c, id: m.ID, data: m.Data, sent: m.Sent, tried: m.Tried, stored: make(chan struct{}), done: k.left})
}

func readKept(file string) ([]keptMessage, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeptFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxKeptFile {
		return nil, fmt.Errorf("it is larger than %d bytes", maxKeptFile)
	}
	return decodeKept(data)
}

// decodeKept decodes and checks a file's content.
func decodeKept(data []byte) ([]keptMessage, error) {
	var k keptFile
	if err := json.Unmarshal(data, &k); err != nil {
		return nil, err
	}
	if k.Version != keepVersion {
		return nil, fmt.Errorf("its version is %d, not %d", k.Version, keepVersion)
	}
	if len(k.Messages) > MaxQueued {
		return nil, fmt.Errorf("it has %d messages", len(k.Messages))
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

// left counts a message that has left the outbox. It does no I/O: the outbox is locked.
func (k *kept) left() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pending--
}

// settled deletes the files once all of their messages have left the outbox.
func (k *kept) settled() {
	if k == nil {
		return
	}
	k.mu.Lock()
	finished := k.pending == 0 && !k.done
	k.done = k.done || finished
	k.mu.Unlock()
	if finished {
		k.discard()
	}
}

// discard deletes the files and releases the lock.
func (k *kept) discard() {
	for _, file := range k.files {
		_ = os.Remove(file) // its messages are stored: the next process finds their ids
	}
	_ = k.lock.Unlock() // the end of the process does it at the latest
}

// keep writes messages for the next Space, and returns how many are lost.
func (s *Space) keep(entries []*entry) (lost int) {
	if len(entries) > 0 {
		if err := s.writeKept(entries); err != nil {
			s.log.Error("queued messages were lost at the end", "lost", len(entries), "error", err)
			return len(entries)
		}
	}
	if k := s.kept; k != nil {
		k.mu.Lock()
		rest := !k.done
		k.done = true
		k.mu.Unlock()
		if rest {
			k.discard()
		}
	}
	return 0
}

// writeKept writes messages to a file of their own.
func (s *Space) writeKept(entries []*entry) error {
	if s.cfg.KeepDir == "" {
		return errors.New("no directory is configured to keep them")
	}
	k := keptFile{Version: keepVersion}
	for _, e := range entries {
		k.Messages = append(k.Messages, keptMessage{Channel: e.channel.Name, ID: e.id, Data: e.data, Sent: e.sent, Tried: e.tried})
	}
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.cfg.KeepDir, 0o700); err != nil {
		return err
	}
	file := s.keepPrefix() + "-" + s.instance + ".json"
	if err := local.ReplaceFile(file, data); err != nil {
		return err
	}
	s.log.Warn("queued messages are kept for the project's next process", "messages", len(entries), "file", file)
	return nil
}
