package config_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/internal/config"
)

// trustHome sets HOME to a new directory, and returns it and the list of the hub in it.
func trustHome(t *testing.T) (home string, trust *config.Trust) {
	t.Helper()
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home = filepath.Join(home, "ann")
	mkdir(t, home)
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	return home, config.NewTrust(filepath.Join(home, ".a2a-hub"))
}

func mkdir(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func symlink(t *testing.T, target, path string) string {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Skip(err)
	}
	return path
}

func dirsOf(t *testing.T, trust *config.Trust) []string {
	t.Helper()
	dirs, err := trust.Dirs()
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

func codeOf(err error) config.TrustCode {
	if te, ok := errors.AsType[*config.TrustError](err); ok {
		return te.Code
	}
	return ""
}

func TestTrustIsKeptUntilItIsRemoved(t *testing.T) {
	home, trust := trustHome(t)
	shop, space := mkdir(t, filepath.Join(home, "src", "shop")), mkdir(t, filepath.Join(home, "src", "über uns"))
	link := symlink(t, shop, filepath.Join(home, "link"))
	if dirs := dirsOf(t, trust); len(dirs) > 0 {
		t.Errorf("a new list has %q", dirs)
	}
	for i, dir := range []string{space, link, shop} {
		path, changed, err := trust.Add(t.Context(), dir)
		if err != nil || changed != (i < 2) || i > 0 && path != shop {
			t.Errorf("%s: %s, %v, %v", dir, path, changed, err)
		}
	}
	if diff := cmp.Diff([]string{shop, space}, dirsOf(t, trust)); diff != "" {
		t.Error(diff)
	}
	for dir, want := range map[string]bool{shop: true, filepath.Join(shop, "sub"): true, shop + "x": false, home: false, space: true} {
		if covered, err := trust.Covers(dir); err != nil || covered != want {
			t.Errorf("%s: trusted %v, %v", dir, covered, err)
		}
	}
	if info, err := os.Stat(trust.File()); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the list's file: %v, %v", info, err)
	}
	if err := os.Remove(space); err != nil { // trust in what is gone can be removed, too
		t.Fatal(err)
	}
	for i, dir := range []string{link, shop, space} {
		if _, changed, err := trust.Remove(t.Context(), dir); err != nil || changed != (i != 1) {
			t.Errorf("remove %s: %v, %v", dir, changed, err)
		}
	}
	if dirs := dirsOf(t, trust); len(dirs) > 0 {
		t.Errorf("after the removal: %q", dirs)
	}
}

func TestWhatIsNotOneProjectIsRefused(t *testing.T) {
	home, trust := trustHome(t)
	file := filepath.Join(home, "file")
	write(t, file, "x", 0o600)
	data := filepath.Dir(trust.File())
	for dir, want := range map[string]config.TrustCode{
		home:                                 config.TrustRefused,
		filepath.Dir(home):                   config.TrustRefused,
		string(filepath.Separator):           config.TrustRefused,
		mkdir(t, filepath.Join(data, "bus")): config.TrustRefused,
		data:                                 config.TrustRefused,
		symlink(t, home, filepath.Join(home, "l")): config.TrustRefused,
		file:                         config.TrustNoDir,
		filepath.Join(file, "below"): config.TrustNoDir,
		filepath.Join(home, "gone"):  config.TrustNoDir,
	} {
		if _, changed, err := trust.Add(t.Context(), dir); codeOf(err) != want || changed || strings.Contains(err.Error(), "lstat") {
			t.Errorf("%s: %v, want %s", dir, err, want)
		}
	}
	// An entry that somebody wrote by hand counts as little.
	write(t, trust.File(), fmt.Sprintf(`{"directories":["/",%q,"relative",%q]}`, home, home+"/../x"), 0o600)
	if dirs := dirsOf(t, trust); len(dirs) > 0 {
		t.Errorf("trusted: %q", dirs)
	}
}

// A separator that a person has put at the end must not cost the entry, now or at the next change.
func TestAnEntryMayEndWithASeparator(t *testing.T) {
	home, trust := trustHome(t)
	shop, other := mkdir(t, filepath.Join(home, "shop")), mkdir(t, filepath.Join(home, "other"))
	write(t, trust.File(), fmt.Sprintf(`{"directories":[%q]}`, shop+string(filepath.Separator)), 0o600)
	if _, _, err := trust.Add(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{other, shop}, dirsOf(t, trust)); diff != "" {
		t.Error(diff)
	}
}

// Without HOME, or with another one, the home of the system's list of users is refused.
func TestTheUsersHomeIsRefusedWhateverHOMESays(t *testing.T) {
	u, err := user.Current()
	if err != nil || !filepath.IsAbs(u.HomeDir) {
		t.Skip("the user has no home")
	}
	_, trust := trustHome(t)
	for _, home := range []string{os.Getenv("HOME"), ""} {
		t.Setenv("HOME", home)
		if why := trust.Refusal(u.HomeDir); why == "" {
			t.Errorf("HOME=%q: the home is not refused", home)
		}
	}
}

func TestAnUnreadableListIsReportedAndNotReplaced(t *testing.T) {
	home, trust := trustHome(t)
	for name, content := range map[string]string{
		"not JSON": "{", "too long": strings.Repeat(" ", 2<<20), "too many": `{"directories":[` + strings.Repeat(`"/a",`, 1001) + `"/a"]}`,
	} {
		write(t, trust.File(), content, 0o600)
		_, err := trust.Dirs()
		_, _, adding := trust.Add(t.Context(), mkdir(t, filepath.Join(home, "src")))
		kept, _ := os.ReadFile(trust.File())
		if codeOf(err) != config.TrustUnusable || codeOf(adding) != config.TrustUnusable || string(kept) != content {
			t.Errorf("%s: %v, %v", name, err, adding)
		}
	}
}

func TestTheListIsBounded(t *testing.T) {
	home, trust := trustHome(t)
	dirs := make([]string, 1000)
	for i := range dirs {
		dirs[i] = fmt.Sprintf("%q", filepath.Join(home, fmt.Sprint("d", i)))
	}
	write(t, trust.File(), `{"directories":[`+strings.Join(dirs, ",")+`]}`, 0o600)
	if _, _, err := trust.Add(t.Context(), mkdir(t, filepath.Join(home, "src"))); codeOf(err) != config.TrustFull {
		t.Errorf("got %v", err)
	}
}

func TestConcurrentChangesAreAllKept(t *testing.T) {
	home, trust := trustHome(t)
	var wg sync.WaitGroup
	for i := range 8 {
		dir := mkdir(t, filepath.Join(home, "src", fmt.Sprint(i)))
		wg.Go(func() {
			if _, _, err := config.NewTrust(filepath.Dir(trust.File())).Add(context.Background(), dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if dirs := dirsOf(t, trust); len(dirs) != 8 {
		t.Errorf("trusted: %q", dirs)
	}
}

func FuzzTrustedDirectories(f *testing.F) {
	f.Add(`{"directories":["/home/ann/src"]}`)
	f.Add(`{"directories":["/"," ","..","/a/../..","C:\\"]}`)
	f.Fuzz(func(t *testing.T, content string) {
		_, trust := trustHome(t)
		write(t, trust.File(), content, 0o600)
		dirs, err := trust.Dirs()
		if err != nil && codeOf(err) != config.TrustUnusable {
			t.Errorf("got %v", err)
		}
		for _, dir := range dirs {
			if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || trust.Refusal(dir) != "" {
				t.Errorf("trusts %q", dir)
			}
		}
	})
}

// The system's directories are refused, also below and through a link; what users put beside them is not.
func TestTheSystemsDirectoriesAreRefused(t *testing.T) {
	home, trust := trustHome(t)
	for _, dir := range []string{"/etc", "/usr", "/usr/bin", "/bin", "/var", "/var/lib", "/proc", "/sys", "/dev", "/boot", "/lib", "/tmp", "/home", "/System", "/Library"} {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			continue
		}
		link := symlink(t, dir, filepath.Join(home, "to"+strings.ReplaceAll(dir, "/", "-")))
		for _, name := range []string{dir, link} {
			if _, _, err := trust.Add(t.Context(), name); codeOf(err) != config.TrustRefused || !strings.Contains(err.Error(), "the system") && dir != "/tmp" && dir != "/var" {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	write(t, trust.File(), `{"directories":["/etc","/usr/lib"]}`, 0o600)
	if dirs := dirsOf(t, trust); len(dirs) > 0 {
		t.Errorf("trusted because somebody wrote it by hand: %q", dirs)
	}
	if _, _, err := trust.Add(t.Context(), mkdir(t, filepath.Join(home, "etc"))); err != nil { // as every project in a test: below /tmp
		t.Error(err)
	}
}

// A flipped bit ends no trust and gives none, whether the list is read or changed next.
func TestEveryFlippedBitOfTheListIsRestored(t *testing.T) {
	home, trust := trustHome(t)
	shop, other := mkdir(t, filepath.Join(home, "shop")), mkdir(t, filepath.Join(home, "other"))
	if _, _, err := trust.Add(t.Context(), shop); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(trust.File())
	if err != nil {
		t.Fatal(err)
	}
	for at := range raw {
		flipped := slices.Clone(raw)
		flipped[at] ^= 1 << (at % 8)
		if err := os.WriteFile(trust.File(), flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		if at%16 == 0 {
			_, _, err = trust.Add(t.Context(), other)
			if err == nil {
				_, _, err = trust.Remove(t.Context(), other)
			}
		}
		if dirs := dirsOf(t, trust); err != nil || !slices.Equal(dirs, []string{shop}) {
			t.Fatalf("byte %d: the list is %q, %v", at, dirs, err)
		}
	}
	if kept, err := filepath.Glob(trust.File() + ".damaged-*"); err != nil || len(kept) != len(raw) {
		t.Errorf("%d damaged lists are kept, %v", len(kept), err)
	}
	if err := os.WriteFile(trust.File(), []byte(`{"directories": []}`), 0o600); err != nil { // a person's
		t.Fatal(err)
	}
	if dirs := dirsOf(t, trust); len(dirs) > 0 {
		t.Errorf("the list is %q", dirs)
	}
}
