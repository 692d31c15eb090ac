package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/gofrs/flock"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Trust is the list of the user's directories in which the agents of a hub may work, besides workdirs.roots. It is a
// file in the hub's data directory, which any process of the user may change: the hub reads it at every use. Safe for
// concurrent use, also by several processes.
type Trust struct{ dataDir string }

// NewTrust returns the list of the hub with a data directory.
func NewTrust(dataDir string) *Trust { return &Trust{dataDir} }

const (
	trustFile = "trusted.json"
	trustLock = "trusted.lock"

	maxTrusted   = 1000    // directories
	maxTrustFile = 1 << 20 // bytes

	trustTimeout = 5 * time.Second // for the lock
	trustRetry   = 10 * time.Millisecond
)

// trusted is the content of the file: absolute paths without symbolic links, sorted.
type trusted struct {
	Directories []string `json:"directories"`
}

// TrustCode is the kind of a TrustError.
type TrustCode string

// The codes of a TrustError.
const (
	TrustRefused  TrustCode = "trust-refused"     // agents may never get the directory
	TrustNoDir    TrustCode = "no-directory"      // it does not exist, or is no directory
	TrustFull     TrustCode = "trust-full"        // the list has its greatest length
	TrustUnusable TrustCode = "trust-not-changed" // the file cannot be read or written
)

// TrustError is the error of a Trust.
type TrustError = fault.UserError[TrustCode]

// File returns the path of the list.
func (t *Trust) File() string { return filepath.Join(t.dataDir, trustFile) }

// Dirs returns the trusted directories, sorted: absolute paths without symbolic links when they were added. It leaves
// out what may not be trusted. A missing file is an empty list. A flipped bit is restored from the copy.
func (t *Trust) Dirs() ([]string, error) {
	return t.decode(t.file().ReadShared(t.lock()))
}

func (t *Trust) file() statefile.Raw { return statefile.Edited(t.File()) }

func (t *Trust) lock() string { return filepath.Join(t.dataDir, trustLock) }

// decode decodes what was read of the list.
func (t *Trust) decode(data []byte, err error) ([]string, error) {
	if err != nil {
		return nil, t.unusable(err)
	}
	if data == nil {
		return nil, nil
	}
	dirs, err := decodeTrusted(data)
	if err != nil {
		return nil, t.unusable(err)
	}
	refused := t.refused()
	return slices.DeleteFunc(dirs, func(dir string) bool { return refused.why(dir) != "" }), nil
}

func decodeTrusted(data []byte) ([]string, error) {
	var list trusted
	if len(data) > maxTrustFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxTrustFile)
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if len(list.Directories) > maxTrusted {
		return nil, fmt.Errorf("it has more than %d directories", maxTrusted)
	}
	for i, dir := range list.Directories { // a person may have ended it with a separator
		if clean := filepath.Clean(dir); dir == clean+string(filepath.Separator) {
			list.Directories[i] = clean
		}
	}
	dirs := slices.DeleteFunc(list.Directories, func(dir string) bool { return !filepath.IsAbs(dir) || filepath.Clean(dir) != dir })
	slices.Sort(dirs)
	return slices.Compact(dirs), nil
}

var errDamaged = errors.New("it is not the JSON object that parley trust writes")

func (t *Trust) unusable(err error) *TrustError {
	reason := local.Reason(err)
	if errors.Is(err, errDamaged) {
		reason = errDamaged.Error()
	}
	e := &TrustError{Code: TrustUnusable, Message: "the list of trusted directories " + t.File() + " cannot be used: " + reason,
		Remedy: "correct the file, or remove it and trust the directories again", Err: err}
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.Remedy = "change the permissions of the file and its directory"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errWrite):
		e.Remedy = "make room or let your user write in " + t.dataDir + ", or name another data directory with --data-dir"
	}
	return e
}

// errWrite is in the chain of an error of writing the list.
var errWrite = errors.New("the list cannot be written")

// Check returns the absolute path of a directory without symbolic links, or the reason why it cannot be trusted.
func (t *Trust) Check(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", &TrustError{Code: TrustNoDir, Subject: dir, Message: "the current directory no longer exists", Remedy: "change to another directory", Err: err}
	}
	real, err := filepath.EvalSymlinks(abs)
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(real); err == nil && !info.IsDir() {
			err = local.ErrNotDir
		}
	}
	if err == nil {
		_, err = os.Stat(real + string(filepath.Separator) + ".") // whether it can be entered
	}
	switch {
	case errors.Is(err, local.ErrNotDir):
		return "", &TrustError{Code: TrustNoDir, Subject: abs, Message: abs + " is not a directory", Remedy: "name a directory", Err: err}
	case errors.Is(err, fs.ErrNotExist):
		return "", &TrustError{Code: TrustNoDir, Subject: abs, Message: abs + " does not exist", Remedy: "name a directory that exists", Err: err}
	case err != nil:
		return "", &TrustError{Code: TrustNoDir, Subject: abs, Message: abs + " cannot be opened: " + local.Reason(err), Remedy: "name another directory, or change its permissions", Err: err}
	}
	if why := t.Refusal(real); why != "" {
		return "", &TrustError{Code: TrustRefused, Subject: real, Message: "agents may not work in " + real + ": " + why,
			Remedy: "name the directory of one project"}
	}
	if !utf8.ValidString(real) {
		return "", &TrustError{Code: TrustRefused, Subject: real, Message: fmt.Sprintf("agents may not work in %q: the name is not valid UTF-8", real), Remedy: "rename the directory"}
	}
	return real, nil
}

// Refusal returns why a directory without symbolic links is never trusted, "" for one that may be.
func (t *Trust) Refusal(dir string) string {
	refused := t.refused()
	if why := refused.why(dir); why != "" {
		return why
	}
	// The same directory may have several names, where letters count as equal in upper and lower case for instance.
	info, err := os.Stat(dir)
	for _, home := range refused.homes {
		for above := home; err == nil && filepath.Dir(above) != above; above = filepath.Dir(above) {
			if other, err := os.Stat(above); err == nil && os.SameFile(info, other) {
				return "it is or contains your home directory, with everything that is yours"
			}
		}
	}
	return ""
}

// refused are the directories that may not be trusted.
type refused struct {
	homes []string // of the user: that of the environment and that of the system's list of users
	data  string   // the hub's data directory
}

func (t *Trust) refused() refused {
	r := refused{data: realPath(t.dataDir)}
	home, err := os.UserHomeDir()
	if err == nil && filepath.IsAbs(home) {
		r.homes = append(r.homes, realPath(home))
	}
	if u, err := user.Current(); err == nil && filepath.IsAbs(u.HomeDir) {
		r.homes = append(r.homes, realPath(u.HomeDir))
	}
	return r
}

// why returns why a directory without symbolic links is refused, "" if it is not.
func (r refused) why(dir string) string {
	contains := func(home string) bool { return below(home, dir) }
	switch {
	case filepath.Dir(dir) == dir:
		return "it is the root of all files"
	case slices.Contains(r.homes, dir):
		return "it is your home directory, with everything that is yours"
	case slices.ContainsFunc(r.homes, contains):
		return "it contains your home directory, with everything that is yours"
	case below(dir, r.data):
		return "it is the hub's own data directory"
	case slices.ContainsFunc(systemDirs, func(system string) bool { return dir == system || dir == realPath(system) }):
		return "it belongs to the system"
	case slices.ContainsFunc(systemTrees, func(system string) bool { return below(dir, realPath(system)) }):
		return "it belongs to the system"
	}
	return ""
}

// systemDirs are directories of the system that hold those of users or of projects further down: only they are refused.
// Where the system does not have one, its name means nothing.
var systemDirs = []string{
	"/home", "/mnt", "/media", "/opt", "/private", "/root", "/run", "/srv", "/tmp", "/usr", "/var", "/var/cache", "/var/lib", "/var/log",
	"/var/spool", "/var/tmp", "/Users", "/Volumes",
	`C:\Users`, `C:\ProgramData`,
}

// systemTrees are directories that are the system's with all that is below them.
var systemTrees = []string{
	"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys",
	"/usr/bin", "/usr/include", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/sbin", "/usr/share",
	"/Applications", "/Library", "/System", `C:\Windows`, `C:\Program Files`, `C:\Program Files (x86)`,
}

// below reports whether a path without symbolic links is root or below it.
func below(path, root string) bool {
	rel, err := filepath.Rel(root, path)
	return err == nil && filepath.IsLocal(rel)
}

// Owns reports whether a directory is one of the hub's own, in which agents may work without trust.
func (t *Trust) Owns(dir string) bool {
	return slices.ContainsFunc(runner.OwnDirs(), func(name string) bool {
		root := filepath.Join(t.dataDir, name)
		return within(dir, root) && realPath(dir) != realPath(root)
	})
}

// Add trusts a directory and everything below it from now on. It returns the directory's path without symbolic links,
// and whether the list has changed.
func (t *Trust) Add(ctx context.Context, dir string) (path string, changed bool, err error) {
	if path, err = t.Check(dir); err != nil {
		return "", false, err
	}
	err = t.change(ctx, func(dirs []string) ([]string, error) {
		at, found := slices.BinarySearch(dirs, path)
		if found {
			return nil, nil
		}
		if len(dirs) >= maxTrusted {
			return nil, &TrustError{Code: TrustFull, Subject: path, Message: fmt.Sprintf("%d directories are trusted, which is the most", maxTrusted),
				Remedy: "remove one, or trust a directory above several"}
		}
		changed = true
		return slices.Insert(dirs, at, path), nil
	})
	return path, changed, err
}

// Remove ends the trust in a directory, which need not exist any more. It returns the path that was looked for, and
// whether the list has changed. A directory below another trusted one remains trusted with it.
func (t *Trust) Remove(ctx context.Context, dir string) (path string, changed bool, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", false, &TrustError{Code: TrustNoDir, Subject: dir, Message: "the current directory no longer exists", Remedy: "name the directory by its absolute path", Err: err}
	}
	path = realPath(abs)
	err = t.change(ctx, func(dirs []string) ([]string, error) {
		rest := slices.DeleteFunc(append([]string{}, dirs...), func(have string) bool { return have == path || have == abs })
		changed = len(rest) < len(dirs)
		if !changed {
			return nil, nil
		}
		return rest, nil
	})
	return path, changed, err
}

// Covers reports whether a directory without symbolic links is trusted, by itself or with one above it.
func (t *Trust) Covers(dir string) (bool, error) {
	dirs, err := t.Dirs()
	return slices.ContainsFunc(dirs, func(root string) bool { return below(dir, root) }), err
}

// change replaces the list by what edit returns; nil leaves it. It holds the list's lock.
func (t *Trust) change(ctx context.Context, edit func([]string) ([]string, error)) error {
	if err := os.MkdirAll(t.dataDir, 0o700); err != nil {
		return t.unusable(fmt.Errorf("%w: %w", errWrite, err))
	}
	lock := flock.New(t.lock(), flock.SetPermissions(0o600))
	ctx, cancel := context.WithTimeout(ctx, trustTimeout)
	defer cancel()
	if ok, err := lock.TryLockContext(ctx, trustRetry); !ok {
		if ctx.Err() != nil {
			return &TrustError{Code: TrustUnusable, Message: "another process is changing the list of trusted directories " + t.File(), Remedy: "try again", Err: err}
		}
		return t.unusable(fmt.Errorf("%w: %w", errWrite, err))
	}
	defer lock.Close()
	dirs, err := t.decode(t.file().Read())
	if err != nil {
		return err
	}
	next, err := edit(dirs)
	if err != nil || next == nil {
		return err
	}
	if err := t.write(next); err != nil {
		return t.unusable(fmt.Errorf("%w: %w", errWrite, err))
	}
	return nil
}

// write replaces the file atomically and durably.
func (t *Trust) write(dirs []string) error {
	data, err := json.MarshalIndent(trusted{dirs}, "", "  ")
	if err != nil {
		return err
	}
	return t.file().Write(append(data, '\n'))
}
