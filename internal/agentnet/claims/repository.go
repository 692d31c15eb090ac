package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/text"
)

// The limits of a path.
const (
	MaxPath  = 512  // bytes below the top of the work tree
	maxInput = 4096 // bytes of a path as it is given
	maxNames = 200  // names of a path
	maxLinks = 40   // symbolic links that have no target
)

// Repository identifies the files that agents share: those of a git repository, with all its work trees, or of a directory.
// Host, path of the repository, and path of the work tree are in it as digests only.
type Repository struct {
	Key  string // of the repository on this host
	Name string // the name of its directory
	Tree string // of one work tree
	top  string // the real path of the work tree
}

// Target is a file to be changed.
type Target struct {
	Repository string `json:"repository"` // the key
	Tree       string `json:"tree"`
	Path       string `json:"path"` // below the top of the work tree, with slashes
}

// String encodes a target for [ParseTarget].
func (t Target) String() string { return t.Repository + " " + t.Tree + " " + t.Path }

// ParseTarget decodes a target, and checks it.
func ParseTarget(s string) (Target, error) {
	parts := strings.SplitN(s, " ", 3)
	if len(parts) != 3 || !isKey(parts[0]) || !isKey(parts[1]) {
		return Target{}, store.Invalid("%s names no file.", store.Quote(s))
	}
	return Target{parts[0], parts[1], parts[2]}, checkPath(parts[2])
}

// isKey reports whether a text may be a repository's or a work tree's key: it becomes part of a subject.
func isKey(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == ""
}

// Find returns the repository of a directory that exists: the git repository, or the directory itself.
func Find(host, dir string) (Repository, error) {
	real, err := resolve(dir)
	if err != nil {
		return Repository{}, err
	}
	if r, ok := gitRepository(host, real); ok {
		return r, nil
	}
	return directory(host, real), nil
}

func directory(host, top string) Repository {
	key := store.Digest("directory", host, fold(top))
	return Repository{Key: key, Name: filepath.Base(top), Tree: key, top: top}
}

// gitRepository returns the git repository that a real path is in.
func gitRepository(host, path string) (r Repository, ok bool) {
	for dir := path; ; {
		if common, ok := commonDir(filepath.Join(dir, ".git")); ok {
			name := filepath.Base(common)
			if name == ".git" {
				name = filepath.Base(filepath.Dir(common))
			}
			return Repository{Key: store.Digest("git", host, fold(common)), Name: name, Tree: store.Digest("tree", host, fold(dir)), top: dir}, true
		}
		up := filepath.Dir(dir)
		if up == dir {
			return Repository{}, false
		}
		dir = up
	}
}

// commonDir returns the real path of the directory that all work trees of a repository share. dotGit is the .git of one of them.
func commonDir(dotGit string) (dir string, ok bool) {
	info, err := os.Stat(dotGit)
	if err != nil {
		return "", false
	}
	dir = dotGit
	if !info.IsDir() {
		line, ok := readLine(dotGit)
		target, found := strings.CutPrefix(line, "gitdir:")
		if !ok || !found {
			return "", false
		}
		dir = within(filepath.Dir(dotGit), strings.TrimSpace(target))
	}
	if common, ok := readLine(filepath.Join(dir, "commondir")); ok {
		dir = within(dir, common)
	}
	if _, err := os.Stat(filepath.Join(dir, "HEAD")); err != nil {
		return "", false
	}
	dir, err = filepath.EvalSymlinks(dir)
	return dir, err == nil
}

// within returns a path that may be relative to a directory.
func within(dir, path string) string {
	path = filepath.FromSlash(path)
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// readLine returns the first line of a small file.
func readLine(path string) (line string, ok bool) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxInput {
		return "", false
	}
	data, err := os.ReadFile(path)
	line, _, _ = strings.Cut(string(data), "\n")
	return strings.TrimSpace(line), err == nil && strings.TrimSpace(line) != ""
}

// resolve returns the real path of an absolute path: symbolic links are followed as the system does when it writes the file,
// also those whose target does not exist yet.
func resolve(path string) (string, error) {
	if err := checkPath(path); err != nil {
		return "", err
	}
	if !filepath.IsAbs(path) {
		return "", store.Invalid("The path %s is not absolute.", store.Quote(path)).WithRemedy("Use an absolute path.")
	}
	real, err := follow(path, maxLinks)
	if err != nil {
		return "", &store.Error{Code: store.ValidationError, Message: fmt.Sprintf("The path %s cannot be used.", store.Quote(path)),
			Remedy: "Check the path, and that you may read its directory.", Err: err}
	}
	return real, nil
}

func follow(path string, links int) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	if target, linkErr := os.Readlink(path); linkErr == nil {
		if links == 0 {
			return "", err
		}
		if !filepath.IsAbs(target) {
			target = filepath.Dir(path) + string(filepath.Separator) + target // not cleaned: .. is that of the real directory
		}
		return follow(target, links-1)
	}
	path = strings.TrimRight(path, string(filepath.Separator))
	dir, last := filepath.Split(path)
	if last == ".." || dir == "" || dir == path {
		return "", err
	}
	if dir, err = follow(dir, links); err != nil {
		return "", err
	}
	return filepath.Join(dir, last), nil
}

func checkPath(path string) error {
	switch {
	case path == "":
		return store.Invalid("A path is empty.").WithRemedy("Name a file, a directory or a pattern, such as src/**/*.go.")
	case len(path) > maxInput || strings.Count(filepath.ToSlash(path), "/") > maxNames:
		return store.Invalid("The path %s is too long.", store.Quote(path)).WithRemedy("Use at most %d bytes and %d directories.", MaxPath, maxNames)
	case !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl):
		return store.Invalid("The path %s has characters that no path may have here.", store.Quote(path)).WithRemedy("Use printable characters.")
	}
	return nil
}

// Locate returns where the claims of a file can be: one Target for a file in a git repository, otherwise one for each directory
// above it. path is absolute.
func Locate(host, path string) ([]Target, error) {
	real, err := resolve(path)
	if err != nil {
		return nil, err
	}
	if r, ok := gitRepository(host, filepath.Dir(real)); ok {
		return []Target{r.target(real)}, nil
	}
	var all []Target
	for dir := filepath.Dir(real); ; {
		all = append(all, directory(host, dir).target(real))
		up := filepath.Dir(dir)
		if up == dir {
			return all, nil
		}
		dir = up
	}
}

// LocateAll returns what [Locate] finds for files of this computer, each target once. What cannot be a file's path is left
// out, and after the end of ctx the rest.
func LocateAll(ctx context.Context, files []string) (all []Target) {
	host, err := os.Hostname()
	if err != nil {
		return nil
	}
	known := make(map[Target]bool)
	for _, path := range files {
		if ctx.Err() != nil {
			break
		}
		found, err := Locate(host, path)
		if err != nil {
			continue
		}
		for _, t := range found {
			if !known[t] {
				known[t] = true
				all = append(all, t)
			}
		}
	}
	return all
}

func (r Repository) target(real string) Target { return Target{r.Key, r.Tree, r.below(real)} }

// below returns the path of a file below the top of the work tree.
func (r Repository) below(real string) string {
	rel, err := filepath.Rel(r.top, real)
	if err != nil {
		return "" // cannot be: both are real paths, one above the other
	}
	return filepath.ToSlash(rel)
}

// pattern returns the pattern of a path or pattern that an agent names, relative to base, and the work tree that it is in.
func (r Repository) pattern(host, base, given string) (pattern string, in Repository, err error) {
	if err := checkPath(given); err != nil {
		return "", in, err
	}
	path := filepath.FromSlash(given)
	if !filepath.IsAbs(path) {
		path = strings.TrimRight(base, string(filepath.Separator)) + string(filepath.Separator) + path
	}
	fixed, rest := splitPattern(path)
	real, err := resolve(fixed)
	if err != nil {
		return "", in, err
	}
	info, statErr := os.Stat(real)
	isDir := statErr == nil && info.IsDir()
	in, found := gitRepository(host, real)
	if !found {
		in = r
	}
	pattern = in.below(real)
	if in.Key != r.Key || pattern == ".." || strings.HasPrefix(pattern, "../") || filepath.IsAbs(filepath.FromSlash(pattern)) {
		return "", in, store.Invalid("%s is not in the repository %s of your project.", store.Quote(given), store.Quote(r.Name)).
			WithRemedy("Claim files of your project only.")
	}
	if pattern == "." {
		pattern = ""
	}
	if rest == "" && (isDir || strings.HasSuffix(given, "/")) {
		rest = "**"
	}
	pattern = strings.Trim(pattern+"/"+rest, "/")
	if err := checkPattern(pattern); err != nil {
		return "", in, err
	}
	return pattern, in, nil
}

// splitPattern splits a path before its first name with a wildcard.
func splitPattern(path string) (fixed, rest string) {
	at := strings.IndexAny(path, wildcards)
	if at < 0 {
		return path, ""
	}
	at = strings.LastIndexByte(path[:at], filepath.Separator) + 1
	return cmp.Or(path[:at], "."), filepath.ToSlash(path[at:])
}

// checkPattern refuses what no work tree can have. It is also for the patterns of other programs.
func checkPattern(pattern string) error {
	if err := checkPath(pattern); err != nil {
		return err
	}
	if len(pattern) > MaxPath {
		return store.Invalid("The path %s is too long.", store.Quote(pattern)).WithRemedy("Use at most %d bytes.", MaxPath)
	}
	for part := range strings.SplitSeq(pattern, "/") {
		if part == "" || part == "." || part == ".." {
			return store.Invalid("The pattern %s has an empty name, . or .. in it.", store.Quote(pattern)).WithRemedy("Leave it out.")
		}
	}
	return nil
}

// clean returns a text of one line without control and formatting characters, of at most n bytes.
func clean(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	return text.Valid(text.OneLine(s), n)
}
