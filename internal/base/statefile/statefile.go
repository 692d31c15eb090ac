// Package statefile keeps what a process has to know after a restart in a file of JSON with a checksum, and in a copy beside it. Damage
// of the file is found, told and mended from the copy; it keeps nobody from starting.
package statefile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// File is a file with a T, which must be encoded as a JSON object. Its methods must not be called at the same time.
type File[T any] struct {
	Path    string
	Version int // of what T means
	// Valid returns what is wrong with a value; nil if every one is right.
	Valid func(T) error
	// Former decodes what programs wrote before the file had a checksum; nil if that is T with a version.
	Former func([]byte) (T, error)
	// Loss says what is lost with the file, for people.
	Loss string
	// Damaged is called by Read when the file was damaged; it may be nil.
	Damaged func(Damage)
}

// Damage says what was wrong with a file and what was done about it.
type Damage struct {
	Path     string
	Reason   string
	Kept     string // where the damaged file is now, "" if it was gone
	Restored bool   // from the copy; otherwise the file begins anew
	Loss     string // what was lost, unless it was restored
	ID       string // of this damage of this file, the same whoever finds it
}

// The beginning of a file: the checksum is that of everything after it.
const (
	sumBegin = `{"sum":"`
	sumEnd   = `",`
	headSize = len(sumBegin) + 2*sha256.Size + len(sumEnd)
)

var (
	errSum     = errors.New("its checksum does not match")
	errGone    = errors.New("it is gone")
	errVersion = errors.New("it was written by a newer Parley")
)

func copyOf(path string) string { return path + ".copy" }

// Read returns the value, the zero value if nothing was written yet. A damaged file is moved aside and restored from the copy; without one
// the zero value is returned, too. A file of a former program gets a checksum, and one without a copy gets that. What cannot be written now is
// left for the next Read. The error says that the file cannot be read now, or that a newer program has written it.
func (f File[T]) Read() (value T, err error) {
	value, s, err := f.look()
	switch {
	case err != nil:
		return value, err
	case s.damage != nil:
		mend(s.damage, func() error { return f.Write(value) }, f.Damaged)
	case s.single:
		_ = f.complete(value, s.raw)
	}
	return value, nil
}

// complete writes the copy of an undamaged file, which stays as it is if it has a checksum. When it was written stays known.
func (f File[T]) complete(value T, raw []byte) error {
	if bytes.HasPrefix(raw, []byte(sumBegin)) {
		return writeCopy(f.Path, raw)
	}
	return keepTime(f.Path, f.Path, func() error { return f.Write(value) })
}

// Peek returns what Read would return, and changes nothing. The damage is nil if there is none.
func (f File[T]) Peek() (value T, damage *Damage, err error) {
	value, s, err := f.look()
	return value, s.damage, err
}

// state is what look has found.
type state struct {
	damage *Damage // nil if there is none
	single bool    // the file is undamaged, and has no checksum or no equal copy
	raw    []byte  // of the file
}

// look reads the file, or else its copy. What is not generic is not compiled for each type.
func (f File[T]) look() (value T, s state, err error) {
	s, err = look(f.Path, f.Loss, func(raw []byte) (err error) {
		if value, err = f.decode(raw); err != nil {
			value = *new(T)
		}
		return err
	})
	return value, s, err
}

func look(path, loss string, decode func([]byte) error) (s state, err error) {
	s.raw, err = read(path)
	second, copyErr := read(copyOf(path))
	if errors.Is(err, errGone) && copyErr == nil {
		s.raw, err = read(path) // which may be new: its copy comes later
	}
	if err != nil && !isDamage(err) {
		return s, err
	}
	if errors.Is(err, errGone) && errors.Is(copyErr, errGone) {
		return s, nil
	}
	if err == nil {
		err = decode(s.raw)
	}
	if err == nil {
		s.single = copyErr != nil || !bytes.Equal(s.raw, second) || !bytes.HasPrefix(s.raw, []byte(sumBegin))
		return s, nil
	}
	if errors.Is(err, errVersion) {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	if IsShortage(copyErr) {
		return s, copyErr
	}
	s.damage = damageOf(path, err, loss)
	s.damage.Restored = copyErr == nil && decode(second) == nil
	return s, nil
}

// read reads a file. A file that the disk cannot read is damaged.
func read(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errGone
	case errors.Is(err, syscall.EIO):
		return nil, errSum
	}
	return raw, err
}

func isDamage(err error) bool { return errors.Is(err, errGone) || errors.Is(err, errSum) }

// IsShortage reports whether a file cannot be read now because descriptors or memory are missing. It says nothing about the file.
func IsShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// decode decodes a file. Former programs, which the user may have gone back to meanwhile, write it without a checksum.
func (f File[T]) decode(raw []byte) (value T, err error) {
	former, err := checkHead(raw, f.Version, f.Former != nil)
	switch {
	case err != nil:
		return value, err
	case former:
		value, err = f.Former(raw)
	default:
		err = json.Unmarshal(raw, &value)
	}
	if err == nil && f.Valid != nil {
		err = f.Valid(value)
	}
	return value, err
}

// checkHead checks the checksum and the version of a file, unless it is a former program's that has its own decoder.
func checkHead(raw []byte, version int, hasFormer bool) (former bool, err error) {
	body, ok := bytes.CutPrefix(raw, []byte(sumBegin))
	switch {
	case !ok && hasSum(raw):
		return false, errSum
	case !ok && hasFormer:
		return true, nil
	case ok && len(raw) < headSize:
		return false, errSum
	case ok:
		sum := sha256.Sum256(raw[headSize:])
		if string(body[:headSize-len(sumBegin)]) != hex.EncodeToString(sum[:])+sumEnd {
			return false, errSum
		}
	}
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return false, err
	}
	switch {
	case ok && v.Version > version:
		return false, errVersion
	case v.Version != version:
		return false, fmt.Errorf("its version is %d, not %d", v.Version, version)
	}
	return false, nil
}

// hasSum reports whether a checksum is where the beginning of a file would have it.
func hasSum(raw []byte) bool {
	if len(raw) < headSize {
		return false
	}
	_, err := hex.DecodeString(string(raw[len(sumBegin) : headSize-len(sumEnd)]))
	return err == nil
}

// Write replaces the file and its copy. After a kill or a power cut the file has the former value or the new one.
func (f File[T]) Write(value T) error {
	object, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return f.WriteJSON(object)
}

// WriteJSON is Write of a value that is encoded already, without spaces.
func (f File[T]) WriteJSON(object []byte) error { return writeJSON(f.Path, f.Version, object) }

func writeJSON(path string, version int, object []byte) error {
	rest := fmt.Appendf(nil, `"version":%d`, version)
	if fields := bytes.TrimPrefix(object, []byte("{")); !bytes.Equal(fields, []byte("}")) {
		rest = append(rest, ',')
		rest = append(rest, fields...)
	} else {
		rest = append(rest, '}')
	}
	sum := sha256.Sum256(rest)
	raw := append([]byte(sumBegin+hex.EncodeToString(sum[:])+sumEnd), rest...)
	return replace(path, raw, raw)
}
