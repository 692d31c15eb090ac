// Package service lets the user's operating system run the hub: it starts it at login and again when it has failed. It is a systemd
// user unit on Linux, a launchd agent on macOS and a scheduled task on Windows; none needs an administrator.
package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Code is the kind of an error.
type Code string

// The codes of an [Error].
const (
	CodeUnsupported Code = "unsupported"   // the system has no service manager that this package knows
	CodeManager     Code = "manager"       // the service manager refused something
	CodeFile        Code = "file"          // the definition cannot be written or removed
	CodeMissing     Code = "not-installed" // there is no service
)

// Error is what the package returns.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

// Status is the state of the service.
type Status struct {
	Manager   string `json:"manager"` // systemd, launchd or task-scheduler
	File      string `json:"file"`    // its definition
	Installed bool   `json:"installed"`
	Running   bool   `json:"running"`
	Package   bool   `json:"package,omitempty"` // the definition is that of a package, and none of the user's files
}

// Options are the options of [New]; the zero value is for this user and system.
type Options struct {
	System string // as runtime.GOOS
	Home   string // the user's home directory
	Config string // of systemd's units: $XDG_CONFIG_HOME
	User   string // the name, with the domain on Windows
	UID    string
	Path   string // $PATH, in which the hub finds the agents' programs
	// Run runs a program of the system and returns what it prints.
	Run func(ctx context.Context, name string, args ...string) (string, error)
}

// Service is the hub as a service of the user.
type Service struct {
	manager manager
	path    string
	run     func(ctx context.Context, name string, args ...string) (string, error)
}

// manager is a service manager: what it is told, and how.
type manager interface {
	name() string
	file() string
	// define returns the content of the file for a command line and the PATH of its process.
	define(command []string, path string) []byte
	// The following return command lines. register lets the manager read the file, and fails where the user has no such manager.
	register() [][]string
	start() [][]string
	stop() [][]string
	running() []string
	// isRunning interprets what running prints.
	isRunning(output string) bool
	// restart lets the service run the program that is on disk now.
	restart() [][]string
}

// New returns the service of a user. It changes nothing.
func New(o Options) (*Service, error) {
	if o.System == "" {
		if err := o.fill(); err != nil {
			return nil, err
		}
	}
	s := &Service{run: o.Run, path: o.Path}
	if s.run == nil {
		s.run = runProgram
	}
	switch o.System {
	case "linux":
		s.manager = systemd{filepath.Join(o.Config, "systemd", "user", "parley.service")}
	case "darwin":
		s.manager = launchd{path: filepath.Join(o.Home, "Library", "LaunchAgents", launchdLabel+".plist"), domain: "gui/" + o.UID}
	case "windows":
		s.manager = scheduler{path: filepath.Join(o.Home, ".a2a-hub-service.xml"), user: o.User}
	default:
		return nil, &Error{Code: CodeUnsupported, Message: "there is no service for " + o.System, Remedy: "start the hub with: parley start"}
	}
	return s, nil
}

// fill completes the options for this user and system.
func (o *Options) fill() error {
	home, err := os.UserHomeDir()
	if err != nil {
		return &Error{Code: CodeFile, Message: "the home directory is not known: " + err.Error(), Err: err}
	}
	u, err := user.Current()
	if err != nil {
		return &Error{Code: CodeFile, Message: "the user is not known: " + err.Error(), Err: err}
	}
	o.System, o.Home, o.User, o.UID, o.Path = runtime.GOOS, home, u.Username, u.Uid, os.Getenv("PATH")
	if o.Config = os.Getenv("XDG_CONFIG_HOME"); !filepath.IsAbs(o.Config) {
		o.Config = filepath.Join(home, ".config")
	}
	return nil
}

// runProgram runs a program of the system.
func runProgram(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return string(out), err
}

// Install writes the definition of the service, which runs command, calls free once the manager has read it, and starts it. It replaces
// an earlier definition, and restores it if the manager refuses the new one, or free fails.
func (s *Service) Install(ctx context.Context, command []string, free func() error) error {
	path := s.manager.file()
	earlier, readErr := os.ReadFile(path)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, s.manager.define(command, s.path), 0o600)
	}
	if err != nil {
		return &Error{Code: CodeFile, Message: "cannot write " + path + ": " + err.Error(), Err: err}
	}
	if err = s.all(ctx, s.manager.register()); err == nil {
		err = free()
	}
	if err == nil {
		if _, ok := s.manager.(interface{ replaces() }); ok && readErr == nil {
			_ = s.all(ctx, s.manager.stop()) // it may not know the earlier definition any more
		}
		err = s.all(ctx, s.manager.start())
	}
	if err == nil {
		return nil
	}
	if readErr == nil {
		return errors.Join(err, os.WriteFile(path, earlier, 0o600))
	}
	return errors.Join(err, os.Remove(path))
}

// Uninstall stops the service and removes its definition.
func (s *Service) Uninstall(ctx context.Context) error {
	path := s.manager.file()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if file := s.packaged(ctx); file != "" {
			return &Error{Code: CodeMissing, Message: "the service is not the user's own but that of a package: " + file,
				Remedy: "stop it with: " + strings.Join(s.manager.stop()[0], " ")}
		}
		return &Error{Code: CodeMissing, Message: "the service is not installed", Remedy: "install it with: parley service install"}
	}
	stopErr := s.all(ctx, s.manager.stop()) // the definition goes, also where the manager does not know the service any more
	if err := os.Remove(path); err != nil {
		return errors.Join(stopErr, &Error{Code: CodeFile, Message: "cannot remove " + path + ": " + err.Error(), Err: err})
	}
	if r, ok := s.manager.(interface{ removed() [][]string }); ok {
		return errors.Join(stopErr, s.all(ctx, r.removed()))
	}
	return stopErr
}

// Restart lets the service run the program that is on disk now.
func (s *Service) Restart(ctx context.Context) error { return s.all(ctx, s.manager.restart()) }

// Has reports whether the service is installed with an argument, such as --data-dir=/home/ann/.a2a-hub.
func (s *Service) Has(argument string) bool {
	text, err := os.ReadFile(s.manager.file())
	return err == nil && strings.Contains(strings.ReplaceAll(string(text), "\x00", ""), argument) // UTF-16 has them
}

// Status returns the state of the service.
func (s *Service) Status(ctx context.Context) Status {
	st := Status{Manager: s.manager.name(), File: s.manager.file()}
	if _, err := os.Stat(st.File); err != nil {
		file := s.packaged(ctx)
		if file == "" {
			return st
		}
		st.File, st.Package = file, true
	}
	st.Installed = true
	query := s.manager.running()
	out, err := s.run(ctx, query[0], query[1:]...)
	st.Running = err == nil && s.manager.isRunning(out)
	return st
}

// packaged returns the definition of a package, which is used while the user has none; "" if there is none, or the manager does not say.
func (s *Service) packaged(ctx context.Context) string {
	m, ok := s.manager.(interface{ definition() []string })
	if !ok {
		return ""
	}
	query := m.definition()
	out, err := s.run(ctx, query[0], query[1:]...)
	if file := strings.TrimSpace(out); err == nil && filepath.IsAbs(file) && file != s.manager.file() {
		return file
	}
	return ""
}

// StartCommand returns the command line with which the user starts the service, also that of a package.
func (s *Service) StartCommand() string { return strings.Join(s.manager.start()[0], " ") }

// Runs reports whether the service runs a process, also that of a definition which is not the user's own: a package's unit. It is false
// where the manager does not know the processes of its services.
func (s *Service) Runs(ctx context.Context, pid int) bool {
	m, ok := s.manager.(interface {
		process() []string
		isProcess(output string, pid int) bool
	})
	if !ok || pid <= 0 {
		return false
	}
	query := m.process()
	out, err := s.run(ctx, query[0], query[1:]...)
	return err == nil && m.isProcess(out, pid)
}

// all runs command lines until one fails.
func (s *Service) all(ctx context.Context, lines [][]string) error {
	for _, line := range lines {
		if out, err := s.run(ctx, line[0], line[1:]...); err != nil {
			return &Error{
				Code: CodeManager, Message: fmt.Sprintf("%s failed: %s", strings.Join(line, " "), strings.TrimSpace(err.Error()+" "+out)),
				Remedy: "start the hub without the service: parley start", Err: err,
			}
		}
	}
	return nil
}
