package hub

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
)

// GitTrace is what a turn changed in the git repository of its directory.
type GitTrace struct {
	Branch string `json:"branch,omitzero"` // at the end; "" if no branch is checked out
	Before string `json:"before,omitzero"` // the commit at the begin, "" if there was none
	After  string `json:"after,omitzero"`  // the commit at the end
	// Files are the files that differ, committed or not, by path. Lines that were changed already when the turn began do not
	// count. New files count with their lines, unless they are large.
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

	maxGitOutput  = 4 << 20
	maxTraceFiles = 200     // of a diffstat
	maxNewFiles   = 1000    // that git does not know
	maxCounted    = 1 << 20 // bytes of a new file whose lines are counted
)

// changes looks at the repository of a turn's directory.
type changes struct {
	top    string // the repository's root
	before gitState
	err    error
	ready  chan struct{} // closed when before and err are known
}

// gitState is a repository at one time. files are those that differ from the commit of the begin.
type gitState struct {
	head, branch string
	base         string // the commit or tree that files are compared with
	files        map[string]FileChange
}

// watchChanges begins to read the repository that dir is in; nil if it is in none, or the repository is above stop.
// It blocks for at most beforePause.
func watchChanges(ctx context.Context, dir, stop string) *changes {
	top := repositoryOf(dir, stop)
	if top == "" {
		return nil
	}
	c := &changes{top: top, ready: make(chan struct{})}
	go func() {
		defer close(c.ready)
		ctx, cancel := context.WithTimeout(ctx, beforeTimeout)
		defer cancel()
		c.before, c.err = readGit(ctx, top, "")
	}()
	select {
	case <-c.ready:
	case <-time.After(beforePause):
	}
	return c
}

// end returns what has changed. It blocks for at most beforeTimeout and afterTimeout.
func (c *changes) end(ctx context.Context) *GitTrace {
	if c == nil {
		return nil
	}
	<-c.ready
	if c.err != nil {
		return &GitTrace{Before: c.before.head, Problem: gitProblem(c.err)}
	}
	ctx, cancel := context.WithTimeout(ctx, afterTimeout)
	defer cancel()
	after, err := readGit(ctx, c.top, c.before.base)
	g := &GitTrace{Before: c.before.head, After: after.head, Branch: after.branch}
	if err != nil {
		g.Problem = gitProblem(err)
		return g
	}
	for _, path := range slices.Sorted(maps.Keys(merged(c.before.files, after.files))) {
		was, known := c.before.files[path]
		is, still := after.files[path]
		if known && still && was.Added == is.Added && was.Deleted == is.Deleted && was.Binary == is.Binary {
			continue
		}
		f := fileChange(path, was, is)
		g.Added, g.Deleted = g.Added+f.Added, g.Deleted+f.Deleted
		if len(g.Files) < maxTraceFiles {
			g.Files = append(g.Files, f)
		} else {
			g.MoreFiles++
		}
	}
	return g
}

func merged(a, b map[string]FileChange) map[string]FileChange {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// fileChange returns the difference of two differences from the same commit.
func fileChange(path string, before, after FileChange) FileChange {
	added, deleted := after.Added-before.Added, after.Deleted-before.Deleted
	return FileChange{
		Path: path, Binary: after.Binary || before.Binary, New: after.New,
		Added: max(added, 0) + max(-deleted, 0), Deleted: max(deleted, 0) + max(-added, 0),
	}
}

func gitProblem(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "git did not answer in time"
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
// external diff of it runs. base is the commit to compare
// with, "" for the current one.
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
		path := strings.ToValidUTF8(f[2], "\uFFFD")
		s.files[path] = FileChange{Path: path, Added: added, Deleted: deleted, Binary: err1 != nil || err2 != nil}
	}
}

// untracked adds the files that git does not know.
func (s *gitState) untracked(ctx context.Context, top, out string) error {
	root, err := os.OpenRoot(top)
	if err != nil {
		return err
	}
	defer root.Close()
	n := 0
	for name := range strings.SplitSeq(out, "\x00") {
		if name == "" || strings.HasSuffix(name, "/") { // another repository within this one
			continue
		}
		if n++; n > maxNewFiles || ctx.Err() != nil {
			break
		}
		path := strings.ToValidUTF8(name, "\uFFFD")
		lines, binary := countLines(root, name)
		s.files[path] = FileChange{Path: path, Added: lines, Binary: binary, New: true}
	}
	return ctx.Err()
}

// countLines returns the number of a small text's lines, 0 for any other file. Links are not followed out of root.
func countLines(root *os.Root, name string) (lines int, binary bool) {
	info, err := root.Lstat(filepath.FromSlash(name))
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxCounted {
		return 0, false
	}
	data, err := fs.ReadFile(root.FS(), name)
	if err != nil || bytes.IndexByte(data, 0) >= 0 {
		return 0, err == nil
	}
	lines = bytes.Count(data, []byte("\n"))
	if len(data) > 0 && data[len(data)-1] != '\n' {
		lines++
	}
	return lines, false
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
	return runGit(ctx, g.top, maxGitOutput, map[string]string{"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_PAGER": "cat"}, safe...)
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
// agent, since the hub's GIT_* variables could redirect it, and env.
func runGit(ctx context.Context, dir string, maxOutput int, env map[string]string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
	set := map[string]string{"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
	maps.Copy(set, env)
	cmd.Env = process.Environ(os.Environ(), nil, set)
	cmd.WaitDelay = process.DefaultWaitDelay
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
