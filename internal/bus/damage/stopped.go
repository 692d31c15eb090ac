package damage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/statefile"
)

// stoppedFile is written after a clean stop and removed before the store is opened again.
const stoppedFile = "stopped.json"

// stopped has the streams of the accounts whose indexes say all that the store had when the server was stopped. After a crash an index may
// have records that were never synced.
type stopped map[string]map[string]bool

// Stopped notes that the server has closed the store, and that all of it is on the disk. What the next Check does not find of it is
// missing. If that cannot be noted, as on a full disk, nothing counts as missing.
func (k *Keeper) Stopped() {
	now, err := k.there()
	var raw []byte
	if err == nil {
		raw, err = json.Marshal(now)
	}
	if err == nil {
		err = k.stoppedNote().Write(raw)
	}
	if err != nil {
		k.Logger.Warn("what the store has cannot be noted, so that the next start does not notice what is missing", "error", err)
	}
}

// there lists the streams of the accounts whose indexes are complete.
func (k *Keeper) there() (stopped, error) {
	accounts, err := accountsIn(k.Dir)
	if err != nil {
		return nil, err
	}
	now := stopped{}
	for _, name := range accounts {
		if !k.complete(name) {
			continue
		}
		streams, err := streamsOf(k.Dir, name)
		if err != nil {
			return nil, err
		}
		now[name] = namesOf(streams)
	}
	return now, nil
}

func namesOf(streams []stream) map[string]bool {
	names := make(map[string]bool, len(streams))
	for _, s := range streams {
		names[s.name] = true
	}
	return names
}

// complete reports whether an account was opened since the last Check, or is as a clean stop has left it.
func (k *Keeper) complete(account string) bool {
	k.mu.Lock()
	p, before := k.later[account], k.stopped[account] != nil
	k.mu.Unlock()
	if p == nil || before {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened
}

// readStopped reads what the last stop has noted; nil if that does not hold, and nothing counts as missing.
func (k *Keeper) readStopped() (last stopped) {
	raw, _, err := k.stoppedNote().Peek()
	if err == nil && raw != nil {
		err = json.Unmarshal(raw, &last)
	}
	if err != nil {
		k.Logger.Warn("whether the store is as it was when the hub stopped cannot be told", "error", err)
		return nil
	}
	return last
}

// takeStopped reads what the last stop has noted, and removes it for good: it does not hold after a crash.
func (k *Keeper) takeStopped() {
	note := k.stoppedNote()
	_, _ = note.Read() // names its damage; the error is that of the next call
	last := k.readStopped()
	err := os.Remove(note.Path)
	if err == nil {
		err = local.SyncDir(filepath.Join(k.Dir, damageDir))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.Logger.Warn("what the last stop has noted about the store cannot be removed", "error", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = last
}

func (k *Keeper) stoppedNote() statefile.Raw {
	return statefile.Raw{Path: filepath.Join(k.Dir, damageDir, stoppedFile), Edited: true, Damaged: func(d statefile.Damage) {
		k.NoteFile(d.ID, d.Path, d.Kept, d.Reason, d.Loss, d.Restored)
	}}
}

// left returns the streams that an account had when the server was stopped, by account.
func (k *Keeper) left() stopped {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stopped
}

// noteGone notes the streams that an account had when the server was stopped, and that are not there.
func (k *Keeper) noteGone(account string, there []stream) {
	for _, s := range k.left().gone(k.Dir, account, there) {
		k.note(&s, k.goneRecord(s), nil)
	}
}

// mark says of streams that they were complete.
func (l stopped) mark(all []stream) {
	for i := range all {
		all[i].complete = l[all[i].account][all[i].name]
	}
}

// gone returns the streams of an account that are not among those there, by name.
func (l stopped) gone(dir, account string, there []stream) (gone []stream) {
	now := namesOf(there)
	for _, name := range slices.Sorted(maps.Keys(l[account])) {
		if !now[name] {
			gone = append(gone, stream{account: account, name: name, dir: filepath.Join(dir, storeDir, account, streamsDir, name)})
		}
	}
	return gone
}

func (k *Keeper) goneRecord(s stream) Record {
	return Record{Kind: KindStream, Action: ActionMissing, Reason: "it was there when the hub stopped", File: k.relative(s.dir)}
}

// noteShorter notes that a stream does not have what it had when the server was stopped.
func (k *Keeper) noteShorter(s *stream) {
	if r, ok := k.shorter(s); ok {
		k.note(s, r, nil)
	}
}

// shorter returns the record of what a stream, all of whose blocks have been read, has lost at its end.
func (k *Keeper) shorter(s *stream) (Record, bool) {
	last, known := k.lastOf(s.blocks)
	if !s.complete || !s.outdated || !known || last >= s.indexed {
		return Record{}, false
	}
	return Record{
		Kind: KindMessage, Action: ActionMissing, Sequence: last + 1, Last: s.indexed, File: k.relative(filepath.Join(s.dir, messagesDir)),
		Reason: fmt.Sprintf("the stream had records up to %d when the hub stopped, and ends at %d", s.indexed, last),
	}, true
}
