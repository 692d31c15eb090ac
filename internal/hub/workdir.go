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
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// The errors of working directories. Their texts are fit for users.
var (
	errDirConfig  = errors.New("working directory")
	errDirOutside = errors.New("working directory outside the allowed roots")
	errDirInData  = fmt.Errorf("%w: it is in the hub's own data directory", errDirOutside)
	errDirKept    = errors.New("worktree with uncommitted changes was kept")

	errDirMissing = errors.New("working directory that does not exist")

	// errAskedDir is the cause of a failed run whose message requested an unusable
	// directory: the agent is not at fault.
	errAskedDir = errors.New("the message asked for a directory that cannot be had")

	// errDirReplaced is why an open session ends: its directory was removed or replaced, and
	// the agent's process is still in the old one.
	errDirReplaced = errors.New("the session's directory was replaced")
)

// requestedDir returns what a message says about its agent's directory; validateMessage has checked it.
func requestedDir(m *a2a.Message) (r DirRequest) {
	r.Path, _ = m.Metadata[MetaWorkDir].(string)
	if project, ok := m.Metadata[MetaProject].(string); ok {
		r.Path, r.Project = project, true
	}
	r.Worktree, _ = m.Metadata[MetaWorktree].(bool)
	return r
}

// validateDir checks the metadata of a message about its agent's directory.
func validateDir(meta map[string]any) error {
	paths := 0
	for _, key := range []string{MetaWorkDir, MetaProject} {
		v, given := meta[key]
		if !given {
			continue
		}
		paths++
		if dir, ok := v.(string); !ok || !filepath.IsAbs(dir) || strings.ContainsRune(dir, 0) {
			return invalid("message.metadata."+key, "message.metadata.%s must be the absolute path of a directory", key)
		}
	}
	if paths > 1 {
		return invalid("message.metadata."+MetaProject, "message.metadata has both %s and %s: leave one out", MetaWorkDir, MetaProject)
	}
	v, given := meta[MetaWorktree]
	worktree, ok := v.(bool)
	switch {
	case given && !ok:
		return invalid("message.metadata."+MetaWorktree, "message.metadata.%s must be true or false", MetaWorktree)
	case worktree && paths == 0:
		return invalid("message.metadata."+MetaWorktree, "message.metadata.%s needs %s or %s: a directory in a git repository", MetaWorktree, MetaWorkDir, MetaProject)
	}
	return nil
}

// effective returns the request of a conversation's first message as it is kept: without
// Project, and empty where the agent's definition decides.
func (r DirRequest) effective(def runner.Definition) DirRequest {
	if !usesFiles(def) || r.Project && !r.Worktree && ownDir(def) {
		return DirRequest{}
	}
	r.Project = false
	return r
}

// ownDir reports whether a definition sets a directory for all conversations.
func ownDir(def runner.Definition) bool {
	return def.WorkDir.Policy == runner.WorkDirFixed || def.WorkDir.Policy == runner.WorkDirWorktree
}

// conflicts reports whether the request of a later message contradicts its conversation's directory.
func (r DirRequest) conflicts(have WorkDir) bool {
	if have == (WorkDir{}) || r.Path == "" {
		return false
	}
	tree := have.Policy == runner.WorkDirWorktree
	if r.Project {
		return r.Worktree && !tree
	}
	if r.Worktree != tree {
		return true
	}
	path, err := resolve(r.Path)
	return err != nil || path != cmp.Or(have.Repository, have.Path)
}

// CheckDir returns what a message with a request would need. The agents are those with the ids, all if there are none;
// unknown ones do not count. A new context has the id "".
func (h *Hub) CheckDir(ids []string, contextID string, r DirRequest) DirCheck {
	check := DirCheck{DataDir: h.cfg.DataDir}
	for _, a := range h.agents.all() {
		def := a.definition()
		if len(ids) > 0 && !slices.Contains(ids, a.id) || r.effective(def).Path == "" {
			continue
		}
		if !h.pool.knows(sessionKey{a.id, contextID}) {
			check.Needed = true
		}
	}
	_, err := h.pool.dirs.allowed(contextID, r.Path)
	check.Allowed = err == nil
	return check
}

// Worktree makes a git worktree of the repository in a directory that is allowed, or returns the one of an earlier call
// with the same kind and name. It belongs to no context, so the hub never removes it. The notice is for the user, ""
// without one. It blocks while git checks out the files.
func (h *Hub) Worktree(ctx context.Context, kind, name, path string) (dir WorkDir, notice string, err error) {
	dir, notice, err = h.pool.dirs.makeShared(ctx, kind, name, path)
	if err != nil {
		return WorkDir{}, "", &Error{Code: CodeInvalid, Subject: "path", Message: err.Error(), Remedy: "name a directory of a git repository with a commit", Err: err}
	}
	return dir, notice, nil
}

// spec returns the working directory of an agent in a context: the one that its first
// message requested, else that of its definition.
func (r DirRequest) spec(def runner.Definition) runner.WorkDirSpec {
	switch {
	case r.Path == "":
		return def.WorkDir
	case r.Worktree:
		return runner.WorkDirSpec{Policy: runner.WorkDirWorktree, Path: r.Path}
	}
	return runner.WorkDirSpec{Policy: runner.WorkDirFixed, Path: r.Path}
}

// usesFiles reports whether an agent has a working directory.
func usesFiles(def runner.Definition) bool {
	return def.Driver != runner.DriverEcho && def.Driver != runner.DriverPeer && def.Driver != runner.DriverSwarm &&
		def.Driver != runner.DriverSession && def.Driver != runner.DriverLibrary && def.Driver != runner.DriverQueue
}

// prepareDir sets the directory of a session that is about to open, and creates it if
// needed. An agent without files has none. The error is a *runner.Error.
func (p *sessions) prepareDir(ctx context.Context, s *session) (err error) {
	def := s.agent.definition()
	if !usesFiles(def) {
		return nil
	}
	s.dir, s.notice, err = p.dirs.prepare(ctx, def.ID, s.key.context, s.asked.spec(def))
	if err == nil {
		s.inode, err = os.Stat(s.dir.Path)
	}
	if err != nil {
		return dirError(s, err)
	}
	return nil
}

// dirError returns the error for a session without a working directory.
func dirError(s *session, err error) *runner.Error {
	id, path := s.key.agent, cmp.Or(s.asked.Path, s.agent.definition().WorkDir.Path)
	outside, missing, config := errors.Is(err, errDirOutside), errors.Is(err, errDirMissing), errors.Is(err, errDirConfig)
	e := &runner.Error{Code: runner.CodeConfig, Message: fmt.Sprintf("agent %s has no working directory", id),
		Remedy: "check the data directory's permissions and free space", Err: err}
	if s.asked.Path != "" && (outside || missing || config) {
		e.Err = fmt.Errorf("%w: %w", errAskedDir, err)
	}
	switch {
	case outside:
		e.Message = fmt.Sprintf("agent %s may not work there: %v", id, err)
		e.Remedy = "trust the directory with: " + local.Program() + " trust " + text.ShellQuote(path)
		if errors.Is(err, errDirInData) {
			e.Remedy = "name a directory outside of the hub's data directory"
		}
	case missing && s.asked.Path != "":
		e.Message, e.Remedy = fmt.Sprintf("agent %s cannot work there: %v", id, err), "name a directory that exists, or begin another context"
	case config && s.asked.Path != "":
		e.Message, e.Remedy = fmt.Sprintf("agent %s cannot work there: %v", id, err), "name another directory, or leave it out"
	case missing, config:
		e.Message, e.Remedy = fmt.Sprintf("agent %s: %v", id, err), "correct the agent's workdir in config.yaml"
	}
	return e
}

// removeDir removes an agent's directory in a context. A worktree with uncommitted changes stays.
func (p *sessions) removeDir(ctx context.Context, def runner.Definition, contextID string, asked DirRequest) error {
	if !usesFiles(def) {
		return nil
	}
	err := p.dirs.remove(ctx, def.ID, contextID, asked.spec(def))
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
// Fixed directories and repositories must be below the allowed roots or a trusted directory, after symbolic
// links are resolved. That is checked at every use. Safe for concurrent use.
type workDirs struct {
	data    string   // the hub's data directory, of which only what the hub has made for the conversation is allowed
	roots   []string // as configured
	trusted func() ([]string, error)
	git     sync.Mutex // git does not wait for its locks
}

func newWorkDirs(data string, roots []string, trusted func() ([]string, error)) *workDirs {
	if trusted == nil {
		trusted = func() ([]string, error) { return nil, nil }
	}
	return &workDirs{data: data, roots: roots, trusted: trusted}
}

// prepare returns the directory for an agent in a context: absolute, existing and
// without symbolic links. It blocks while git checks out a worktree. The notice is for the
// user, "" without one.
func (d *workDirs) prepare(ctx context.Context, agentID, contextID string, spec runner.WorkDirSpec) (dir WorkDir, notice string, err error) {
	dir.Policy = cmp.Or(spec.Policy, runner.WorkDirContext)
	switch dir.Policy {
	case runner.WorkDirContext:
		dir.Path, err = d.makeContext(contextID)
		return dir, "", err
	case runner.WorkDirFixed:
		dir.Path, err = d.allowed(contextID, spec.Path)
		return dir, "", err
	case runner.WorkDirWorktree:
		return d.makeWorktree(ctx, agentID, contextID, spec.Path)
	}
	return WorkDir{}, "", fmt.Errorf("%w: there is no policy %q", errDirConfig, spec.Policy)
}

// remove removes the directory of an agent in a context, if it exists. A worktree with uncommitted changes stays,
// with errDirKept. The branch of a worktree stays if it has commits of its own.
func (d *workDirs) remove(ctx context.Context, agentID, contextID string, spec runner.WorkDirSpec) error {
	switch spec.Policy {
	case runner.WorkDirContext, "":
		return d.within(func(root *os.Root) error {
			return root.RemoveAll(filepath.Join(runner.ContextsDir, dirName(contextID)))
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
	name := filepath.Join(runner.ContextsDir, dirName(contextID))
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

// allowed resolves a directory for a context. It must be below a root or a trusted directory and outside of the data
// directory, or one that the hub has made for the context.
func (d *workDirs) allowed(contextID, path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%w: the path %q is not absolute", errDirConfig, path)
	}
	dir, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%w: %s", errDirMissing, path)
	case errors.Is(err, fs.ErrPermission):
		return "", fmt.Errorf("%w: %s cannot be opened: permission denied", errDirConfig, path)
	case err != nil && !errors.Is(err, local.ErrNotDir):
		return "", fmt.Errorf("%w: %w", errDirConfig, err)
	}
	if info, serr := os.Stat(dir); err != nil || serr != nil || !info.IsDir() {
		return "", fmt.Errorf("%w: %s is not a directory", errDirConfig, path)
	}
	// A process that cannot enter its directory fails as one whose program is missing.
	if _, err := os.Stat(dir + string(filepath.Separator) + "."); errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("%w: %s cannot be opened: permission denied", errDirConfig, path)
	}
	if own, inData := d.owns(contextID, dir); own {
		return dir, nil
	} else if inData { // also if a root or a trusted directory is above or in it
		return "", fmt.Errorf("%w: %s", errDirInData, path)
	}
	for _, root := range d.roots {
		if root, err := resolve(root); err == nil && below(dir, root) { // it may not exist
			return dir, nil
		}
	}
	trusted, err := d.trusted()
	for _, root := range trusted {
		if !below(dir, root) {
			continue
		}
		if real, err := resolve(root); err == nil && real == root {
			return dir, nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", errDirOutside, path, err)
	}
	return "", fmt.Errorf("%w: %s", errDirOutside, path)
}

// owns reports whether a directory is one that the hub has made for a context, or for several ones, and whether it is in
// the data directory, which also has what no agent may get: the list of trusted directories, the hub's keys, its store
// and the directories of other conversations.
func (d *workDirs) owns(contextID, dir string) (own, inData bool) {
	data, err := resolve(d.data)
	if d.data == "" || err != nil || !below(dir, data) {
		return false, false
	}
	rel, err := filepath.Rel(data, dir)
	if err != nil {
		return false, true
	}
	parts := strings.SplitN(rel, string(filepath.Separator), 4)
	switch {
	case len(parts) >= 2 && parts[0] == runner.ContextsDir:
		return parts[1] == dirName(contextID), true
	case len(parts) >= 3 && parts[0] == runner.WorktreesDir:
		return parts[2] == dirName(contextID) || isShared(filepath.Join(data, parts[0], parts[1], parts[2])), true
	}
	return false, true
}

// A worktree that several conversations share, such as those of a loop, has a file of its name with this ending beside it.
const sharedMark = ".shared"

func isShared(tree string) bool {
	info, err := os.Lstat(tree + sharedMark)
	return err == nil && info.Mode().IsRegular()
}

// makeShared makes a worktree for several conversations.
func (d *workDirs) makeShared(ctx context.Context, kind, name, path string) (dir WorkDir, notice string, err error) {
	if dir, notice, err = d.makeWorktree(ctx, kind, name, path); err != nil {
		return dir, notice, err
	}
	tree, _ := worktreeNames(kind, name)
	return dir, notice, d.within(func(root *os.Root) error {
		f, err := root.OpenFile(tree+sharedMark, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		return f.Close()
	})
}

// below reports whether a directory is root or below it.
func below(dir, root string) bool {
	rel, err := filepath.Rel(root, dir)
	return err == nil && filepath.IsLocal(rel)
}

var unsafeInBranch = text.Pattern(`[^a-z0-9_-]+`)

// worktreeNames returns a worktree's path in the data directory, and its branch.
func worktreeNames(agentID, contextID string) (name, branch string) {
	agent := strings.Trim(unsafeInBranch().ReplaceAllString(agentID, "-"), "-")
	if agent != agentID { // the name could be that of another agent
		agent += dirName(agentID)[:8]
	}
	hash := dirName(contextID)
	return filepath.Join(runner.WorktreesDir, agent, hash), "parley/" + agent + "/" + hash[:16]
}

func (d *workDirs) makeWorktree(ctx context.Context, agentID, contextID, path string) (dir WorkDir, notice string, err error) {
	repo, err := d.allowed(contextID, path)
	if err != nil {
		return WorkDir{}, "", err
	}
	prefix, err := d.run(ctx, repo, "rev-parse", "--show-prefix")
	if err != nil {
		return WorkDir{}, "", fmt.Errorf("%w: %s is not in a git repository: %w", errDirConfig, path, err)
	}
	name, branch := worktreeNames(agentID, contextID)
	if err := d.within(func(root *os.Root) error { return root.MkdirAll(filepath.Dir(name), 0o700) }); err != nil {
		return WorkDir{}, "", err
	}
	parent, err := d.resolveOwn(filepath.Dir(name))
	if err != nil {
		return WorkDir{}, "", err
	}
	tree := filepath.Join(parent, filepath.Base(name))
	created, err := d.addWorktree(ctx, repo, tree, branch)
	if err != nil {
		return WorkDir{}, "", err
	}
	// The agent works in the configured subdirectory of the repository.
	work, err := filepath.EvalSymlinks(filepath.Join(tree, filepath.FromSlash(prefix)))
	if err != nil {
		return WorkDir{}, "", fmt.Errorf("%w: %s is not part of the last commit: %w", errDirConfig, path, err)
	}
	if !below(work, tree) {
		return WorkDir{}, "", fmt.Errorf("%w: %s", errDirOutside, work)
	}
	if created {
		notice = d.uncommitted(ctx, repo)
	}
	return WorkDir{Path: work, Policy: runner.WorkDirWorktree, Repository: repo, Branch: branch}, notice, nil
}

// uncommitted returns a notice if a repository has changes that a new worktree lacks.
func (d *workDirs) uncommitted(ctx context.Context, repo string) string {
	status, err := d.run(ctx, repo, "status", "--porcelain", "--untracked-files=normal")
	if err != nil || status == "" {
		return ""
	}
	return "the worktree begins with the last commit: it lacks the uncommitted changes in " + repo
}

// addWorktree makes a worktree in dir, and reports whether it was not there before.
func (d *workDirs) addWorktree(ctx context.Context, repo, dir, branch string) (created bool, err error) {
	d.git.Lock()
	defer d.git.Unlock()
	if info, err := os.Lstat(filepath.Join(dir, ".git")); err == nil && info.Mode().IsRegular() {
		return false, nil
	}
	// Forget a worktree whose directory was removed by hand.
	if _, err := d.run(ctx, repo, "worktree", "prune"); err != nil {
		return false, fmt.Errorf("%w: %w", errDirConfig, err)
	}
	args := []string{"worktree", "add", "-b", branch, "--", dir, "HEAD"}
	if _, err := d.run(ctx, repo, "rev-parse", "--verify", "--quiet", "refs/heads/"+branch); err == nil {
		args = []string{"worktree", "add", "--", dir, branch} // the branch of an earlier worktree
	}
	if _, err := d.run(ctx, repo, args...); err != nil {
		return false, fmt.Errorf("%w: no worktree of %s could be made (it needs a commit): %w", errDirConfig, repo, err)
	}
	return true, nil
}

func (d *workDirs) removeWorktree(ctx context.Context, agentID, contextID, path string) error {
	name, branch := worktreeNames(agentID, contextID)
	dir := filepath.Join(d.data, name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	repo, err := d.allowed(contextID, path)
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

// run runs git with the time for a checkout, see runGit.
func (d *workDirs) run(ctx context.Context, dir string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	return runGit(ctx, dir, maxGitOutput, process.DefaultWaitDelay, nil, args...)
}
