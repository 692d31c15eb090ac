package damage

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/local"
)

// The names in nats-server's store.
const (
	storeDir     = "jetstream"
	streamsDir   = "streams"
	messagesDir  = "msgs"
	consumersDir = "obs"
	settingsFile = "meta.inf"
	settingsSum  = "meta.sum"
	indexFile    = "index.db"
	keyFile      = "meta.key" // of an encrypted store
	blockSuffix  = ".blk"
)

// stream is the directory of a stream.
type stream struct {
	account, name, dir string
	description        string
	subjects           []string
	blocks             []block
	rebuilt            bool   // the server reads all of its blocks at its start
	outdated           bool   // it has an index of a former state,
	indexed            uint64 // whose last sequence this is
	complete           bool   // the server was stopped in order: all of it was on the disk
	unkept             error  // why damaged bytes could not be copied aside

	single  bool                // it keeps one message for each subject
	deleted map[uint64]struct{} // sequences with a deletion mark; read on demand
	newest  map[string]uint64   // sequences of the subjects' last messages, if single; read on demand
}

// block is a file with messages.
type block struct {
	number int
	path   string
	size   int64
	at     time.Time // of its last change
	last   bool      // of its stream
}

// streams lists the streams below the bus's directory.
func streams(dir string) ([]stream, error) {
	accounts, err := accountsIn(dir)
	if err != nil {
		return nil, err
	}
	var all []stream
	for _, a := range accounts {
		of, err := streamsOf(dir, a)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

// accountsIn lists the accounts that have a store below the bus's directory.
func accountsIn(dir string) (names []string, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, storeDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// streamsOf lists the streams of an account.
func streamsOf(dir, account string) ([]stream, error) {
	paths, err := filepath.Glob(filepath.Join(escape(filepath.Join(dir, storeDir, account, streamsDir)), "*"))
	if err != nil {
		return nil, err
	}
	var all []stream
	for _, p := range paths {
		name := filepath.Base(p)
		if strings.HasPrefix(name, ".") { // it is being deleted
			continue
		}
		if info, err := os.Stat(p); err != nil || !info.IsDir() {
			continue
		}
		all = append(all, stream{account: account, name: name, dir: p})
	}
	return all, nil
}

// escape quotes what has a meaning in a pattern.
func escape(dir string) string {
	if filepath.Separator == '\\' {
		return dir // where patterns have no quotes
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

func (s *stream) encrypted() bool {
	_, err := os.Stat(filepath.Join(s.dir, keyFile))
	return err == nil
}

// readSettings reads what the check needs of the stream's settings.
func (s *stream) readSettings() error {
	raw, err := os.ReadFile(filepath.Join(s.dir, settingsFile))
	if err != nil {
		return err
	}
	var settings struct {
		Description string   `json:"description"`
		Subjects    []string `json:"subjects"`
		PerSubject  int      `json:"max_msgs_per_subject"`
	}
	if err := json.Unmarshal(raw, &settings); err != nil {
		return err
	}
	s.description, s.subjects, s.single = settings.Description, settings.Subjects, settings.PerSubject == 1
	return nil
}

// readBlocks lists the blocks in their order. An error says what is not one.
func (s *stream) readBlocks() (strange error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, messagesDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		n, err := strconv.Atoi(strings.TrimSuffix(e.Name(), blockSuffix))
		if err != nil || !strings.HasSuffix(e.Name(), blockSuffix) {
			continue
		}
		info, err := e.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist): // the server has removed it
			continue
		case err == nil && !info.Mode().IsRegular():
			err = fmt.Errorf("%s is not a file", e.Name())
		}
		if err != nil {
			strange = errors.Join(strange, err)
			continue
		}
		s.blocks = append(s.blocks, block{number: n, path: filepath.Join(s.dir, messagesDir, e.Name()), size: info.Size(), at: info.ModTime()})
	}
	slices.SortFunc(s.blocks, func(a, b block) int { return cmp.Compare(a.number, b.number) })
	if len(s.blocks) > 0 {
		s.blocks[len(s.blocks)-1].last = true
	}
	return strange
}

func (s *stream) index() string { return filepath.Join(s.dir, messagesDir, indexFile) }

// checkIndex reports whether the server will use the index of the stream, which a clean stop has written, and whether
// it is damaged. Otherwise the server makes it anew from all blocks.
func (s *stream) checkIndex() (current, damaged bool) {
	raw, err := os.ReadFile(s.index())
	if err != nil {
		return false, false
	}
	hash, err := digest(s.name)
	if err != nil || len(raw) < 4*sumSize {
		return false, true
	}
	_, _ = hash.Write(raw[:len(raw)-sumSize])
	if !bytes.Equal(hash.Sum(nil), raw[len(raw)-sumSize:]) {
		return false, true
	}
	messages, last, ok := indexed(raw)
	switch {
	case len(s.blocks) == 0 && messages == 0:
		return true, false
	case len(s.blocks) > 0 && bytes.Equal(lastSum(s.blocks[len(s.blocks)-1]), raw[len(raw)-2*sumSize:len(raw)-sumSize]):
		return true, false
	}
	s.indexed, s.outdated = last, ok
	return false, false
}

// The beginning of an index: a mark, a version, and variable-length numbers: messages, bytes, first sequence, its time, last sequence.
const (
	indexMark    = 11
	indexVersion = 4
)

// indexed returns how many messages an index has and the last sequence; ok is false if it has another form.
func indexed(raw []byte) (messages, last uint64, ok bool) {
	if raw[0] != indexMark || raw[1] != indexVersion {
		return 0, 0, false
	}
	raw = raw[2:]
	for i := range 5 { // signed or not, a number ends at the same byte
		n := 0
		if last, n = binary.Uvarint(raw); n <= 0 {
			return 0, 0, false
		}
		if i == 0 {
			messages = last
		}
		raw = raw[n:]
	}
	return messages, last, true
}

// lastSum returns the checksum of the last record of a block, as the server reads it: zeros if the block is empty.
func lastSum(b block) []byte {
	sum := make([]byte, sumSize)
	if b.size < sumSize {
		return sum
	}
	f, err := os.Open(b.path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if _, err := f.ReadAt(sum, b.size-sumSize); err != nil {
		return nil
	}
	return sum
}

// settings are the two files with the settings of a stream or a consumer.
type settings struct{ text, sum []byte }

// readSettingsFiles returns the settings in a directory and whether they are as they were written. name is what their
// checksum is made with.
func readSettingsFiles(dir, name string) (s settings, intact bool) {
	var err1, err2 error
	s.text, err1 = os.ReadFile(filepath.Join(dir, settingsFile))
	s.sum, err2 = os.ReadFile(filepath.Join(dir, settingsSum))
	return s, err1 == nil && err2 == nil && bytes.Equal(s.expected(name), s.sum)
}

func (s settings) expected(name string) []byte {
	hash, err := digest(name)
	if err != nil {
		return nil
	}
	_, _ = hash.Write(s.text)
	return []byte(hex.EncodeToString(hash.Sum(nil)))
}

// correct flips back the one bit that is wrong in the text or its checksum, and reports whether there is one.
func (s settings) correct(name string) bool {
	if len(s.text) > maxTrials {
		return false
	}
	if want := s.expected(name); len(want) == len(s.sum) && json.Valid(s.text) && differAtOne(want, s.sum) {
		copy(s.sum, want)
		return true
	}
	for bit := range len(s.text) * 8 {
		flipBit(s.text, bit)
		if bytes.Equal(s.expected(name), s.sum) {
			return true
		}
		flipBit(s.text, bit)
	}
	return false
}

const reasonNoSum = "their checksum was not written"

// complete makes the checksum of settings that have none, and reports whether they were whole.
func (s *settings) complete(name string) bool {
	if len(s.sum) > 0 || !json.Valid(s.text) {
		return false
	}
	s.sum = s.expected(name)
	return true
}

// differAtOne reports whether two texts of one length differ in one byte.
func differAtOne(a, b []byte) bool {
	n := 0
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n == 1
}

func (s settings) write(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := local.ReplaceFile(filepath.Join(dir, settingsFile), s.text); err != nil {
		return err
	}
	return local.ReplaceFile(filepath.Join(dir, settingsSum), s.sum)
}

// obsolete reports whether all messages of a range have been deleted or replaced: they have deletion marks, or the
// stream keeps one message for each subject and has a newer one of this subject.
func (s *stream) obsolete(first, last uint64, subject string) bool {
	if first == 0 || last > first && last-first > 1<<16 {
		return false
	}
	if s.deleted == nil {
		s.readDeleted()
	}
	if last <= first && s.newest[subject] > first {
		return true
	}
	for n := first; n <= max(first, last); n++ {
		if _, ok := s.deleted[n]; !ok {
			return false
		}
	}
	return true
}

func (s *stream) readDeleted() {
	s.deleted, s.newest = map[uint64]struct{}{}, map[string]uint64{}
	for _, b := range s.blocks {
		raw, err := os.ReadFile(b.path)
		if err != nil {
			continue
		}
		v, err := newReader(s.name, b.number, nil)
		if err != nil {
			continue
		}
		for at := 0; at < len(raw); {
			r, why := v.verify(raw[at:])
			if why != reasonNone && why != reasonSum {
				at++ // until a record can be read again
				continue
			}
			switch {
			case why != reasonNone || r.erased:
			case r.deletion:
				s.deleted[r.sequence] = struct{}{}
			case s.single:
				s.newest[subjectAt(raw[at:], r)] = r.sequence
			}
			at += r.length
		}
	}
}
