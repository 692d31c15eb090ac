package identity_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/parleyhub/parley/identity"
)

// An empty list allows nobody; entries are saved.
func TestAllowList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "peers")
	l, err := identity.OpenAllowList(path)
	if err != nil {
		t.Fatal(err)
	}
	friend, other := identity.Generate().Public(), identity.Generate().Public()
	if l.Allowed(friend) {
		t.Error("an empty list allows a key")
	}
	for _, e := range []identity.Entry{{friend, "old name", ""}, {friend, "Anna's laptop", "anna.example.org:49737"}, {other, "", "[::1]:1"}} {
		if err := l.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	again, err := identity.OpenAllowList(path)
	if err != nil {
		t.Fatal(err)
	}
	if all := again.Entries(); len(all) != 2 || !again.Allowed(friend) || !again.Allowed(other) {
		t.Errorf("got %+v", all)
	}
	for _, e := range again.Entries() {
		if e.Key == friend && (e.Name != "Anna's laptop" || e.Address != "anna.example.org:49737") || e.Key == other && (e.Name != "" || e.Address != "[::1]:1") {
			t.Errorf("got %+v", e)
		}
	}
	if had, err := again.Remove(friend); err != nil || !had || again.Allowed(friend) {
		t.Errorf("%v, %v", had, err)
	}
	if had, err := again.Remove(friend); err != nil || had {
		t.Errorf("a second removal: %v, %v", had, err)
	}
	if !l.Allowed(friend) {
		t.Error("a list that was loaded before has changed")
	}
	if err := l.Reload(); err != nil || l.Allowed(friend) {
		t.Errorf("after loading it again: %v", err)
	}
}

func TestAllowListRefusesInvalidEntries(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peers")
	key := identity.Generate().Public()
	l, err := identity.OpenAllowList(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Add(identity.Entry{Key: key}); err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]identity.Entry{
		"a second line": {Key: key, Name: "x\n" + key.String()}, "a long name": {Key: key, Name: strings.Repeat("x", 101)}, "no key": {},
		"a name like an address": {Key: key, Name: "@home"}, "an address without a port": {Key: key, Address: "example.org"},
		"an address in two words": {Key: key, Address: "example.org :1"}, "port 0": {Key: key, Address: "example.org:0"},
	} {
		if err := l.Add(e); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	for name, text := range map[string]string{"no key": "hello", "half a key": key.String()[:40], "a long name": key.String() + " " + strings.Repeat("x", 101), "a broken address": key.String() + " @home bob"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.Reload(); !errors.Is(err, identity.ErrLine) || len(l.Entries()) > 0 {
			t.Errorf("%s was loaded: %v", name, err)
		}
	}
	mixed := "no key\n" + key.String() + " bob\n" + key.String()[:40] + "\n"
	if err := os.WriteFile(path, []byte(mixed), 0o600); err != nil {
		t.Fatal(err)
	}
	if some, err := identity.OpenAllowList(path); !errors.Is(err, identity.ErrLine) || !strings.Contains(err.Error(), "line 1:") || len(some.Entries()) != 1 || !some.Allowed(key) {
		t.Errorf("a list of which two lines are no entries: %v, %v", some.Entries(), err)
	}
	if err := l.Reload(); !errors.Is(err, identity.ErrLine) || len(l.Entries()) != 1 || !l.Allowed(key) { // whoever was removed is removed
		t.Errorf("the same list, read again: %v, %v", l.Entries(), err)
	}
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := l.Reload(); err == nil || errors.Is(err, identity.ErrLine) || len(l.Entries()) != 1 {
		t.Errorf("a file that cannot be read: %v, %v", l.Entries(), err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("# mine\n\n"+key.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Reload(); err != nil || len(l.Entries()) != 1 {
		t.Errorf("a file with a comment: %v", err)
	}
	if _, err := identity.OpenAllowList(filepath.Dir(path)); err == nil {
		t.Error("a directory was loaded")
	}
}

// A flipped bit unpairs no hub, whether the file is read by a process that has it open or by a new one. One in a name, an address or a comment
// may be what a person has changed.
func TestAFlippedBitOfAnAllowListUnpairsNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peers")
	bob, eve := identity.Entry{Key: identity.FromSeed([32]byte{1}).Public(), Name: "bob", Address: "[::1]:1"}, identity.Entry{Key: identity.FromSeed([32]byte{2}).Public()}
	former := "# mine\n" + bob.String() + "\n" + eve.String() + "\n"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(former)
	has := func(l *identity.AllowList, err error, want ...identity.Entry) {
		t.Helper()
		if got := l.Entries(); err != nil || len(got) != len(want) || len(want) > 0 && !slices.Contains(got, want[0]) {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	l, err := identity.OpenAllowList(path)
	has(l, err, bob, eve)
	edits := 0
	for at := range len(former) {
		flipped := []byte(former)
		flipped[at] ^= 1 << (at % 8)
		write(string(flipped))
		if at%2 == 0 {
			l, err = identity.OpenAllowList(path)
		} else {
			err = l.Reload()
		}
		now, rerr := os.ReadFile(path)
		if err != nil || rerr != nil || !l.Allowed(bob.Key) || !l.Allowed(eve.Key) {
			t.Fatalf("byte %d: the file has %q, %v, %v", at, now, err, rerr)
		}
		if string(now) != former {
			edits++
			write("")
			has(l, l.Reload())
			write(former)
			has(l, l.Reload(), bob, eve)
		}
	}
	if kept, err := filepath.Glob(path + ".damaged-*"); err != nil || edits == 0 || len(kept) != len(former)-edits {
		t.Errorf("%d damaged files are kept beside %d edits, %v", len(kept), edits, err)
	}
	write(bob.String() + "\n") // an older program, or a person, has removed the other one
	has(l, l.Reload(), bob)
	bob.Name = "rob"
	write(bob.String() + "\n" + eve.String() + "\n")
	has(l, l.Reload(), bob, eve)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := l.Reload(); err != nil || len(l.Entries()) > 0 {
		t.Errorf("without a file there is %+v, %v", l.Entries(), err)
	}
}

func TestAllowListIsSafeForConcurrentUse(t *testing.T) {
	l, err := identity.OpenAllowList(filepath.Join(t.TempDir(), "peers"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		key := identity.Generate().Public()
		wg.Go(func() {
			if err := l.Add(identity.Entry{Key: key}); err != nil || !l.Allowed(key) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(l.Entries()); n != 8 {
		t.Errorf("%d of 8 entries are in the list", n)
	}
}

func FuzzAllowList(f *testing.F) {
	f.Add("# mine\n" + identity.FromSeed([32]byte{1}).Public().String() + " a name\n")
	f.Add("\x00")
	f.Add(identity.FromSeed([32]byte{1}).Public().String() + " @example.org:49737 a name")
	path := filepath.Join(f.TempDir(), "peers")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := identity.OpenAllowList(path)
		if err != nil {
			return
		}
		for _, e := range l.Entries() {
			if err := l.Add(e); err != nil {
				t.Fatal(err)
			}
		}
		before := len(l.Entries())
		if err := l.Reload(); err != nil || len(l.Entries()) != before {
			t.Fatalf("%d entries became %d, %v", before, len(l.Entries()), err)
		}
	})
}
