package hub

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
)

// GitTrace is what a turn changed in the git repository of its directory.
type GitTrace struct {
	Branch string `json:"branch,omitzero"` // at the end; "" if no branch is checked out
	Before string `json:"before,omitzero"` // the commit at the begin, "" if there was none
	After  string `json:"after,omitzero"`  // the commit at the end
	// Files are the files whose content has changed, committed or not, by path. The lines of a file that differed from
	// the commit already when the turn began are compared as sets. New files count with their lines, unless they are large.
	Files     []FileChange `json:"files,omitzero"`
	MoreFiles int          `json:"moreFiles,omitzero"` // that are not listed
	Added     int          `json:"added"`              // lines in all files
	Deleted   int          `json:"deleted"`
	Problem   string       `json:"problem,omitzero"` // why the changes are unknown or incomplete
}

// FileChange is one file of a diffstat.
type FileChange struct {
	Path    string `json:"path"` // below the repository's root
	Added   int    `json:"added"`
	Deleted int    `json:"deleted"`
	Binary  bool   `json:"binary,omitzero"`
	New     bool   `json:"new,omitzero"` // not known to git
}

const (
	// beforeTimeout and afterTimeout bound the look at a repository at the begin and the end of a turn. The agent starts
	// after beforePause in any case.
	beforeTimeout = 5 * time.Second
	beforePause   = 300 * time.Millisecond
	afterTimeout  = 2 * time.Second
	gitWaitDelay  = 100 * time.Millisecond // after git was killed

	maxGitOutput  = 4 << 20
	maxTraceFiles = 200     // of a diffstat
	maxNewFiles   = 1000    // that git does not know
	maxCounted    = 1 << 20 // bytes of a file whose lines are counted
	maxRead       = 8 << 20 // bytes of all files whose lines are counted in one look
)

// changes looks at the repository of a turn's directory.
type changes struct {
	top    string // the repository's root
	before gitState
	err    error
	ready  chan struct{} // closed when before and err are known
	cancel context.CancelFunc
	late   bool // the agent started before that
}

// gitState is a repository at one time. files are those that differ from the commit of the begin.
type gitState struct {
	head, branch string
	base         string                // the commit or tree that files are compared with
	files        map[string]FileChange // by the name that git says, which need not be UTF-8
	contents     map[string]content    // of files, at the begin
	more         bool                  // there are more new files than maxNewFiles
}

// watchChanges begins to read the repository that dir is in; nil if it is in none, or the repository is above stop.
// It blocks for at most beforePause. The caller calls end.
func watchChanges(ctx context.Context, dir, stop string) *changes {
	top := repositoryOf(dir, stop)
	if top == "" {
		return nil
	}
	c := &changes{top: top, ready: make(chan struct{})}
	ctx, c.cancel = context.WithTimeout(ctx, beforeTimeout)
	go func() {
		defer close(c.ready)
		c.before, c.err = readGit(ctx, top, "")
		if c.err == nil {
			c.before.contents, c.err = readContents(ctx, top, slices.Collect(maps.Keys(c.before.files)))
		}
	}()
	select {
	case <-c.ready:
	case <-time.After(beforePause):
		c.late = true
	}
	return c
}

// end returns what has changed. It blocks for at most about afterTimeout.
func (c *changes) end(ctx context.Context) *GitTrace {
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, afterTimeout)
	defer cancel()
	select {
	case <-c.ready:
	case <-ctx.Done():
	}
	c.cancel()
	<-c.ready
	if c.err != nil {
		return &GitTrace{Before: c.before.head, Problem: gitProblem(c.err)}
	}
	after, err := readGit(ctx, c.top, c.before.base)
	g := &GitTrace{Before: c.before.head, After: after.head, Branch: after.branch}
	if err == nil {
		err = c.compare(ctx, g, after)
	}
	switch {
	case err != nil:
		g.Problem = gitProblem(err)
	case c.late:
		g.Problem = "git was slow when the turn began: what the agent changed at once may be missing"
	case c.before.more || after.more:
		g.Problem = fmt.Sprintf("there are more than %d files that git does not know: changes in some may be missing", maxNewFiles)
	}
	return g
}

// compare adds the files that have changed. A file that was as committed when the turn began differs as git says; the
// others are compared with what they were.
func (c *changes) compare(ctx context.Context, g *GitTrace, after gitState) error {
	contents, err := readContents(ctx, c.top, slices.Collect(maps.Keys(c.before.files)))
	if err != nil {
		return err
	}
	all := maps.Clone(c.before.files)
	maps.Copy(all, after.files)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		f := after.files[path]
		if was, changed := c.before.files[path]; changed {
			before, now := c.before.contents[path], contents[path]
			if before.same(now) {
				continue
			}
			f = difference(was, f)
			if before.counted() && now.counted() {
				f.Added, f.Deleted = now.linesBeyond(before), before.linesBeyond(now)
			}
		}
		g.Added, g.Deleted = g.Added+f.Added, g.Deleted+f.Deleted
		if len(g.Files) < maxTraceFiles {
			g.Files = append(g.Files, f)
		} else {
			g.MoreFiles++
		}
	}
	return nil
}

// difference returns the difference of two differences from the same commit.
func difference(before, after FileChange) FileChange {
	added, deleted := after.Added-before.Added, after.Deleted-before.Deleted
	return FileChange{
		Path: cmp.Or(after.Path, before.Path), Binary: after.Binary || before.Binary, New: after.New,
		Added: max(added, 0) + max(-deleted, 0), Deleted: max(deleted, 0) + max(-added, 0),
	}
}

func gitProblem(err error) string {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return "git did not answer in time"
	}
	if errors.Is(err, exec.ErrNotFound) {
		return "git is not installed"
	}
	return text.OneLine(err.Error())
}

// repositoryOf returns the nearest directory from dir up that has a ".git", without looking above stop; "" if there
// is none.
func repositoryOf(dir, stop string) string {
	for {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if dir == stop || parent == dir {
			return ""
		}
		dir = parent
	}
}

// readGit reads the state of a repository, whose configuration is not trusted: no hook, filter, monitor, pager or
// external diff of it runs. base is the commit to compare with, "" for the current one.
func readGit(ctx context.Context, top, base string) (s gitState, err error) {
	g := untrustedRepository{top: top}
	if got, err := g.run(ctx, "rev-parse", "--show-toplevel"); err != nil || filepath.Clean(filepath.FromSlash(got)) != top {
		return s, fmt.Errorf("the repository of %s cannot be used: %w", top, cmp.Or(err, errOtherRoot))
	}
	if s.head, err = g.run(ctx, "rev-parse", "--verify", "--quiet", "HEAD"); err != nil {
		s.head = "" // no commit yet
	}
	if s.branch, err = g.run(ctx, "symbolic-ref", "--quiet", "--short", "HEAD"); err != nil {
		s.branch = ""
	}
	if err := ctx.Err(); err != nil {
		return s, err
	}
	if g.filters, err = g.localFilters(ctx); err != nil {
		return s, err
	}
	s.files = map[string]FileChange{}
	if s.base = cmp.Or(base, s.head); s.base == "" {
		if s.base, err = g.run(ctx, "hash-object", "-t", "tree", os.DevNull); err != nil { // the empty tree
			return s, err
		}
	}
	out, err := g.run(ctx, "diff", "--numstat", "-z", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color",
		"--ignore-submodules=all", s.base, "--")
	if err != nil {
		return s, err
	}
	s.numstat(out)
	out, err = g.run(ctx, "ls-files", "--others", "--exclude-standard", "-z")
	if err != nil {
		return s, err
	}
	return s, s.untracked(ctx, top, out)
}

var errOtherRoot = errors.New("its root is another directory")

// numstat reads the output of git diff --numstat -z.
func (s *gitState) numstat(out string) {
	for entry := range strings.SplitSeq(out, "\x00") {
		f := strings.SplitN(entry, "\t", 3)
		if len(f) != 3 {
			continue
		}
		added, err1 := strconv.Atoi(f[0])
		deleted, err2 := strconv.Atoi(f[1])
		s.files[f[2]] = FileChange{Path: strings.ToValidUTF8(f[2], "\uFFFD"), Added: added, Deleted: deleted, Binary: err1 != nil || err2 != nil}
	}
}

// untracked adds the files that git does not know.
func (s *gitState) untracked(ctx context.Context, top, out string) error {
	root, err := os.OpenRoot(top)
	if err != nil {
		return err
	}
	defer root.Close()
	n, budget := 0, int64(maxRead)
	for name := range strings.SplitSeq(out, "\x00") {
		if name == "" || strings.HasSuffix(name, "/") { // another repository within this one
			continue
		}
		if n++; n > maxNewFiles || ctx.Err() != nil {
			s.more = true
			break
		}
		c := readContent(root, name, &budget)
		s.files[name] = FileChange{Path: strings.ToValidUTF8(name, "\uFFFD"), Added: c.count(), Binary: c.binary, New: true}
	}
	return ctx.Err()
}

// content is what a file has at one time: the zero value is no file.
type content struct {
	id     string // differs when the content does: a digest; of a large file, its size and time
	lines  map[uint64]int
	binary bool
}

func (c content) same(other content) bool { return c.id == other.id }

// counted reports whether the lines are known; those of no file are.
func (c content) counted() bool { return c.lines != nil || c.id == "" }

// linesBeyond returns how many lines are not in other.
func (c content) linesBeyond(other content) (n int) {
	for line, times := range c.lines {
		n += max(times-other.lines[line], 0)
	}
	return n
}

func (c content) count() (n int) {
	for _, times := range c.lines {
		n += times
	}
	return n
}

// readContents reads files below top. A file that cannot be read is none.
func readContents(ctx context.Context, top string, paths []string) (map[string]content, error) {
	root, err := os.OpenRoot(top)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	budget := int64(maxRead)
	all := make(map[string]content, len(paths))
	for _, path := range slices.Sorted(slices.Values(paths)) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		all[path] = readContent(root, path, &budget)
	}
	return all, nil
}

var lineSeed = maphash.MakeSeed()

// readOnly opens a file for reading. A pipe is opened at once, without its writer; Windows has none in directories.
func readOnly() int {
	if runtime.GOOS == "windows" {
		return os.O_RDONLY
	}
	return os.O_RDONLY | syscall.O_NONBLOCK
}

// readContent reads a file, which is not followed if it is a link. It counts the lines of a small text, as long as
// budget, in bytes, lasts.
func readContent(root *os.Root, path string, budget *int64) content {
	name := filepath.FromSlash(path)
	info, err := root.Lstat(name)
	if err != nil {
		return content{}
	}
	if !info.Mode().IsRegular() {
		target, _ := root.Readlink(name) // "" of anything else
		return content{id: info.Mode().String() + target, binary: true}
	}
	large := content{id: fmt.Sprint(info.Mode(), info.Size(), info.ModTime().UnixNano())}
	if info.Size() > min(maxCounted, *budget) {
		return large
	}
	f, err := root.OpenFile(name, readOnly(), 0)
	if err != nil {
		return large
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() { // it has become a pipe meanwhile
		return large
	}
	data, err := io.ReadAll(io.LimitReader(f, maxCounted))
	if err != nil {
		return large
	}
	*budget -= int64(len(data))
	c := content{id: fmt.Sprintf("%v%x", info.Mode(), sha256.Sum256(data)), binary: bytes.IndexByte(data, 0) >= 0}
	if c.binary {
		return c
	}
	c.lines = map[uint64]int{}
	for line := range bytes.Lines(data) {
		c.lines[maphash.Bytes(lineSeed, bytes.TrimSuffix(line, []byte("\n")))]++
	}
	return c
}

// untrustedRepository runs git in a repository whose configuration anybody may have written.
type untrustedRepository struct {
	top     string
	filters []string // arguments that turn off the filters of the repository's own configuration
}

func (g untrustedRepository) run(ctx context.Context, args ...string) (string, error) {
	safe := slices.Concat([]string{
		"-c", "core.fsmonitor=false", "-c", "core.hooksPath=" + os.DevNull, "-c", "core.pager=cat",
		"-c", "submodule.recurse=false", "-c", "core.quotePath=false",
	}, g.filters, args)
	return runGit(ctx, g.top, maxGitOutput, gitWaitDelay, map[string]string{"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_PAGER": "cat"}, safe...)
}

// localFilters returns the arguments that turn off the filters that the repository itself defines: git diff would run
// their programs. Those of the user's own configuration stay.
func (g untrustedRepository) localFilters(ctx context.Context) ([]string, error) {
	out, err := g.run(ctx, "config", "--show-scope", "--includes", "-z", "--name-only", "--get-regexp", `^filter\.`)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
		return nil, nil // there are none
	}
	if err != nil {
		return nil, err
	}
	var args []string
	fields := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i] == "global" || fields[i] == "system" {
			continue
		}
		key := fields[i+1]
		section := key[:max(strings.LastIndexByte(key, '.'), 0)]
		if strings.ContainsAny(section, "=\n") {
			return nil, errors.New("the repository's configuration has a filter with an unusual name")
		}
		args = append(args, "-c", section+".clean=", "-c", section+".smudge=", "-c", section+".process=", "-c", section+".required=false")
	}
	return args, nil
}

var errGitOutput = errors.New("git lists too many files")

// capped keeps at most max bytes. It fails for more, with the error over, or ignores them.
type capped struct {
	kept bytes.Buffer
	max  int
	over error
}

func (c *capped) Write(p []byte) (int, error) {
	if c.kept.Len()+len(p) <= c.max {
		return c.kept.Write(p)
	}
	if c.over != nil {
		return 0, c.over
	}
	return len(p), nil
}

// runGit runs git in a directory and returns its output without the last line end. git gets the environment of an
// agent, since the hub's GIT_* variables could redirect it, and env. It returns at most waitDelay after ctx has ended.
func runGit(ctx context.Context, dir string, maxOutput int, waitDelay time.Duration, env map[string]string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
	set := map[string]string{"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
	maps.Copy(set, env)
	cmd.Env = process.Environ(os.Environ(), nil, set)
	cmd.WaitDelay = waitDelay
	out, stderr := &capped{max: maxOutput, over: errGitOutput}, &capped{max: 4 << 10}
	cmd.Stdout, cmd.Stderr = out, stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fmt.Errorf("git %s: %w: %s", gitCommandName(args), err, strings.TrimSpace(stderr.kept.String()))
	}
	return strings.TrimSuffix(out.kept.String(), "\n"), nil
}

// gitCommandName returns the name of the git command after its options.
func gitCommandName(args []string) string {
	for len(args) > 1 && args[0] == "-c" {
		args = args[2:]
	}
	return args[0]
}
