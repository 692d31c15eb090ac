package hub

import (
	"cmp"
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

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// The errors of working directories. Their texts are fit for users.
var (
	errDirConfig  = errors.New("working directory")
	errDirOutside = errors.New("working directory outside the allowed roots")
	errDirKept    = errors.New("worktree with uncommitted changes was kept")

	// errAskedDir is the cause of a failed run whose message requested an unusable
	// directory: the agent is not at fault.
	errAskedDir = errors.New("the message asked for a directory that cannot be had")
)

// dirSpec returns the working directory of an agent in a context: the one that its
// first message requested, else that of its definition.
func dirSpec(def runner.Definition, asked string) runner.WorkDirSpec {
	if asked != "" {
		return runner.WorkDirSpec{Policy: runner.WorkDirFixed, Path: asked}
	}
	return def.WorkDir
}

// usesFiles reports whether an agent has a working directory.
func usesFiles(def runner.Definition) bool {
	return def.Driver != runner.DriverEcho && def.Driver != runner.DriverPeer
}

// prepareDir returns the directory for a session, and creates it if needed; the zero value
// for an agent without files. The error is a *runner.Error.
func (p *sessions) prepareDir(ctx context.Context, def runner.Definition, contextID, asked string) (WorkDir, error) {
	if !usesFiles(def) {
		return WorkDir{}, nil
	}
	dir, err := p.dirs.prepare(ctx, def.ID, contextID, dirSpec(def, asked))
	if err == nil {
		return dir, nil
	}
	outside, config := errors.Is(err, errDirOutside), errors.Is(err, errDirConfig)
	e := &runner.Error{Code: runner.CodeConfig, Message: fmt.Sprintf("agent %s has no working directory", def.ID),
		Remedy: "check the data directory's permissions and free space", Err: err}
	if asked != "" && (outside || config) {
		e.Err = fmt.Errorf("%w: %w", errAskedDir, err)
	}
	switch {
	case outside:
		e.Message, e.Remedy = fmt.Sprintf("agent %s may not work there: %v", def.ID, err), "add the directory, or one above it, to workdirs.roots in config.yaml"
	case config && asked != "":
		e.Message, e.Remedy = fmt.Sprintf("agent %s cannot work there: %v", def.ID, err), "name a directory that exists by its absolute path"
	case config:
		e.Message, e.Remedy = fmt.Sprintf("agent %s: %v", def.ID, err), "correct the agent's workdir in config.yaml"
	}
	return WorkDir{}, e
}

// removeDir removes an agent's directory in a context. A worktree with uncommitted changes stays.
func (p *sessions) removeDir(ctx context.Context, def runner.Definition, contextID string) error {
	if !usesFiles(def) {
		return nil
	}
	err := p.dirs.remove(ctx, def.ID, contextID, dirSpec(def, ""))
	if errors.Is(err, errDirKept) {
		p.hub.log.Warn("a working directory is kept", "agent", def.ID, "reason", err)
		return nil
	}
	return err
}

// gitTimeout bounds one git command, such as the checkout of a large repository.
const gitTimeout = 5 * time.Minute

// workDirs makes and removes the directories that agents work in. There are three policies:
//
//   - context: a directory for the context, shared by its agents, removed with it
//   - fixed: a directory of the user, never changed
//   - worktree: for each agent and context a git worktree of the user's repository,
//     on its own branch, so that agents do not disturb each other and no commit is
//     lost
//
// Fixed directories and repositories must be below the allowed roots, after symbolic
// links are resolved. That is checked at every use. Safe for concurrent use.
type workDirs struct {
	data  string     // the hub's data directory, which is allowed too
	roots []string   // data and the configured roots
	git   sync.Mutex // git does not wait for its locks
}

func newWorkDirs(data string, roots []string) *workDirs {
	return &workDirs{data: data, roots: append([]string{data}, roots...)}
}

// prepare returns the directory for an agent in a context: absolute, existing and
// without symbolic links. It blocks while git checks out a worktree.
func (d *workDirs) prepare(ctx context.Context, agentID, contextID string, spec runner.WorkDirSpec) (dir WorkDir, err error) {
	dir.Policy = cmp.Or(spec.Policy, runner.WorkDirContext)
	switch dir.Policy {
	case runner.WorkDirContext:
		dir.Path, err = d.makeContext(contextID)
		return dir, err
	case runner.WorkDirFixed:
		dir.Path, err = d.allowed(spec.Path)
		return dir, err
	case runner.WorkDirWorktree:
		return d.makeWorktree(ctx, agentID, contextID, spec.Path)
	}
	return WorkDir{}, fmt.Errorf("%w: there is no policy %q", errDirConfig, spec.Policy)
}

// remove removes the directory of an agent in a context, if it exists. A worktree with uncommitted changes stays,
// with errDirKept. The branch of a worktree stays if it has commits of its own.
func (d *workDirs) remove(ctx context.Context, agentID, contextID string, spec runner.WorkDirSpec) error {
	switch spec.Policy {
	case runner.WorkDirContext, "":
		return d.within(func(root *os.Root) error {
			return root.RemoveAll(filepath.Join("contexts", dirName(contextID)))
		})
	case runner.WorkDirWorktree:
		return d.removeWorktree(ctx, agentID, contextID, spec.Path)
	}
	return nil
}

// dirName returns the name of a context's directory. The id may hold any character.
func dirName(contextID string) string {
	sum := sha256.Sum256([]byte(contextID))
	return hex.EncodeToString(sum[:16])
}

// within calls do with the data directory, from which no path of do can escape.
func (d *workDirs) within(do func(*os.Root) error) error {
	if d.data == "" {
		return fmt.Errorf("%w: the hub has no data directory, so the policy must be %s", errDirConfig, runner.WorkDirFixed)
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

func (d *workDirs) makeContext(contextID string) (string, error) {
	name := filepath.Join("contexts", dirName(contextID))
	err := d.within(func(root *os.Root) error { return root.MkdirAll(name, 0o700) })
	if err != nil {
		return "", err
	}
	return d.resolveOwn(name)
}

// resolveOwn returns the path of a directory of the hub, which must not be a link.
func (d *workDirs) resolveOwn(name string) (string, error) {
	data, err := resolve(d.data)
	if err != nil {
		return "", err
	}
	dir, err := resolve(filepath.Join(d.data, name))
	if err != nil {
		return "", err
	}
	if dir != filepath.Join(data, name) {
		return "", fmt.Errorf("%w: %s is a link to %s", errDirOutside, filepath.Join(data, name), dir)
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

// allowed resolves a directory of the user, which must be below a root.
func (d *workDirs) allowed(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%w: the path %q is not absolute", errDirConfig, path)
	}
	dir, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errDirConfig, err)
	}
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return "", fmt.Errorf("%w: %s is not a directory", errDirConfig, path)
	}
	for _, root := range d.roots {
		if root == "" {
			continue
		}
		root, err := resolve(root)
		if err != nil {
			continue // the root does not exist
		}
		if rel, err := filepath.Rel(root, dir); err == nil && filepath.IsLocal(rel) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w: %s", errDirOutside, path)
}

var unsafeInBranch = regexp.MustCompile(`[^a-z0-9_-]+`)

// worktreeNames returns a worktree's path in the data directory, and its branch.
func worktreeNames(agentID, contextID string) (name, branch string) {
	agent := strings.Trim(unsafeInBranch.ReplaceAllString(agentID, "-"), "-")
	if agent != agentID { // the name could be that of another agent
		agent += dirName(agentID)[:8]
	}
	hash := dirName(contextID)
	return filepath.Join("worktrees", agent, hash), "parley/" + agent + "/" + hash[:16]
}

func (d *workDirs) makeWorktree(ctx context.Context, agentID, contextID, path string) (WorkDir, error) {
	repo, err := d.allowed(path)
	if err != nil {
		return WorkDir{}, err
	}
	prefix, err := d.run(ctx, repo, "rev-parse", "--show-prefix")
	if err != nil {
		return WorkDir{}, fmt.Errorf("%w: %s is not in a git repository: %w", errDirConfig, path, err)
	}
	name, branch := worktreeNames(agentID, contextID)
	if err := d.within(func(root *os.Root) error { return root.MkdirAll(filepath.Dir(name), 0o700) }); err != nil {
		return WorkDir{}, err
	}
	parent, err := d.resolveOwn(filepath.Dir(name))
	if err != nil {
		return WorkDir{}, err
	}
	dir := filepath.Join(parent, filepath.Base(name))
	if err := d.addWorktree(ctx, repo, dir, branch); err != nil {
		return WorkDir{}, err
	}
	// The agent works in the configured subdirectory of the repository.
	work, err := filepath.EvalSymlinks(filepath.Join(dir, filepath.FromSlash(prefix)))
	if err != nil {
		return WorkDir{}, fmt.Errorf("%w: %s is not part of the last commit: %w", errDirConfig, path, err)
	}
	if rel, err := filepath.Rel(dir, work); err != nil || !filepath.IsLocal(rel) {
		return WorkDir{}, fmt.Errorf("%w: %s", errDirOutside, work)
	}
	return WorkDir{Path: work, Policy: runner.WorkDirWorktree, Repository: repo, Branch: branch}, nil
}

func (d *workDirs) addWorktree(ctx context.Context, repo, dir, branch string) error {
	d.git.Lock()
	defer d.git.Unlock()
	if info, err := os.Lstat(filepath.Join(dir, ".git")); err == nil && info.Mode().IsRegular() {
		return nil
	}
	// Forget a worktree whose directory was removed by hand.
	if _, err := d.run(ctx, repo, "worktree", "prune"); err != nil {
		return fmt.Errorf("%w: %w", errDirConfig, err)
	}
	args := []string{"worktree", "add", "-b", branch, "--", dir, "HEAD"}
	if _, err := d.run(ctx, repo, "rev-parse", "--verify", "--quiet", "refs/heads/"+branch); err == nil {
		args = []string{"worktree", "add", "--", dir, branch} // the branch of an earlier worktree
	}
	if _, err := d.run(ctx, repo, args...); err != nil {
		return fmt.Errorf("%w: no worktree of %s could be made (it needs a commit): %w", errDirConfig, repo, err)
	}
	return nil
}

func (d *workDirs) removeWorktree(ctx context.Context, agentID, contextID, path string) error {
	name, branch := worktreeNames(agentID, contextID)
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
		return fmt.Errorf("%w: %s", errDirKept, dir)
	}
	if _, err := d.run(ctx, repo, "worktree", "remove", "--", dir); err != nil {
		return err
	}
	// git refuses if the branch has commits of its own.
	_, _ = d.run(ctx, repo, "branch", "--delete", "--", branch)
	return nil
}

// run runs git and returns its output without the last line end. git gets the
// environment of an agent: the hub's GIT_* variables could redirect it.
func (d *workDirs) run(ctx context.Context, dir string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
	cmd.Env = process.Environ(os.Environ(), nil, map[string]string{"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"})
	cmd.WaitDelay = process.DefaultWaitDelay
	out, err := cmd.Output()
	if err != nil {
		stderr := ""
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			stderr = text.Cut(string(exit.Stderr), 4<<10)
		}
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
