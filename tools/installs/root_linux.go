package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// user is the id of the user in a root who is not root.
const user = 1000

// home is the directory of that user.
const home = "/home/ann"

// root is the directory of an empty machine.
type root string

// fill makes the directory a machine with Debian's essential packages and curl.
func (r root) fill(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("an empty root needs the user root: run this with sudo")
	}
	packages, err := closure(ctx, true, "curl")
	if err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(string(r), 0o755), r.links()); err != nil {
		return err
	}
	return errors.Join(r.addAll(ctx, packages), r.record(ctx, packages), r.devices(), r.users())
}

func (r root) addAll(ctx context.Context, packages []string) error {
	for _, p := range packages {
		if err := r.add(ctx, p); err != nil {
			return fmt.Errorf("package %s: %w", p, err)
		}
	}
	return nil
}

// closure returns this machine's names of packages and of what they need; with essential, also of those that every Debian has.
func closure(ctx context.Context, essential bool, packages ...string) ([]string, error) {
	out, err := output(ctx, "dpkg-query", "-W", "-f", "${binary:Package}|${Package}|${Essential}|${Pre-Depends}, ${Depends}|${Provides}\n")
	if err != nil {
		return nil, err
	}
	needs, names, todo := map[string]string{}, map[string]string{}, packages
	for line := range strings.Lines(out) {
		part := strings.Split(strings.TrimSpace(line), "|")
		if len(part) < 5 { // alternatives have a | too
			continue
		}
		full, provided := part[0], part[len(part)-1]
		needs[full] = strings.Join(part[3:len(part)-1], "|")
		names[part[1]] = full
		for _, p := range strings.Split(provided, ",") {
			if name := bare(p); name != "" && names[name] == "" {
				names[name] = full
			}
		}
		if essential && part[2] == "yes" {
			todo = append(todo, part[1])
		}
	}
	have := map[string]bool{}
	for len(todo) > 0 {
		full := names[todo[0]]
		todo = todo[1:]
		if full == "" || have[full] {
			continue
		}
		have[full] = true
		for _, any := range strings.Split(needs[full], ",") {
			for _, one := range strings.Split(any, "|") { // all that are installed
				todo = append(todo, bare(one))
			}
		}
	}
	return slices.Sorted(maps.Keys(have)), nil
}

// bare returns the name of a dependency without its version and its architecture.
func bare(dependency string) string {
	name, _, _ := strings.Cut(strings.TrimSpace(dependency), " ")
	name, _, _ = strings.Cut(name, ":")
	return name
}

func (r root) path(name string) string { return filepath.Join(string(r), name) }

// links makes the directories that this machine has merged into /usr.
func (r root) links() error {
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		target, err := os.Readlink("/" + name)
		if err != nil {
			continue
		}
		err = os.MkdirAll(r.path("usr/"+name), 0o755)
		if err := errors.Join(err, os.Symlink(target, r.path(name))); err != nil {
			return err
		}
	}
	return nil
}

// add copies the files of an installed package, without its documents.
func (r root) add(ctx context.Context, name string) error {
	out, err := output(ctx, "dpkg-query", "-L", name)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		path := strings.TrimSpace(line)
		if !filepath.IsAbs(path) || path == "/." || strings.HasPrefix(path, "/usr/share/doc/") || strings.HasPrefix(path, "/usr/share/locale/") {
			continue
		}
		if err := r.copy(path); err != nil {
			return err
		}
	}
	return nil
}

// copy copies a file, a directory without its content, or a link of this machine. What does not exist here is left out: images of
// containers lack documents.
func (r root) copy(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	to := r.path(path)
	switch {
	case info.IsDir():
		return os.MkdirAll(to, info.Mode().Perm())
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(target, to); !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	case !info.Mode().IsRegular():
		return nil
	}
	return copyFile(to, path, info.Mode())
}

func copyFile(to, from string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode.Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close(), os.Chmod(to, mode))
}

// program copies a program of no package with the libraries that it is linked with.
func (r root) program(ctx context.Context, to, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if err := copyFile(r.path(to), from, info.Mode()); err != nil {
		return err
	}
	out, err := output(ctx, "ldd", from)
	if err != nil {
		return err
	}
	for _, word := range strings.Fields(out) {
		if !filepath.IsAbs(word) {
			continue
		}
		if _, err := os.Stat(r.path(word)); err == nil {
			continue
		}
		file, err := filepath.EvalSymlinks(word)
		if err == nil {
			err = copyFile(r.path(word), file, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// directory copies a directory of this machine.
func (r root) directory(to, from string) error {
	return errors.Join(os.MkdirAll(r.path(filepath.Dir(to)), 0o755), os.CopyFS(r.path(to), os.DirFS(from)))
}

// record lets the root's dpkg know what is installed.
func (r root) record(ctx context.Context, packages []string) error {
	status, err := output(ctx, "dpkg-query", append([]string{"-s"}, packages...)...)
	if err != nil {
		return err
	}
	const info = "/var/lib/dpkg/info/"
	for _, p := range append(packages, "format") {
		name := info + p + ".list"
		if p == "format" {
			name = info + p
		}
		if err := r.copy(name); err != nil {
			return err
		}
	}
	// dpkg-query separates by a line of dashes where it writes for people.
	status = strings.ReplaceAll(status, "\n---\n", "\n\n")
	return errors.Join(os.MkdirAll(r.path("var/lib/dpkg/updates"), 0o755), os.MkdirAll(r.path("var/log"), 0o755),
		os.WriteFile(r.path("var/lib/dpkg/status"), []byte(strings.TrimRight(status, "\n")+"\n\n"), 0o644), os.WriteFile(r.path("var/lib/dpkg/available"), nil, 0o644))
}

// devices makes what every process needs.
func (r root) devices() error {
	err := errors.Join(os.MkdirAll(r.path("dev"), 0o755), os.MkdirAll(r.path("proc"), 0o555), os.MkdirAll(r.path("tmp"), 0o777), os.Chmod(r.path("tmp"), 0o777|fs.ModeSticky))
	for name, minor := range map[string]int{"null": 3, "zero": 5, "random": 8, "urandom": 9} {
		path := r.path("dev/" + name)
		if e := syscall.Mknod(path, syscall.S_IFCHR|0o666, 1<<8|minor); e != nil {
			err = errors.Join(err, &fs.PathError{Op: "mknod", Path: path, Err: e})
			continue
		}
		err = errors.Join(err, os.Chmod(path, 0o666))
	}
	return err
}

// users makes root and the user who uses Parley.
func (r root) users() error {
	passwd := fmt.Sprintf("root:x:0:0::/root:/bin/sh\nann:x:%d:%d::%s:/bin/sh\n", user, user, home)
	return errors.Join(os.WriteFile(r.path("etc/passwd"), []byte(passwd), 0o644), os.WriteFile(r.path("etc/group"), []byte(fmt.Sprintf("root:x:0:\nann:x:%d:\n", user)), 0o644),
		os.MkdirAll(r.path("root"), 0o700), os.MkdirAll(r.path(home), 0o755), os.Chown(r.path(home), user, user))
}

// sh runs a script in the root as a user, 0 or the constant user, in the user's home.
func (r root) sh(ctx context.Context, uid int, script string) (string, error) {
	id, directory := strconv.Itoa(uid), home
	if uid == 0 {
		directory = "/root"
	}
	// The mount ends with the last process of the namespace.
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "sh", "-c", `mount -t proc proc "$1/proc" && shift && exec chroot "$@"`, "sh", string(r),
		"--userspec="+id+":"+id, string(r), "/usr/bin/env", "-i", "HOME="+directory, "PATH="+home+"/.local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PARLEY_HTTP_PORT=0", "npm_config_update_notifier=false",
		"/bin/sh", "-ec", "cd ~\n"+script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s", script, err, out)
	}
	return string(out), nil
}

// kill kills what runs in the root. It returns the command lines.
func (r root) kill() (killed []string) {
	entries, err := filepath.Glob("/proc/[0-9]*/root")
	if err != nil {
		panic(err) // a wrong pattern
	}
	for _, path := range entries {
		if of, err := os.Readlink(path); err != nil || of != string(r) {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline")) // it may have ended
		killed = append(killed, string(bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte(" "))))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return killed
}

// end removes the root, and what runs in it.
func (r root) end() error {
	r.kill()
	return os.RemoveAll(string(r))
}

// files lists what is in the root, each with its kind, its size and the time of its last change.
func (r root) files() (map[string]string, error) {
	all := map[string]string{}
	err := filepath.WalkDir(string(r), func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(p, string(r))
		all[name] = info.Mode().String()
		if info.Mode().IsRegular() {
			all[name] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
		}
		return nil
	})
	return all, err
}

// output runs a program of this machine and returns what it prints.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, stderr.Bytes())
	}
	return string(out), nil
}
