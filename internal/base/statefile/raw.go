package statefile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"math/bits"
	"os"
	"time"

	"github.com/gofrs/flock"
)

// Raw is a file in a format that has no room for a checksum, and that other programs may write, such as former ones. Its copy has the
// checksum. Read and Write must not be called at the same time as each other, in all processes; Peek may.
type Raw struct {
	Path string
	// Valid returns what is wrong with the content; nil if every one is right. Its error must not have any of it.
	Valid func([]byte) error
	// Loss says what is lost with the file, for people.
	Loss string
	// Damaged is called by Read when the file was damaged; it may be nil.
	Damaged func(Damage)
	// Edited says that people edit or remove the file: one flipped bit is damage, and any other difference from the copy counts.
	Edited bool
	// Edit reports whether one bit that differs is an edit, if people may change as little; nil is never.
	Edit func(before, after []byte) bool
}

// Edited is the file at a path that people edit.
func Edited(path string) Raw { return Raw{Path: path, Edited: true} }

// maxFlipped is how many bits may have flipped in a file that is as long as its copy and valid. What differs in more was written by another
// program: the contents are random, or become longer or shorter when they are changed.
const maxFlipped = 8

// The beginning of a copy is the checksum of what is after it: the checksum of the file's former content, and the content. Each checksum is
// one line.
const lineSize = 2*sha256.Size + 1

func sumLine(b []byte) []byte {
	sum := sha256.Sum256(b)
	return append(hex.AppendEncode(nil, sum[:]), '\n')
}

// rawCopy is a copy.
type rawCopy struct {
	content []byte
	former  []byte // the line with the checksum of the former content
}

// readRawCopy returns an error if there is no good copy.
func readRawCopy(path string) (c rawCopy, err error) {
	raw, err := read(path)
	if err != nil {
		return c, err
	}
	if len(raw) < 2*lineSize || !bytes.Equal(raw[:lineSize], sumLine(raw[lineSize:])) {
		return c, errSum
	}
	rest := raw[lineSize:]
	return rawCopy{rest[lineSize:], rest[:lineSize]}, nil
}

// Read returns the content, nil if nothing was written yet. A damaged file is moved aside and restored from the copy; without a good one nil
// is returned, too. A file without a copy gets one. What cannot be written now is left for the next Read. The error says that the file cannot
// be read now.
func (f Raw) Read() (content []byte, err error) {
	content, s, err := f.look()
	switch {
	case err != nil:
		return nil, err
	case s.damage != nil:
		mend(s.damage, func() error { return f.write(content, content) }, f.Damaged)
	case s.single:
		_ = writeCopy(f.Path, rawCopyOf(content, content))
	}
	return content, nil
}

// ReadShared is Read of a file whose writers in several processes hold a lock, the file at a path. While another one has it, or it cannot be
// had, nothing is changed.
func (f Raw) ReadShared(lock string) (content []byte, err error) {
	content, s, err := f.look()
	if err != nil || s.damage == nil && !s.single {
		return content, err
	}
	l := flock.New(lock, flock.SetPermissions(0o600))
	if locked, _ := l.TryLock(); !locked {
		return content, nil
	}
	content, err = f.Read()
	_ = l.Close()
	return content, err
}

// Peek returns what Read would return, and changes nothing. The damage is nil if there is none.
func (f Raw) Peek() (content []byte, damage *Damage, err error) {
	content, s, err := f.look()
	return content, s.damage, err
}

// Changed returns when the file was written; that of the copy if the file is gone. ok is false if both are.
func (f Raw) Changed() (at time.Time, ok bool) {
	info, err := os.Stat(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = os.Stat(copyOf(f.Path))
	}
	if err != nil {
		return at, false
	}
	return info.ModTime(), true
}

func (f Raw) look() (content []byte, s state, err error) {
	content, err = read(f.Path)
	c, copyErr := readRawCopy(copyOf(f.Path)) // after the file: a writer writes it first
	copied := copyErr == nil
	if copied && errors.Is(err, errGone) {
		content, err = read(f.Path) // which may be new: its copy comes later
	}
	switch {
	case err != nil && !isDamage(err):
		return nil, s, err
	case err != nil && IsShortage(copyErr):
		return nil, s, copyErr
	case errors.Is(err, errGone) && (f.Edited || !copied):
		return nil, s, nil
	case err == nil:
		err = f.invalid(content)
	}
	if err == nil && copied && f.flipped(content, c) {
		err = errSum
	}
	if err == nil {
		s.single = !copied || !bytes.Equal(content, c.content)
		return content, s, nil
	}
	if IsShortage(copyErr) {
		return nil, s, copyErr
	}
	s.damage = damageOf(f.Path, err, f.Loss)
	if copied && f.invalid(c.content) == nil {
		s.damage.Restored = true
		return c.content, s, nil
	}
	return nil, s, nil
}

// flipped reports whether content is that of the copy with flipped bits or cut off, instead of another one.
func (f Raw) flipped(content []byte, c rawCopy) bool {
	switch {
	case bytes.Equal(sumLine(content), c.former):
		return false
	case len(content) != len(c.content):
		return !f.Edited && bytes.HasPrefix(c.content, content)
	case f.Edited:
		return differ(content, c.content) == 1 && (f.Edit == nil || !f.Edit(c.content, content))
	}
	n := differ(content, c.content)
	return 0 < n && n <= maxFlipped
}

// differ returns in how many bits two texts of the same length differ.
func differ(a, b []byte) (n int) {
	for i := range a {
		n += bits.OnesCount8(a[i] ^ b[i])
	}
	return n
}

func (f Raw) invalid(content []byte) error {
	if f.Valid == nil {
		return nil
	}
	return f.Valid(content)
}

// Write replaces the file and its copy. After a kill or a power cut the file has the former content or the new one.
func (f Raw) Write(content []byte) error {
	former, err := read(f.Path)
	if err != nil && !isDamage(err) {
		return err
	}
	return f.write(former, content)
}

func (f Raw) write(former, content []byte) error {
	return replace(f.Path, content, rawCopyOf(former, content))
}

func rawCopyOf(former, content []byte) []byte {
	rest := append(sumLine(former), content...)
	return append(sumLine(rest), rest...)
}
