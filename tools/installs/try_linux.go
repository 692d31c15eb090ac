package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// way is a way to install Parley.
type way struct {
	name string
	// prepare makes the root what the way needs: npm is in no empty root.
	prepare func(ctx context.Context, r root) error
	// install and remove are scripts, for root where asRoot says so. They run where $url is the server of the release and $registry that of npm.
	install, remove string
	asRoot          bool
	// call is how the program is called; parley where it is empty. before comes before its other names.
	call, before string
	// stays are the paths that the package manager keeps for itself.
	stays []string
}

// ways are the ways to install a release for this machine.
func ways(dist string) ([]way, error) {
	deb, err := one(dist, "parley_*_"+runtime.GOARCH+".deb")
	if err != nil {
		return nil, err
	}
	rpm, err := one(dist, "parley-*."+rpmArch[runtime.GOARCH]+".rpm")
	if err != nil {
		return nil, err
	}
	npm := []string{home + "/.npm", "/root/.npm", "/usr/lib/node_modules", "/tmp/node-compile-cache"}
	return []way{
		{
			name:    "install.sh",
			install: "curl -fsSL $url/install.sh >install.sh\nPARLEY_INSTALL_URL=$url sh install.sh",
			remove:  "sh install.sh --uninstall\nrm install.sh",
		},
		{
			name: "deb", asRoot: true,
			install: "curl -fsSLO $url/" + deb + "\ndpkg --install " + deb + "\ngrep -q 'ExecStart=/usr/bin/parley start --foreground' /usr/lib/systemd/user/parley.service",
			remove:  "dpkg --purge parley\nrm " + deb,
			stays:   []string{"/var/lib/dpkg", "/var/log/dpkg.log"},
		},
		{
			// Debian's rpm wants to be told that it is meant. The root's dpkg has the dependencies: there are none.
			name: "rpm", prepare: addRPM, asRoot: true,
			install: "curl -fsSLO $url/" + rpm + "\nrpm --force-debian --dbpath " + rpmData + " --install " + rpm + "\ngrep -q 'ExecStart=/usr/bin/parley start --foreground' /usr/lib/systemd/user/parley.service",
			remove:  "rpm --force-debian --dbpath " + rpmData + " --erase parley\nrm " + rpm,
			stays:   []string{rpmData},
		},
		{
			name: "npm", prepare: addNode, asRoot: true,
			install: "npm install --global --registry=$registry --no-audit --no-fund --loglevel=error @parleyhub/parley",
			remove:  "npm uninstall --global --loglevel=error @parleyhub/parley",
			stays:   npm,
		},
		{
			name: "npx", prepare: addNode,
			install: "echo registry=$registry >.npmrc", call: "npx -y @parleyhub/parley", before: "npx -y ",
			remove: "rm .npmrc",
			stays:  npm,
		},
	}, nil
}

// rpmArch is what rpm calls an architecture.
var rpmArch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// rpmData is where rpm keeps what is installed.
const rpmData = "/var/lib/rpm"

// one returns the name of the one file that matches, "none" if there is none: the way to install it fails then, if it is tried.
func one(dir, pattern string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		return "none", err
	}
	return filepath.Base(found[0]), nil
}

// addRPM adds rpm, which a Debian does not have.
func addRPM(ctx context.Context, r root) error {
	packages, err := closure(ctx, false, "rpm")
	if err != nil {
		return err
	}
	return errors.Join(r.addAll(ctx, packages), os.MkdirAll(r.path(rpmData), 0o755))
}

// addNode adds Node.js and npm, which users of npm have.
func addNode(ctx context.Context, r root) error {
	if _, err := os.Stat(r.path("/usr/bin/node")); err == nil {
		return nil
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return err
	}
	if node, err = filepath.EvalSymlinks(node); err != nil {
		return err
	}
	npm, err := exec.LookPath("npm")
	if err == nil {
		npm, err = filepath.EvalSymlinks(npm) // …/npm/bin/npm-cli.js
	}
	if err != nil {
		return err
	}
	const to = "/usr/lib/node_modules/npm"
	err = errors.Join(r.program(ctx, "/usr/bin/node", node), r.directory(to, filepath.Dir(filepath.Dir(npm))))
	for _, name := range []string{"npm", "npx"} {
		err = errors.Join(err, os.Symlink("../lib/node_modules/npm/bin/"+name+"-cli.js", r.path("/usr/bin/"+name)), os.Chmod(r.path(to+"/bin/"+name+"-cli.js"), 0o755))
	}
	return err
}

// goFirst gives this process's threads, and so those that they start, priority before other programs.
func goFirst() error {
	const niceness = -15
	threads, err := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		id, e := strconv.Atoi(thread.Name())
		if e == nil {
			e = syscall.Setpriority(syscall.PRIO_PROCESS, id, niceness)
		}
		err = errors.Join(err, e)
	}
	return err
}

// try installs a release in each way and reports.
func try(ctx context.Context, o options) (err error) {
	if o.first {
		if err := goFirst(); err != nil {
			return fmt.Errorf("run before other programs: %w", err)
		}
	}
	dist, err := filepath.Abs(o.dist)
	if err != nil {
		return err
	}
	all, err := ways(dist)
	if err != nil {
		return err
	}
	files := httptest.NewServer(http.FileServer(http.Dir(dist)))
	defer files.Close()
	registry, err := newRegistry(filepath.Join(dist, "npm"))
	if err != nil {
		return err
	}
	defer registry.Close()
	dir, err := os.MkdirTemp("", "parley-root-")
	if err != nil {
		return err
	}
	r := root(dir)
	defer func() { err = errors.Join(err, r.end()) }()
	if err := r.fill(ctx); err != nil {
		return err
	}
	tried, servers := 0, "url="+files.URL+"\nregistry="+registry.URL+"\n"
	for _, w := range all {
		if !slices.Contains(o.only, w.name) {
			continue
		}
		tried++
		if e := w.try(ctx, r, servers, o.within); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", w.name, e))
		}
	}
	if tried != len(o.only) {
		err = errors.Join(err, fmt.Errorf("%q: not all of these are ways to install", o.only))
	}
	return err
}

// try installs in one way, sends a message, removes and looks what is left. The root is as before then.
func (w way) try(ctx context.Context, r root, servers string, within time.Duration) error {
	if w.prepare != nil {
		if err := w.prepare(ctx, r); err != nil {
			return err
		}
	}
	if out, err := r.sh(ctx, user, `for name in go gcc cc clang make parley; do if command -v $name; then exit 1; fi; done`); err != nil {
		return fmt.Errorf("the root is not empty: %s", out)
	}
	before, err := r.files()
	if err != nil {
		return err
	}
	err = w.use(ctx, r, servers, within)
	for _, line := range r.kill() {
		err = errors.Join(err, fmt.Errorf("a process is left: %s", line))
	}
	err = errors.Join(err, w.look(r, before), os.RemoveAll(r.path(home)))
	for _, name := range w.stays {
		if before[name] == "" {
			err = errors.Join(err, os.RemoveAll(r.path(name)))
		}
	}
	return errors.Join(err, r.users())
}

// use installs, sends the first message as a user, and removes.
func (w way) use(ctx context.Context, r root, servers string, within time.Duration) error {
	uid, call := user, w.call
	if w.asRoot {
		uid = 0
	}
	if call == "" {
		call = "parley"
	}
	began, spent := time.Now(), childrenTime()
	if _, err := r.sh(ctx, uid, servers+w.install); err != nil {
		return err
	}
	installed := time.Since(began)
	out, err := r.sh(ctx, user, call+" send echo hello")
	if err != nil {
		return err
	}
	total := time.Since(began)
	fmt.Printf("%-10s installed after %.1f s, first answer after %.1f s, %.1f s of processor time\n", w.name, installed.Seconds(), total.Seconds(), (childrenTime() - spent).Seconds())
	if !strings.Contains(out, "hello") {
		err = fmt.Errorf("the first answer is %q", out)
	}
	if within > 0 && total > within {
		err = errors.Join(err, fmt.Errorf("the first answer came after %v, and may take %v", total.Round(time.Millisecond), within))
	}
	_, namesErr := r.sh(ctx, user, "for name in a2a-hub nats-mcp-server; do "+w.before+"$name --version | grep \"^$name \"; done")
	_, stopErr := r.sh(ctx, user, call+" stop")
	_, removeErr := r.sh(ctx, uid, servers+w.remove)
	return errors.Join(err, namesErr, stopErr, removeErr)
}

// childrenTime is the processor time of the programs that were run and have ended.
func childrenTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// look compares what is in the root with what was before.
func (w way) look(r root, before map[string]string) error {
	after, err := r.files()
	if err != nil {
		return err
	}
	const data = home + "/.a2a-hub"
	if after[data] == "" {
		err = errors.New("the user's data is gone")
	}
	stays := append([]string{data}, w.stays...)
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if before[name] != after[name] && !slices.ContainsFunc(stays, func(s string) bool { return name == s || strings.HasPrefix(name, s+"/") }) {
			err = errors.Join(err, fmt.Errorf("%s is left, or changed", name))
			stays = append(stays, name) // with what is in it
		}
	}
	for name := range before {
		if after[name] == "" {
			err = errors.Join(err, fmt.Errorf("%s is removed", name))
		}
	}
	return err
}
