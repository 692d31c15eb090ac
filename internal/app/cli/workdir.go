package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// dirFlags choose where the agents of a command work.
type dirFlags struct {
	dir      string
	worktree bool
	scratch  bool
}

func (f *dirFlags) add(cmd *cobra.Command, scratch string) {
	flags := cmd.Flags()
	flags.StringVar(&f.dir, "dir", "", "the directory to work in, instead of the current project")
	flags.BoolVar(&f.worktree, "worktree", false, "work in a new git worktree of the project, on a branch of its own")
	flags.BoolVar(&f.scratch, "scratch", false, scratch)
	cmd.MarkFlagsMutuallyExclusive("dir", "scratch")
	cmd.MarkFlagsMutuallyExclusive("worktree", "scratch")
	_ = cmd.MarkFlagDirname("dir") // the flag exists
}

// workDir is where the agents of a command are to work. The zero value is a directory of the conversation's own.
type workDir struct {
	hub.DirRequest
	noProject string // why the current directory is not a project, "" if it is one or nobody asked
	unused    bool   // the agents of a new conversation do not work with files of this computer
}

// chooseDir returns the directory of the flags, else the project in the current directory.
func (a *app) chooseDir(ctx context.Context, f dirFlags) (workDir, error) {
	switch {
	case f.scratch:
		return workDir{}, nil
	case f.dir != "":
		dir, err := existingDir(f.dir)
		return workDir{DirRequest: hub.DirRequest{Path: dir, Worktree: f.worktree}}, err
	}
	cfg, err := a.load(ctx)
	if err != nil {
		return workDir{}, err
	}
	dir, why := currentProject(cfg.DataDir)
	if dir == "" && f.worktree {
		return workDir{}, usage("--worktree needs a git repository, but there is no project here: %s", why)
	}
	if dir == "" {
		return workDir{noProject: why}, nil
	}
	return workDir{DirRequest: hub.DirRequest{Path: dir, Project: true, Worktree: f.worktree}}, nil
}

// existingDir returns the absolute path of the directory of --dir, without symbolic links.
func existingDir(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", usage("--dir: the current directory no longer exists; use an absolute path")
	}
	real, err := filepath.EvalSymlinks(abs)
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(real); err == nil && !info.IsDir() {
			return "", usage("--dir: %s is not a directory", abs)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", &failure{Exit: exitUsage, Kind: "usage", Message: "--dir: there is no directory " + abs, Remedy: "check the path after --dir"}
	case err != nil:
		return "", usage("--dir: %s cannot be opened: permission denied, or not a directory", abs)
	}
	return real, nil
}

// currentProject returns the root of the git repository of the current directory, else that directory. Where agents
// may never work, as in the home directory, there is no project; why says so.
func currentProject(dataDir string) (dir, why string) {
	cwd, err := os.Getwd()
	if err == nil {
		cwd, err = filepath.EvalSymlinks(cwd)
	}
	if err != nil {
		return "", "the current directory no longer exists"
	}
	trust := config.NewTrust(dataDir)
	if root := gitRoot(cwd); root != "" && (trust.Refusal(root) == "" || trust.Owns(root)) {
		return root, ""
	}
	if why := trust.Refusal(cwd); why != "" {
		return "", why
	}
	return cwd, ""
}

// gitRoot returns the top directory of the git repository or worktree that contains a directory, "" without one.
func gitRoot(dir string) string {
	for {
		git := filepath.Join(dir, ".git")
		if info, err := os.Stat(git); err == nil {
			if !info.IsDir() {
				return dir // of a worktree or a submodule
			}
			if _, err := os.Stat(filepath.Join(git, "HEAD")); err == nil {
				return dir
			}
		}
		above := filepath.Dir(dir)
		if above == dir {
			return ""
		}
		dir = above
	}
}

// permitDir makes sure that agents may work in a directory, and asks the user if they may not yet. It returns what to
// request from the hub: nothing for agents that do not work there. agents are their ids, none for all. If the hub
// ended meanwhile, the client connects to another.
func (a *app) permitDir(ctx context.Context, c *client.Client, w workDir, agents []string, contextID string) (workDir, error) {
	if w.Path == "" {
		return w, nil
	}
	query := dialect.DirCheckParams{AgentIDs: agents, ContextID: contextID, DirRequest: w.DirRequest}
	check, err := a.checkDir(ctx, c, query)
	if err != nil {
		return w, err
	}
	if !check.Needed && w.Project && !w.Worktree {
		return workDir{}, nil
	}
	w.unused = !check.Needed && contextID == ""
	if !check.Needed || check.Allowed {
		return w, nil
	}
	if err := a.askTrust(ctx, config.NewTrust(check.DataDir), w); err != nil {
		return w, err
	}
	check, err = a.checkDir(ctx, c, query)
	if errors.Is(err, client.ErrNotRunning) || errors.Is(err, client.ErrLost) {
		return w, a.restartHub(ctx) // the list is on disk: the next hub reads it
	}
	if err == nil && !check.Allowed {
		err = &failure{Exit: exitFailure, Kind: kindNotTrusted, Message: "agents still may not work in " + tilde(w.Path), Remedy: "see: " + a.self() + " trust --list"}
	}
	return w, err
}

func (a *app) checkDir(ctx context.Context, c *client.Client, p dialect.DirCheckParams) (*dialect.DirCheck, error) {
	check, err := c.CheckDir(ctx, p)
	if rpc, ok := errors.AsType[*jsonrpc.Error](err); ok && rpc.Code == jsonrpc.CodeMethodNotFound {
		return nil, &failure{Exit: exitFailure, Kind: "hub-outdated", Message: "the running hub is of an older version than this program",
			Remedy: "stop it with: " + a.self() + " stop; the next command starts the new one"}
	}
	return check, err
}

// restartHub starts a hub if none is running.
func (a *app) restartHub(ctx context.Context) error {
	c, err := a.connectOrStart(ctx, false)
	if err != nil {
		return err
	}
	return c.Close()
}

const kindNotTrusted = "directory-not-trusted"

// askTrust asks the user whether agents may work in a directory, and trusts it after a yes. Without a terminal it
// returns the error that names the command.
func (a *app) askTrust(ctx context.Context, trust *config.Trust, w workDir) error {
	if _, err := trust.Dirs(); err != nil { // a yes could not be kept
		return trustFailure(err)
	}
	dir, err := trust.Check(w.Path)
	if te, ok := errors.AsType[*config.TrustError](err); ok && te.Code == config.TrustRefused {
		return &failure{Exit: exitUsage, Kind: kindNotTrusted, Message: te.Message,
			Remedy: "name the directory of one project with --dir, or use --scratch: a directory of the conversation's own"}
	}
	if err != nil {
		return trustFailure(err)
	}
	refused := &failure{Exit: exitFailure, Kind: kindNotTrusted, Message: "agents may not work in " + tilde(dir) + " yet",
		Remedy: "allow it with: " + a.self() + " trust " + shellPath(dir) + "; or use --scratch: a directory of the conversation's own"}
	line, asked, err := a.askOnTerminal(ctx, fmt.Sprintf("Let agents work in %s? [y/N] ", plain(tilde(dir))))
	switch {
	case err != nil:
		return err
	case !asked:
		return refused
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		refused.Message = "agents may not work in " + tilde(dir)
		return refused
	}
	if _, _, err := trust.Add(ctx, dir); err != nil {
		return trustFailure(err)
	}
	return nil
}

// terminalPath opens the terminal that a process was started at, wherever its standard input comes from. Windows has
// none of this name, and asks only if standard input is the terminal.
const terminalPath = "/dev/tty"

// askOnTerminal asks the user, also if a pipe is the standard input. It returns false if nobody can be asked.
func (a *app) askOnTerminal(ctx context.Context, prompt string) (answer string, asked bool, err error) {
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	if a.interactive() {
		answer, err = a.readLine(ctx, prompt)
		return answer, true, err
	}
	if a.json() || !isTerminal(a.stderr) {
		return "", false, nil
	}
	tty, err := os.Open(terminalPath)
	if err != nil {
		return "", false, nil // there is none, for a service for instance
	}
	defer tty.Close()
	answer, err = a.readLineFrom(ctx, bufio.NewReader(tty), prompt)
	return answer, true, err
}

// trustFailure converts an error of the list of trusted directories.
func trustFailure(err error) error {
	te, ok := errors.AsType[*config.TrustError](err)
	if !ok {
		return err
	}
	exit := exitFailure
	switch te.Code {
	case config.TrustNoDir:
		exit = exitNotFound
	case config.TrustRefused:
		exit = exitUsage
	}
	return &failure{Exit: exit, Kind: string(te.Code), Message: te.Message, Remedy: te.Remedy}
}

// metadata adds the request to a message's metadata.
func (w workDir) metadata(meta map[string]any) {
	switch {
	case w.Path == "":
		return
	case w.Project:
		meta[hub.MetaProject] = w.Path
	default:
		meta[hub.MetaWorkDir] = w.Path
	}
	if w.Worktree {
		meta[hub.MetaWorktree] = true
	}
}

// worktree replaces the request of a command that starts several conversations by one worktree for all of them. The
// same name finds it again.
func (a *app) worktree(ctx context.Context, c *client.Client, w workDir, kind, name string) (workDir, hub.WorkDir, error) {
	if !w.Worktree {
		return w, hub.WorkDir{}, nil
	}
	tree, err := c.Worktree(ctx, dialect.WorktreeParams{Kind: kind, Name: name, Path: w.Path})
	if err != nil {
		return w, hub.WorkDir{}, err
	}
	if tree.Notice != "" {
		a.notice(tree.Notice)
	}
	return workDir{DirRequest: hub.DirRequest{Path: tree.Path}}, tree.WorkDir, nil
}

// workDirText returns where an agent works, in one line; "" for an agent without files.
func workDirText(d hub.WorkDir) string {
	switch {
	case d.Path == "":
		return ""
	case d.Branch != "":
		return fmt.Sprintf("%s (worktree of %s, branch %s)", tilde(d.Path), tilde(d.Repository), d.Branch)
	case d.Policy == runner.WorkDirContext:
		return tilde(d.Path) + " (the conversation's own)"
	}
	return tilde(d.Path)
}

// printWorkDir prints to stderr where the agent has worked, and for a worktree the commands for what comes next.
func (a *app) printWorkDir(d hub.WorkDir, noProject string) {
	switch {
	case d.Path == "":
		return
	case d.Branch != "":
		a.printWorktree(d)
		return
	case !isTerminal(a.stderr) || !isTerminal(a.stdout):
		return
	}
	line := "in " + plain(workDirText(d))
	if d.Policy == runner.WorkDirContext && noProject != "" {
		line += ": there is no project here, " + noProject
	}
	a.note("%s", line)
}

// printWorktree prints how to take over the work in a worktree, and how to drop it.
func (a *app) printWorktree(d hub.WorkDir) {
	tree, repo, branch := shellPath(d.Path), shellPath(d.Repository), text.ShellQuote(d.Branch)
	if top, err := git(d.Path, "rev-parse", "--show-toplevel"); err == nil {
		tree = shellPath(top)
	}
	a.note("in %s, branch %s", plain(tilde(d.Path)), plain(d.Branch))
	changes, err := git(d.Path, "status", "--porcelain")
	commits, err2 := git(d.Repository, "rev-list", "--max-count=1", "HEAD.."+d.Branch)
	if errors.Join(err, err2) != nil {
		return // it was dropped already
	}
	if changes != "" {
		a.note("  commit: (cd %s && git add -A && git commit -m %s)", tree, branch)
	}
	bare, _ := git(d.Repository, "rev-parse", "--is-bare-repository")
	switch {
	case changes == "" && commits == "":
		a.note("  nothing has changed there")
	case bare == "true": // it has the branch, and nothing that could be merged into
	default:
		a.note("  merge:  git -C %s merge %s", repo, branch)
	}
	a.note("  drop:   git -C %s worktree remove --force %s && git -C %s branch -D %s", repo, tree, repo, branch)
}

const gitTimeout = 10 * time.Second

// git runs git in a directory of the user and returns its output without the last line end.
func git(dir string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), gitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
	for _, v := range append(os.Environ(), "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C") {
		if !strings.HasPrefix(v, "GIT_DIR=") && !strings.HasPrefix(v, "GIT_WORK_TREE=") && !strings.HasPrefix(v, "GIT_INDEX_FILE=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	out, err := cmd.Output()
	return strings.TrimSuffix(string(out), "\n"), err
}

// tilde shortens a path in the home directory for people. One with characters that a terminal obeys is escaped.
func tilde(path string) string {
	if escaped, odd := escapedPath(path); odd {
		return escaped
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return path
	}
	for _, base := range []string{home, cmp.Or(evalSymlinks(home), home)} {
		if rel, err := filepath.Rel(base, path); err == nil && filepath.IsAbs(base) && filepath.IsLocal(rel) && rel != "." {
			return filepath.Join("~", rel)
		}
	}
	return path
}

// escapedPath returns a path with unprintable characters as one word of a shell that knows $'…', and whether it has any.
func escapedPath(path string) (escaped string, odd bool) {
	var b strings.Builder
	for i, r := range path {
		size := utf8.RuneLen(r)
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(path[i:], string(r)):
			size = 1 // not UTF-8
			fallthrough
		case !unicode.IsPrint(r):
			odd = true
			for _, c := range []byte(path[i : i+size]) {
				fmt.Fprintf(&b, "\\%03o", c)
			}
		case r == '\'' || r == '\\':
			b.WriteByte('\\')
			fallthrough
		default:
			b.WriteRune(r)
		}
	}
	return "$'" + b.String() + "'", odd
}

func evalSymlinks(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return real
}

// shellPath returns a path for commands that the user copies: with a tilde where the shell expands it.
func shellPath(path string) string {
	if escaped, odd := escapedPath(path); odd {
		return escaped
	}
	short := tilde(path)
	if rest, ok := strings.CutPrefix(short, "~"); ok && rest != "" && text.ShellQuote(rest) == rest {
		return short
	}
	return text.ShellQuote(path)
}
