package damage

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/statefile"
)

// Kind is what is damaged.
type Kind string

// The kinds of what is damaged.
const (
	KindMessage  Kind = "message"  // a record of a stream
	KindDeletion Kind = "deletion" // the mark that a record was deleted: the record is there again
	KindIndex    Kind = "index"    // what the server can derive from the records
	KindSettings Kind = "settings" // of a stream or a consumer
	KindPosition Kind = "position" // of a consumer, which begins anew
	KindWrite    Kind = "write"    // the end of a write that a crash has cut off; nobody was told that it was stored
	KindBlock    Kind = "block"    // a file that cannot be read at all
	KindStream   Kind = "stream"   // all of it
	KindFile     Kind = "file"     // another file of the hub
)

// Action is what was done about a damage.
type Action string

// The actions.
const (
	ActionCorrected   Action = "corrected"   // the one flipped bit was flipped back
	ActionQuarantined Action = "quarantined" // its bytes were copied aside, and it is skipped
	ActionRebuilt     Action = "rebuilt"     // the server makes it anew, or it was made anew from other records
	ActionRestored    Action = "restored"    // from a copy
	ActionMissing     Action = "missing"     // nothing can be: it was there when the server stopped, and is not
	ActionFound       Action = "found"       // nothing yet: the next start does it
)

// Record describes one damage.
type Record struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"` // when it was found
	Kind    Kind      `json:"kind"`
	Action  Action    `json:"action"`
	Account string    `json:"account"`
	Stream  string    `json:"stream"`
	// Holds says what the stream holds.
	Holds string `json:"holds,omitempty"`
	// Sequence of the message in the stream; 0 if unknown. Last is that of the last one, if it is about several.
	Sequence uint64 `json:"sequence,omitempty"`
	Last     uint64 `json:"last,omitempty"`
	// Subject of the message, as far as it can be read.
	Subject string `json:"subject,omitempty"`
	Reason  string `json:"reason"`
	File    string `json:"file"` // relative to the bus's directory, unless it is not in the data directory
	Offset  int    `json:"offset"`
	Length  int    `json:"length"`
	// Bit of the record that was flipped back.
	Bit *int `json:"bit,omitempty"`
	// Kept is the file with the damaged bytes, relative to the bus's directory.
	Kept string `json:"kept,omitempty"`
	// Obsolete is set if the record had been deleted or replaced before: nothing is missing.
	Obsolete bool `json:"obsolete,omitempty"`
	// Settled is set once somebody has taken note of the damage, by a repair.
	Settled bool `json:"settled,omitempty"`
}

// Lost reports whether something is missing because of the damage.
func (r Record) Lost() bool {
	return !r.Obsolete && (r.Action == ActionQuarantined && r.Kind != KindWrite || r.Action == ActionMissing || r.Action == ActionFound)
}

const (
	damageDir    = "damage"
	ledgerFile   = "ledger.jsonl"
	keptDir      = "kept"
	copiesDir    = "settings"
	verifiedFile = "verified.json"

	maxRecords = 10_000 // in memory
)

// ledger is the list of all damage that was ever found. It is safe for concurrent use.
type ledger struct {
	dir string

	mu       sync.Mutex
	records  []Record
	known    map[string]int  // index in records, -1 if omitted
	omitted  int             // records that are not in memory
	unkept   map[string]bool // those that could not be written
	unsynced bool
	unsigned bool // it has lines without a checksum, or an end that a crash has cut off
}

func openLedger(dir string) (*ledger, error) {
	l := &ledger{dir: dir, known: map[string]int{}, unkept: map[string]bool{}}
	raw, err := os.ReadFile(l.path())
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	l.unsigned = len(raw) > 0 && raw[len(raw)-1] != '\n'
	for _, line := range ledgerLines(raw) {
		l.read(line)
	}
	return l, err
}

// ledgerLines returns the lines of a ledger without their newlines. A last line that a crash has cut off is none; one whose newline is
// damaged is complete.
func ledgerLines(raw []byte) [][]byte {
	lines := bytes.Split(raw, []byte("\n"))
	n := len(lines) - 1
	if last := lines[n]; len(last) > 0 && json.Valid(last[:len(last)-1]) {
		lines[n] = last[:len(last)-1]
	}
	if !json.Valid(lines[n]) {
		lines = lines[:n]
	}
	return slices.DeleteFunc(lines, func(line []byte) bool { return len(line) == 0 })
}

func (l *ledger) read(line []byte) {
	signed, err := statefile.CheckLine(line)
	if !signed {
		l.unsigned = true
	}
	var r Record
	var x settlement
	switch {
	case err == nil && json.Unmarshal(line, &r) == nil && r.ID != "":
		l.remember(r)
	case err == nil && json.Unmarshal(line, &x) == nil && x.Settled != nil:
		l.settleAll()
	default:
		l.remember(l.damagedLine(line))
	}
}

// damagedLine returns the damage of a line of the ledger. The line stays where it is, so that each start finds it again, and it is settled by a
// later line. It is about as old as what was found before it.
func (l *ledger) damagedLine(line []byte) Record {
	sum := sha256.Sum256(line)
	r := Record{ID: hex.EncodeToString(sum[:8]), Kind: KindFile, Action: ActionQuarantined, Holds: "a damage that was found before",
		Reason: "the checksum of a line does not match", File: damageDir + "/" + ledgerFile}
	if n := len(l.records); n > 0 {
		r.At = l.records[n-1].At
	}
	return r
}

// sign gives the lines of former programs their checksums, and removes the end of a line that a crash has cut off.
func (l *ledger) sign() error {
	if !l.unsigned {
		return nil
	}
	raw, err := os.ReadFile(l.path())
	if err != nil {
		return err
	}
	var all []byte
	for _, line := range ledgerLines(raw) {
		if signed, _ := statefile.CheckLine(line); !signed && json.Valid(line) {
			line = statefile.SignLine(line)
		}
		all = append(append(all, line...), '\n')
	}
	l.unsigned = false
	return local.ReplaceFile(l.path(), all)
}

func (l *ledger) path() string { return filepath.Join(l.dir, ledgerFile) }

// remember reports false if the record is known with its action. A record with another action replaces the former.
func (l *ledger) remember(r Record) bool {
	if i, known := l.known[r.ID]; known {
		if i < 0 || l.records[i].Action == r.Action {
			return false
		}
		r.Settled = r.Kind == KindFile && l.records[i].Settled // it is the same damage, of which more is known
		l.records[i] = r
		return true
	}
	if len(l.records) >= maxRecords {
		l.known[r.ID] = -1
		l.omitted++
		return true
	}
	l.known[r.ID] = len(l.records)
	l.records = append(l.records, r)
	return true
}

// settlement is the line of the ledger by which all records before it are settled.
type settlement struct {
	Settled *time.Time `json:"settledUntil"`
}

// settle marks all records as settled, in memory and on disk.
func (l *ledger) settle(at time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settleAll()
	return l.append(settlement{Settled: &at})
}

func (l *ledger) settleAll() {
	for i := range l.records {
		l.records[i].Settled = true
	}
}

// add writes a record, with the damaged bytes unless they were corrected, and returns it; added is false if it is in the
// ledger already. A record with an ID replaces the former one. After an error the record is in memory only, until it is added again.
// It is on disk after sync.
func (l *ledger) add(r Record, original []byte) (_ Record, added bool, err error) {
	sum := sha256.New()
	for _, part := range []string{r.Account, r.Stream, r.File} {
		_, _ = sum.Write([]byte(part + "\x00"))
	}
	_, _ = sum.Write(original)
	if r.Action == ActionMissing { // a file may be cut off again
		_, _ = fmt.Fprint(sum, r.Sequence)
	}
	if r.ID == "" {
		r.ID = hex.EncodeToString(sum.Sum(nil)[:8])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Action == ActionCorrected {
		original = nil
	}
	if len(original) > 0 {
		r.Kept = filepath.ToSlash(filepath.Join(damageDir, keptDir, r.ID))
	}
	added = l.remember(r)
	if !added && !l.unkept[r.ID] {
		return r, false, nil
	}
	if err = l.write(r, original); err != nil {
		l.unkept[r.ID] = true
	} else {
		delete(l.unkept, r.ID)
	}
	return r, added, err
}

func (l *ledger) write(r Record, original []byte) error {
	if err := os.MkdirAll(filepath.Join(l.dir, keptDir), 0o700); err != nil {
		return err
	}
	if len(original) > 0 {
		if err := local.ReplaceFile(filepath.Join(l.dir, keptDir, r.ID), original); err != nil {
			return err
		}
	}
	return l.append(r)
}

// append writes a line of the ledger.
func (l *ledger) append(content any) error {
	line, err := json.Marshal(content)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(l.path(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(statefile.SignLine(line), '\n'))
	l.unsynced = true
	return errors.Join(err, f.Close())
}

// sync returns when all records are on disk.
func (l *ledger) sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.unsynced {
		return nil
	}
	l.unsynced = false
	f, err := os.Open(l.path())
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), local.SyncDir(l.dir))
}

// all returns the records in memory, the newest last.
func (l *ledger) all() []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.records)
}

// Counts are the numbers of damage found.
type Counts struct {
	Lost      int `json:"lost"`      // records that cannot be read
	Corrected int `json:"corrected"` // bits flipped back
	Rebuilt   int `json:"rebuilt"`   // indexes, settings and positions made anew or restored
	Obsolete  int `json:"obsolete"`  // records that had been deleted or replaced before
	CutOff    int `json:"cutOff"`    // unfinished writes, which nobody was told of
}

// CountsOf counts the records that are not settled.
func CountsOf(records []Record) (c Counts) {
	for _, r := range records {
		switch {
		case r.Settled:
		case r.Lost():
			c.Lost++
		case r.Kind == KindWrite:
			c.CutOff++
		case r.Obsolete:
			c.Obsolete++
		case r.Action == ActionCorrected:
			c.Corrected++
		default:
			c.Rebuilt++
		}
	}
	return c
}

// String lists the numbers that are not 0.
func (c Counts) String() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{c.Lost, "lost"}, {c.Corrected, "corrected"}, {c.Rebuilt, "rebuilt"}, {c.Obsolete, "obsolete"}, {c.CutOff, "cut off"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// memory has the blocks whose records were all readable. It decides what is checked first.
type memory map[string]verified

// verified says of which size and time a block was when it was read.
type verified struct {
	Size    int64  `json:"size"`
	Changed int64  `json:"changed"` // in Unix nanoseconds
	Checked int64  `json:"checked"` // in Unix seconds
	First   uint64 `json:"first"`   // sequence of its first message, 0 if it has none
	Last    uint64 `json:"last"`    // sequence of its last message
}

func (m memory) knows(b block) bool {
	v, ok := m[b.path]
	return ok && v.Size == b.size && v.Changed == b.at.UnixNano()
}

func loadMemory(path string) memory {
	m := memory{}
	raw, err := os.ReadFile(path)
	if err != nil || json.NewDecoder(bytes.NewReader(raw)).Decode(&m) != nil {
		return memory{}
	}
	return m
}

func (m memory) save(path string) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return local.ReplaceFile(path, raw)
}
