// Package workdir makes and removes the directories that agents work in.
//
// There are three policies. [Context]: a directory of the conversation's own,
// shared by the agents that take part in it, removed with it. [Fixed]: a
// directory of the user's, never changed. [Worktree]: a git worktree of the
// user's repository for each agent and conversation, on a branch of its own, so
// that agents do not get into each other's way and no commit is lost.
//
// Fixed directories and repositories must lie below the roots that the
// configuration allows, whatever symbolic links lead there: it is looked at every
// time, not only when the configuration is read.
package workdir

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/hub/process"
)

// The policies.
const (
	Context  = "context"
	Fixed    = "fixed"
	Worktree = "worktree"
)

// The errors of this package, to be told apart with errors.Is. Their texts are
// fit for users.
var (
	// ErrConfig: the policy or path cannot work as it is configured.
	ErrConfig = errors.New("working directory")
	// ErrOutside: the path leads out of the roots.
	ErrOutside = errors.New("working directory outside the allowed roots")
	// ErrKept: a worktree was not removed because it holds changes.
	ErrKept = errors.New("worktree with uncommitted changes was kept")
)

// gitTimeout bounds one git command. Checking out a large repository takes long.
const gitTimeout = 5 * time.Minute

// Spec is where an agent works.
type Spec struct {
	Policy string // empty means Context
	Path   string // for Fixed the directory, for Worktree one in a git repository
}

// Dirs hands out directories. Its methods are safe for concurrent use.
type Dirs struct {
	data  string
	roots []string
	git   sync.Mutex // git does not queue for its locks
}

// New keeps directories of contexts and worktrees below data, the hub's data
// directory. Fixed directories and repositories must lie below one of roots or
// below data; without roots nothing but data is allowed.
func New(data string, roots []string) *Dirs {
	return &Dirs{data: data, roots: append([]string{data}, roots...)}
}

// Prepare returns the directory for an agent in a context. It is absolute, free of
// symbolic links, and there. Blocks while git checks out a worktree.
func (d *Dirs) Prepare(ctx context.Context, agentID, contextID string, spec Spec) (string, error) {
	switch spec.Policy {
	case Context, "":
		return d.makeContext(contextID)
	case Fixed:
		return d.allowed(spec.Path)
	case Worktree:
		return d.makeWorktree(ctx, agentID, contextID, spec.Path)
	}
	return "", fmt.Errorf("%w: there is no policy %q", ErrConfig, spec.Policy)
}

// Remove removes what Prepare has made for an agent in a context; that nothing is
// there is no error. A worktree with changes that are not committed stays, which is
// ErrKept. The branch of a worktree stays if it has commits that are nowhere else.
func (d *Dirs) Remove(ctx context.Context, agentID, contextID string, spec Spec) error {
	switch spec.Policy {
	case Context, "":
		return d.within(func(root *os.Root) error {
			return root.RemoveAll(filepath.Join("contexts", dirName(contextID)))
		})
	case Worktree:
		return d.removeWorktree(ctx, agentID, contextID, spec.Path)
	}
	return nil
}

// dirName names a context's directory: its id may hold anything.
func dirName(contextID string) string {
	sum := sha256.Sum256([]byte(contextID))
	return hex.EncodeToString(sum[:16])
}

func (d *Dirs) within(do func(*os.Root) error) error {
	if d.data == "" {
		return fmt.Errorf("%w: the hub has no data directory, so the policy must be %s", ErrConfig, Fixed)
	}
	if err := os.MkdirAll(d.data, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(d.data)
	if err != nil {
		return err
	}
	return errors.Join(do(root), root.Close())
}

func (d *Dirs) makeContext(contextID string) (string, error) {
	name := filepath.Join("contexts", dirName(contextID))
	err := d.within(func(root *os.Root) error { return root.MkdirAll(name, 0o700) })
	if err != nil {
		return "", err
	}
	return d.resolveOwn(name)
}

// resolveOwn is the real path of a directory of ours, which no link may stand for.
func (d *Dirs) resolveOwn(name string) (string, error) {
	data, err := resolve(d.data)
	if err != nil {
		return "", err
	}
	dir, err := resolve(filepath.Join(d.data, name))
	if err != nil {
		return "", err
	}
	if dir != filepath.Join(data, name) {
		return "", fmt.Errorf("%w: %s is a link to %s", ErrOutside, filepath.Join(data, name), dir)
	}
	return dir, nil
}

func resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

// allowed resolves a directory of the user's and makes sure that it lies below a
// root.
func (d *Dirs) allowed(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%w: the path %q is not absolute", ErrConfig, path)
	}
	dir, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrConfig, err)
	}
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return "", fmt.Errorf("%w: %s is not a directory", ErrConfig, path)
	}
	for _, root := range d.roots {
		if root == "" {
			continue
		}
		root, err := resolve(root)
		if err != nil {
			continue // a root that is not there holds nothing
		}
		if rel, err := filepath.Rel(root, dir); err == nil && filepath.IsLocal(rel) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w: %s", ErrOutside, path)
}

var unsafeInBranch = regexp.MustCompile(`[^a-z0-9_-]+`)

// tree is where a worktree is kept, and on which branch.
func tree(agentID, contextID string) (name, branch string) {
	agent := strings.Trim(unsafeInBranch.ReplaceAllString(agentID, "-"), "-")
	if agent != agentID { // the change may have made it another agent's
		agent += dirName(agentID)[:8]
	}
	hash := dirName(contextID)
	return filepath.Join("worktrees", agent, hash), "parley/" + agent + "/" + hash[:16]
}

func (d *Dirs) makeWorktree(ctx context.Context, agentID, contextID, path string) (string, error) {
	repo, err := d.allowed(path)
	if err != nil {
		return "", err
	}
	prefix, err := d.run(ctx, repo, "rev-parse", "--show-prefix")
	if err != nil {
		return "", fmt.Errorf("%w: %s is not in a git repository: %w", ErrConfig, path, err)
	}
	name, branch := tree(agentID, contextID)
	if err := d.within(func(root *os.Root) error { return root.MkdirAll(filepath.Dir(name), 0o700) }); err != nil {
		return "", err
	}
	parent, err := d.resolveOwn(filepath.Dir(name))
	if err != nil {
		return "", err
	}
	dir := filepath.Join(parent, filepath.Base(name))
	if err := d.addWorktree(ctx, repo, dir, branch); err != nil {
		return "", err
	}
	// The agent works where the user would: in the same part of the repository.
	work, err := filepath.EvalSymlinks(filepath.Join(dir, filepath.FromSlash(prefix)))
	if err != nil {
		return "", fmt.Errorf("%w: %s is not part of the last commit: %w", ErrConfig, path, err)
	}
	if rel, err := filepath.Rel(dir, work); err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%w: %s", ErrOutside, work)
	}
	return work, nil
}

func (d *Dirs) addWorktree(ctx context.Context, repo, dir, branch string) error {
	d.git.Lock()
	defer d.git.Unlock()
	if info, err := os.Lstat(filepath.Join(dir, ".git")); err == nil && info.Mode().IsRegular() {
		return nil
	}
	// Forget one whose directory somebody has removed.
	if _, err := d.run(ctx, repo, "worktree", "prune"); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	args := []string{"worktree", "add", "-b", branch, "--", dir, "HEAD"}
	if _, err := d.run(ctx, repo, "rev-parse", "--verify", "--quiet", "refs/heads/"+branch); err == nil {
		args = []string{"worktree", "add", "--", dir, branch} // kept from before
	}
	if _, err := d.run(ctx, repo, args...); err != nil {
		return fmt.Errorf("%w: no worktree of %s could be made (it needs a commit): %w", ErrConfig, repo, err)
	}
	return nil
}

func (d *Dirs) removeWorktree(ctx context.Context, agentID, contextID, path string) error {
	name, branch := tree(agentID, contextID)
	dir := filepath.Join(d.data, name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	repo, err := d.allowed(path)
	if err != nil {
		return err
	}
	d.git.Lock()
	defer d.git.Unlock()
	status, err := d.run(ctx, dir, "status", "--porcelain", "--untracked-files=normal")
	if err != nil {
		return err
	}
	if status != "" {
		return fmt.Errorf("%w: %s", ErrKept, dir)
	}
	if _, err := d.run(ctx, repo, "worktree", "remove", "--", dir); err != nil {
		return err
	}
	// Refused, and rightly, where the branch has commits of its own.
	_, _ = d.run(ctx, repo, "branch", "--delete", "--", branch)
	return nil
}

// run runs git and returns what it prints, without the last line end. git gets the
// environment of an agent: no GIT_* of the hub's, which would lead it elsewhere.
func (d *Dirs) run(ctx context.Context, dir string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
	cmd.Env = process.Environ(os.Environ(), nil, map[string]string{"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"})
	cmd.WaitDelay = process.DefaultWaitDelay
	var stderr strings.Builder
	cmd.Stderr = &limited{to: &stderr, left: 4 << 10}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// limited keeps the beginning of what is written.
type limited struct {
	to   *strings.Builder
	left int
}

func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.left)
	l.to.Write(b[:n])
	l.left -= n
	return len(b), nil
}
