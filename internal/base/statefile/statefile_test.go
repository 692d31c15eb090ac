package statefile_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/base/statefile"
)

type names struct {
	Names []string `json:"names"`
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// opened is a file with the damage that it has noted.
type opened struct {
	statefile.File[names]
	noted []statefile.Damage
}

func open(t *testing.T) *opened {
	o := &opened{File: statefile.File[names]{Path: filepath.Join(t.TempDir(), "names.json"), Version: 1, Loss: "agents get new names"}}
	o.Damaged = func(d statefile.Damage) { o.noted = append(o.noted, d) }
	return o
}

func (o *opened) has(t *testing.T, want ...string) {
	t.Helper()
	if got, err := o.Read(); err != nil || !slices.Equal(got.Names, want) {
		t.Errorf("read %v, %v; want %v", got.Names, err, want)
	}
}

func TestAValueComesBack(t *testing.T) {
	f := open(t)
	f.has(t)
	must(t, f.Write(names{[]string{"ada"}}))
	must(t, f.Write(names{[]string{"ada", "bob"}}))
	f.has(t, "ada", "bob")
	must(t, f.Write(names{}))
	f.has(t)
	if len(f.noted) > 0 {
		t.Errorf("damage was noted: %+v", f.noted)
	}
	if info, err := os.Stat(f.Path + ".copy"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the copy: %v, %v", info, err)
	}
}

// The copy of a file that was cut off, emptied or removed has everything, and the damage is noted once.
func TestADamagedFileIsRestoredFromItsCopy(t *testing.T) {
	damages := map[string]func(t *testing.T, path string){
		"emptied": func(t *testing.T, path string) { must(t, os.Truncate(path, 0)) },
		"cut off": func(t *testing.T, path string) { must(t, os.Truncate(path, 90)) },
		"removed": func(t *testing.T, path string) { must(t, os.Remove(path)) },
	}
	for name, damage := range damages {
		f := open(t)
		must(t, f.Write(names{[]string{"ada"}}))
		damage(t, f.Path)
		damaged, readErr := os.ReadFile(f.Path)
		f.has(t, "ada")
		f.has(t, "ada")
		if len(f.noted) != 1 || !f.noted[0].Restored || f.noted[0].Reason == "" {
			t.Fatalf("%s: noted was %+v", name, f.noted)
		}
		kept, err := os.ReadFile(f.noted[0].Kept)
		if gone := readErr != nil; gone != (f.noted[0].Kept == "") || !gone && (err != nil || string(kept) != string(damaged)) {
			t.Errorf("%s: kept was %q, %v", name, kept, err)
		}
	}
}

func TestEveryFlippedBitIsFound(t *testing.T) {
	f := open(t)
	must(t, f.Write(names{[]string{"ada"}}))
	raw, err := os.ReadFile(f.Path)
	must(t, err)
	for bit := range len(raw) * 8 {
		flipped := slices.Clone(raw)
		flipped[bit/8] ^= 1 << (bit % 8)
		must(t, os.WriteFile(f.Path, flipped, 0o600))
		if got, damage, err := f.Peek(); err != nil || damage == nil || !damage.Restored || !slices.Equal(got.Names, []string{"ada"}) {
			t.Errorf("bit %d: a look has %v, %+v, %v", bit, got, damage, err)
		}
	}
}

func TestAFileWithoutACopyBeginsAnew(t *testing.T) {
	for name, copied := range map[string]string{"no copy": "", "a damaged copy": "{"} {
		f := open(t)
		must(t, f.Write(names{[]string{"ada"}}))
		must(t, os.WriteFile(f.Path, []byte("{"), 0o600))
		must(t, os.Remove(f.Path+".copy"))
		if copied != "" {
			must(t, os.WriteFile(f.Path+".copy", []byte(copied), 0o600))
		}
		f.has(t)
		f.has(t)
		if len(f.noted) != 1 || f.noted[0].Restored || f.noted[0].Loss != "agents get new names" {
			t.Errorf("%s: noted was %+v", name, f.noted)
		}
		must(t, f.Write(names{[]string{"bob"}}))
		f.has(t, "bob")
	}
}

func TestFilesOfFormerProgramsAreRead(t *testing.T) {
	f := open(t)
	must(t, os.WriteFile(f.Path, []byte(`{"version":1,"names":["ada"]}`), 0o600))
	f.has(t, "ada")
	must(t, os.WriteFile(f.Path, []byte("ada\n"), 0o600))
	f.Former = func(raw []byte) (names, error) { return names{[]string{strings.TrimSpace(string(raw))}}, nil }
	f.Valid = func(n names) error {
		if slices.Contains(n.Names, "") {
			return errors.New("a name is empty")
		}
		return nil
	}
	f.has(t, "ada")
	must(t, f.Write(names{[]string{"ada"}}))
	must(t, os.WriteFile(f.Path, []byte("bob\n"), 0o600)) // the user has gone back to the former program meanwhile
	f.has(t, "bob")
	if len(f.noted) > 0 {
		t.Errorf("damage was noted: %+v", f.noted)
	}
	must(t, os.Remove(f.Path+".copy"))
	must(t, os.WriteFile(f.Path, []byte("\n"), 0o600))
	f.has(t)
	if len(f.noted) != 1 {
		t.Errorf("noted was %+v", f.noted)
	}
}

// The first start of this program gives a file of a former one a checksum and a copy, so that each flipped bit of it is found from then on.
func TestAFileOfAFormerProgramGetsACopy(t *testing.T) {
	former := `{"version":1,"names":["ada"]}`
	for name, prepare := range map[string]func(t *testing.T, f *opened){
		"no copy": func(*testing.T, *opened) {},
		"the copy of a former value": func(t *testing.T, f *opened) {
			must(t, f.Write(names{[]string{"bob"}}))
		},
		"a damaged copy": func(t *testing.T, f *opened) {
			must(t, os.WriteFile(f.Path+".copy", []byte("{"), 0o600))
		},
	} {
		f := open(t)
		prepare(t, f)
		must(t, os.WriteFile(f.Path, []byte(former), 0o600))
		f.has(t, "ada")
		must(t, os.WriteFile(f.Path, []byte(strings.Replace(former, "ada", "adb", 1)), 0o600))
		must(t, os.Truncate(f.Path, 20))
		f.has(t, "ada")
		if len(f.noted) != 1 || !f.noted[0].Restored {
			t.Errorf("%s: noted was %+v", name, f.noted)
		}
	}
}

// The copy that somebody has removed, or that a kill has left newer than its file, is made again, and the file stays as it is.
func TestACopyIsMadeAgain(t *testing.T) {
	for name, copied := range map[string]string{"gone": "", "another one": `{"version":1,"names":["bob"]}`} {
		f := open(t)
		must(t, f.Write(names{[]string{"ada"}}))
		before, err := os.ReadFile(f.Path)
		must(t, err)
		must(t, os.Remove(f.Path+".copy"))
		if copied != "" {
			must(t, os.WriteFile(f.Path+".copy", []byte(copied), 0o600))
		}
		f.has(t, "ada")
		for _, path := range []string{f.Path, f.Path + ".copy"} {
			if raw, err := os.ReadFile(path); err != nil || string(raw) != string(before) {
				t.Errorf("%s: %s is %q, %v", name, path, raw, err)
			}
		}
		if len(f.noted) > 0 {
			t.Errorf("%s: noted was %+v", name, f.noted)
		}
	}
}

// What cannot be mended now is served all the same, and mended by a later start.
func TestAFileIsReadWhereItCannotBeRestored(t *testing.T) {
	f := open(t)
	must(t, f.Write(names{[]string{"ada"}}))
	must(t, os.Truncate(f.Path, 20))
	must(t, os.MkdirAll(filepath.Join(f.Path+".copy.new", "full"), 0o700)) // which also root cannot write
	dir := filepath.Dir(f.Path)
	must(t, os.Chmod(dir, 0o500))
	defer os.Chmod(dir, 0o700)
	f.has(t, "ada")
	f.has(t, "ada")
	if len(f.noted) != 2 || !f.noted[0].Restored || !f.noted[1].Restored {
		t.Fatalf("noted was %+v", f.noted)
	}
	must(t, os.Chmod(dir, 0o700))
	must(t, os.RemoveAll(f.Path+".copy.new"))
	f.has(t, "ada")
	f.has(t, "ada")
	if len(f.noted) != 3 {
		t.Errorf("noted was %+v", f.noted)
	}
}

// A file of a newer program is not damaged: it stays as it is, and the error says so.
func TestFilesOfNewerProgramsStay(t *testing.T) {
	f := open(t)
	newer := f.File
	newer.Version = 2
	must(t, newer.Write(names{[]string{"ada"}}))
	before, err := os.ReadFile(f.Path)
	must(t, err)
	if _, err := f.Read(); err == nil || !strings.Contains(err.Error(), "newer") {
		t.Errorf("the error is %v", err)
	}
	if after, err := os.ReadFile(f.Path); err != nil || string(after) != string(before) || len(f.noted) > 0 {
		t.Errorf("the file is %q, %v; noted was %+v", after, err, f.noted)
	}
}

// A kill between the writes of the copy and of the file leaves the former value; so does a full disk.
func TestTheFormerValueStaysUntilTheFileIsReplaced(t *testing.T) {
	f := open(t)
	must(t, f.Write(names{[]string{"ada"}}))
	before, err := os.ReadFile(f.Path)
	must(t, err)
	must(t, f.Write(names{[]string{"bob"}}))
	must(t, os.WriteFile(f.Path, before, 0o600))
	f.has(t, "ada")
	must(t, os.Mkdir(f.Path+".copy.new", 0o700))
	if err := f.Write(names{[]string{"bob"}}); err == nil {
		t.Error("a value whose copy cannot be written was stored")
	}
	f.has(t, "ada")
}

func TestAnyValueComesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names.json")
	rapid.Check(t, func(t *rapid.T) {
		f := statefile.File[names]{Path: path, Version: rapid.IntRange(0, 9).Draw(t, "version")}
		want := names{rapid.SliceOf(rapid.StringMatching(`[a-z"\\{}\n]*`)).Draw(t, "names")}
		if err := f.Write(want); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Read(); err != nil || !slices.Equal(got.Names, want.Names) {
			t.Fatalf("read %q, %v", got, err)
		}
	})
}

func FuzzDecoding(f *testing.F) {
	f.Add([]byte(`{"version":1,"names":["ada"]}`), []byte(""))
	f.Add([]byte(`{"sum":"00","version":1}`), []byte("{"))
	f.Fuzz(func(t *testing.T, raw, copied []byte) {
		file := statefile.File[names]{Path: filepath.Join(t.TempDir(), "names.json"), Version: 1}
		must(t, os.WriteFile(file.Path, raw, 0o600))
		must(t, os.WriteFile(file.Path+".copy", copied, 0o600))
		first, err := file.Read()
		if err != nil {
			return
		}
		if again, err := file.Read(); err != nil || !slices.Equal(first.Names, again.Names) {
			t.Errorf("read %q and then %q, %v", first, again, err)
		}
	})
}

// A file that gets a checksum, or is restored, still says when its content was written.
func TestWhenAFileWasWrittenStaysKnown(t *testing.T) {
	f := open(t)
	at := time.Unix(1_700_000_000, 0)
	must(t, os.WriteFile(f.Path, []byte(`{"version":1,"names":["ada"]}`), 0o600))
	must(t, os.Chtimes(f.Path, at, at))
	f.has(t, "ada")
	was := func() time.Time {
		t.Helper()
		info, err := os.Stat(f.Path)
		must(t, err)
		return info.ModTime()
	}
	if !was().Equal(at) {
		t.Errorf("with a checksum it is of %v", was())
	}
	must(t, os.Chtimes(f.Path+".copy", at, at))
	must(t, os.Truncate(f.Path, 20))
	f.has(t, "ada")
	if !was().Equal(at) {
		t.Errorf("restored it is of %v", was())
	}
}
