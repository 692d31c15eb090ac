package statefile_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/parleyhub/parley/internal/base/statefile"
)

const secret = "3f1c0a52"

// openRaw is a raw file with a secret and the damage that is noted of it.
func openRaw(t *testing.T) (f statefile.Raw, noted *[]statefile.Damage) {
	noted = new([]statefile.Damage)
	return statefile.Raw{Path: filepath.Join(t.TempDir(), "key"), Loss: "the key is another one",
		Valid: func(b []byte) error {
			if len(bytes.TrimSpace(b)) != len(secret) || strings.Trim(string(b), "0123456789abcdef\n") != "" {
				return errors.New("it is no key")
			}
			return nil
		},
		Damaged: func(d statefile.Damage) { *noted = append(*noted, d) },
	}, noted
}

func reads(t *testing.T, f statefile.Raw, want string) {
	t.Helper()
	if got, err := f.Read(); err != nil || string(got) != want {
		t.Errorf("read %q, %v; want %q", got, err, want)
	}
}

func TestEveryFlippedBitOfARawFileIsRestored(t *testing.T) {
	f, noted := openRaw(t)
	reads(t, f, "")
	must(t, f.Write([]byte(secret)))
	for bit := range len(secret) * 8 {
		*noted = nil
		flipped := []byte(secret)
		flipped[bit/8] ^= 1 << (bit % 8)
		must(t, os.WriteFile(f.Path, flipped, 0o600))
		if got, damage, err := f.Peek(); err != nil || damage == nil || !damage.Restored || string(got) != secret {
			t.Errorf("bit %d: a look has %q, %+v, %v", bit, got, damage, err)
		}
		reads(t, f, secret)
		reads(t, f, secret)
		if len(*noted) != 1 || !(*noted)[0].Restored || strings.Contains((*noted)[0].Reason, secret[:4]) {
			t.Fatalf("bit %d: noted was %+v", bit, *noted)
		}
		if kept, err := os.ReadFile((*noted)[0].Kept); err != nil || !bytes.Equal(kept, flipped) {
			t.Errorf("bit %d: kept was %q, %v", bit, kept, err)
		}
	}
	if info, err := os.Stat(f.Path + ".copy"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the copy: %v, %v", info, err)
	}
}

func TestARawFileThatIsGoneOrCutOffIsRestored(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"gone":    os.Remove,
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"cut off": func(path string) error { return os.Truncate(path, int64(len(secret))) }, // its last line has no end
	} {
		f, noted := openRaw(t)
		must(t, f.Write([]byte(secret+"\n")))
		at, ok := f.Changed()
		must(t, damage(f.Path))
		if _, still := f.Changed(); !ok || !still || at.IsZero() {
			t.Errorf("%s: it was changed at %v", name, at)
		}
		reads(t, f, secret+"\n")
		if len(*noted) != 1 || !(*noted)[0].Restored {
			t.Errorf("%s: noted was %+v", name, *noted)
		}
	}
	f, _ := openRaw(t)
	if at, ok := f.Changed(); ok {
		t.Errorf("no file was changed at %v", at)
	}
}

// What a former program has written is right, whether there is a copy of a former content or not, and gets a copy.
func TestARawFileOfAnotherProgramIsRead(t *testing.T) {
	for name, prepare := range map[string]func(f statefile.Raw) error{
		"no copy":  func(statefile.Raw) error { return nil },
		"a former": func(f statefile.Raw) error { return f.Write([]byte("00ff00ff")) },
		"a damaged": func(f statefile.Raw) error {
			return os.WriteFile(f.Path+".copy", []byte(strings.Repeat("x", 200)), 0o600)
		},
	} {
		f, noted := openRaw(t)
		must(t, prepare(f))
		must(t, os.WriteFile(f.Path, []byte(secret), 0o600))
		reads(t, f, secret)
		if len(*noted) > 0 {
			t.Errorf("%s: noted was %+v", name, *noted)
		}
		must(t, os.Remove(f.Path))
		reads(t, f, secret)
	}
}

// A kill between the writes of the copy and of the file is no damage, however little the contents differ.
func TestAKillWithinAWriteIsNoDamage(t *testing.T) {
	f, noted := openRaw(t)
	must(t, f.Write([]byte("00000000")))
	must(t, f.Write([]byte("00000001")))
	must(t, os.WriteFile(f.Path, []byte("00000000"), 0o600))
	reads(t, f, "00000000")
	if len(*noted) > 0 {
		t.Errorf("noted was %+v", *noted)
	}
	must(t, os.WriteFile(f.Path, []byte("00000001"), 0o600)) // now the copy has the content that was read
	reads(t, f, "00000000")
	if len(*noted) != 1 {
		t.Errorf("noted was %+v", *noted)
	}
}

func TestADamagedRawFileWithoutACopyIsMovedAside(t *testing.T) {
	f, noted := openRaw(t)
	must(t, os.WriteFile(f.Path, []byte("no key"), 0o600))
	reads(t, f, "")
	if len(*noted) != 1 || (*noted)[0].Restored || (*noted)[0].Loss != f.Loss {
		t.Fatalf("noted was %+v", *noted)
	}
	must(t, f.Write([]byte(secret)))
	reads(t, f, secret)
}

// Whoever finds what another process has moved aside knows it as the same damage.
func TestWhatWasMovedAsideIsTheSameDamage(t *testing.T) {
	for _, lost := range []bool{false, true} {
		f, noted := openRaw(t)
		must(t, f.Write([]byte(secret)))
		if lost {
			must(t, os.Remove(f.Path+".copy"))
		}
		must(t, os.WriteFile(f.Path, []byte("no key"), 0o600))
		at := time.Unix(1_700_000_000, 0)
		must(t, os.Chtimes(f.Path, at, at))
		_, seen, err := f.Peek()
		must(t, err)
		_, err = f.Read()
		must(t, err)
		d, ok := statefile.SetAside((*noted)[0].Kept)
		if !ok || d.ID == "" || d.ID != seen.ID || d.ID != (*noted)[0].ID || d.Path != f.Path || d.Restored == lost {
			t.Errorf("%+v, %+v and %+v", seen, (*noted)[0], d)
		}
		must(t, f.Write([]byte(secret)))
		must(t, os.WriteFile(f.Path, []byte("no key"), 0o600)) // the same again, later
		if _, again, err := f.Peek(); err != nil || again.ID == d.ID {
			t.Errorf("later damage is %+v, %v", again, err)
		}
	}
	f, _ := openRaw(t)
	for _, path := range []string{f.Path, f.Path + ".copy", f.Path + ".copy.damaged-lost-00000000"} {
		if d, ok := statefile.SetAside(path); ok {
			t.Errorf("%s is %+v", path, d)
		}
	}
	if of, ok := statefile.CopyOf(f.Path + ".copy"); !ok || of != f.Path {
		t.Error(of, ok)
	}
}

// Processes without the file's lock read a right content while one writes.
func TestAReaderOfARawFileDoesNotWaitForItsWriter(t *testing.T) {
	f, _ := openRaw(t)
	contents := []string{"00000000", "00000001", "11111111"}
	must(t, f.Write([]byte(contents[0])))
	done := make(chan error, 1)
	go func() {
		var err error
		for i := range 200 {
			err = errors.Join(err, f.Write([]byte(contents[i%len(contents)])))
		}
		done <- err
	}()
	for {
		select {
		case err := <-done:
			must(t, err)
			return
		default:
			if got, _, err := f.Peek(); err != nil || !slices.Contains(contents, string(got)) {
				t.Fatalf("read %q, %v", got, err)
			}
		}
	}
}

func TestARawFileThatCannotBeReadIsAnError(t *testing.T) {
	f, _ := openRaw(t)
	must(t, os.MkdirAll(filepath.Join(f.Path, "full"), 0o700))
	if _, err := f.Read(); err == nil {
		t.Error("a directory was read")
	}
	if err := f.Write([]byte(secret)); err == nil {
		t.Error("a directory was written")
	}
}

// Whoever looks at a file while it is written for the first time does not take it to be gone.
func TestAFileThatIsNewIsNeverGone(t *testing.T) {
	dir := t.TempDir()
	for i := range 50 {
		raw := statefile.Raw{Path: filepath.Join(dir, fmt.Sprint(i))}
		object := statefile.File[names]{Path: filepath.Join(dir, fmt.Sprint(i)+".json"), Version: 1}
		done := make(chan error, 1)
		go func() { done <- errors.Join(raw.Write([]byte(secret)), object.Write(names{[]string{"ada"}})) }()
		for written := false; !written; {
			select {
			case err := <-done:
				must(t, err)
				written = true
			default:
			}
			_, damage, err := raw.Peek()
			_, other, failed := object.Peek()
			if damage != nil || other != nil || err != nil || failed != nil {
				t.Fatalf("%+v, %v; %+v, %v", damage, err, other, failed)
			}
		}
		must(t, os.Remove(raw.Path))
		reads(t, raw, secret)
	}
}

// A file that people edit is damaged only if one bit differs from what was last read or written.
func TestAnEditedFile(t *testing.T) {
	const content = "ada 17\nbob 18\n"
	tests := map[string]struct {
		edit func(path string) error
		want string
	}{
		"one bit":            {replace("ada 17\nbob 19\n"), content},
		"a bit of a newline": {replace("ada 17\x0bbob 18\n"), content},
		"two bits":           {replace("ada 17\nbob 1;\n"), "ada 17\nbob 1;\n"},
		"a line less":        {replace("ada 17\n"), "ada 17\n"},
		"a line more":        {replace(content + "eve\n"), content + "eve\n"},
		"nothing":            {replace(""), ""},
		"gone":               {os.Remove, ""},
	}
	for name, test := range tests {
		f := statefile.Edited(filepath.Join(t.TempDir(), "list"))
		noted := 0
		f.Damaged = func(statefile.Damage) { noted++ }
		must(t, os.WriteFile(f.Path, []byte(content), 0o600)) // a former program's
		reads(t, f, content)
		must(t, test.edit(f.Path))
		reads(t, f, test.want)
		if restored := test.want == content; restored != (noted == 1) {
			t.Errorf("%s: %d damages were noted", name, noted)
		}
		reads(t, f, test.want)
		must(t, f.Write([]byte("new\n")))
		reads(t, f, "new\n")
	}
}

func replace(content string) func(path string) error {
	return func(path string) error { return os.WriteFile(path, []byte(content), 0o600) }
}

func TestASharedFileIsChangedUnderItsLockOnly(t *testing.T) {
	f := statefile.Edited(filepath.Join(t.TempDir(), "list"))
	noted := 0
	f.Damaged = func(statefile.Damage) { noted++ }
	must(t, f.Write([]byte("ada")))
	must(t, os.WriteFile(f.Path, []byte("adc"), 0o600)) // two bits
	must(t, f.Write([]byte("ada")))
	must(t, os.WriteFile(f.Path, []byte("ade"), 0o600)) // one bit
	lock := flock.New(f.Path + ".lock")
	must(t, lock.Lock())
	for _, free := range []bool{false, true, true} {
		if free {
			must(t, lock.Unlock())
		}
		if got, err := f.ReadShared(lock.Path()); err != nil || string(got) != "ada" || (noted == 1) != free {
			t.Errorf("free %v: read %q, %v; %d damages", free, got, err, noted)
		}
	}
}

func TestEveryFlippedBitOfALineIsFound(t *testing.T) {
	for _, object := range []string{`{"a":1}`, `{"kept":"damage/kept/0123456789abcdef"}`} {
		if signed, err := statefile.CheckLine([]byte(object)); signed || err != nil {
			t.Errorf("%s: %v, %v", object, signed, err)
		}
		line := statefile.SignLine([]byte(object))
		if signed, err := statefile.CheckLine(line); !signed || err != nil || !json.Valid(line) {
			t.Errorf("%s: %v, %v", line, signed, err)
		}
		for bit := range len(line) * 8 {
			flipped := bytes.Clone(line)
			flipped[bit/8] ^= 1 << (bit % 8)
			if _, err := statefile.CheckLine(flipped); err == nil {
				t.Errorf("%s is right", flipped)
			}
		}
	}
}
