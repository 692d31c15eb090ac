package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// hub is a hub's process with a data directory of its own. Its methods are for one goroutine, except url.
type hub struct {
	program string
	dir     string
	port    int
	process *exec.Cmd // nil while it does not run
	log     *os.File

	home      string                // what the programs have for the user's home, with the data
	env       []string              // settings for all programs
	web       http.Client           // reaches the hub
	launch    func(*exec.Cmd) error // starts a program where the hub is; nil for here
	disk      sync.RWMutex          // held for reading while a program starts; for writing while home is away
	public    bool                  // its agents are for those of other computers, too
	agentLogs bool                  // keep what agents write on standard error
	edited    *edited               // what no fault may change; nil for nothing
}

// project returns the directory in which agents work.
func (h *hub) project() string { return filepath.Join(h.home, "project") }

// startTime bounds a start of the hub, stopTime a stop.
const (
	startTime = 2 * time.Minute
	stopTime  = time.Minute
)

// newHub prepares a hub below dir. Without a program it builds the one of this repository.
func newHub(ctx context.Context, dir, program string) (*hub, error) {
	if program == "" {
		var err error
		if program, err = buildHub(ctx, dir); err != nil {
			return nil, err
		}
	}
	// The port stays the same over all restarts.
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := ln.Addr().(*net.TCPAddr).Port
	return &hub{program: program, dir: dir, port: port, home: dir}, ln.Close()
}

// buildHub builds the hub's program of this repository.
func buildHub(ctx context.Context, dir string, flags ...string) (program string, err error) {
	program = filepath.Join(dir, "parley")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	args := append(append([]string{"build", "-o", program}, flags...), "./cmd/parley")
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the hub: %w\n%s", err, out)
	}
	return program, nil
}

func (h *hub) url() string { return fmt.Sprintf("http://127.0.0.1:%d/", h.port) }

// start starts the hub and returns when it answers.
func (h *hub) start(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(h.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	h.log = log
	h.process = h.command("start", "--foreground")
	h.process.Stdout, h.process.Stderr = log, log
	if err := h.run(h.process); err != nil {
		h.process = nil
		return errors.Join(err, log.Close())
	}
	deadline := time.Now().Add(startTime)
	for time.Now().Before(deadline) && ctx.Err() == nil {
		if h.healthy() {
			return nil
		}
		pause(ctx, pollTime)
	}
	return fmt.Errorf("the hub has not started: %s", h.lastLog())
}

// pollTime is the pause between two looks at a hub.
const pollTime = 10 * time.Millisecond

// healthy reports whether the hub answers, and is well.
func (h *hub) healthy() bool {
	resp, err := h.web.Get(h.url() + "health")
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // nothing is read
	return resp.StatusCode == http.StatusOK
}

// run starts a program where the hub is.
func (h *hub) run(cmd *exec.Cmd) error {
	if h.launch != nil {
		return h.launch(cmd)
	}
	return cmd.Start()
}

// command returns the command line of Parley's program for this hub.
func (h *hub) command(args ...string) *exec.Cmd {
	cmd := exec.Command(h.program, args...)
	cmd.Env = append(os.Environ(), "HOME="+h.home, "PARLEY_DATA_DIR="+filepath.Join(h.home, "data"), fmt.Sprintf("PARLEY_HTTP_PORT=%d", h.port))
	cmd.Env = append(cmd.Env, h.env...)
	return cmd
}

// upgrade replaces the hub by a program, which runs in the background then, and returns what was printed.
func (h *hub) upgrade(ctx context.Context, program string) ([]byte, error) {
	old := h.program
	h.program = program
	cmd := h.command("upgrade", "--again", "--format", "json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	killed := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer killed()
	out, err := cmd.Output()
	if err != nil {
		h.program = old
		return out, fmt.Errorf("upgrade: %w: %s", err, stderr.Bytes())
	}
	return append(out, stderr.Bytes()...), h.end() // the old process has ended
}

// quit stops a hub in the background. Without a running one it does nothing.
func (h *hub) quit() error {
	if h.process != nil {
		return h.stop()
	}
	if out, err := h.command("stop").CombinedOutput(); err != nil && !bytes.Contains(out, []byte("no hub")) {
		return fmt.Errorf("stop: %w: %s", err, out)
	}
	return nil
}

func (h *hub) lastLog() string {
	data, err := os.ReadFile(filepath.Join(h.dir, "log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "\n")
}

// kill ends the hub at once. Without a running one it does nothing.
func (h *hub) kill() {
	if h.process != nil {
		_ = h.process.Process.Kill() // it may have ended
		_ = h.end()                  // it was killed
	}
}

// stop ends the hub in order.
func (h *hub) stop() error {
	if err := h.process.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	killed := time.AfterFunc(stopTime, func() { _ = h.process.Process.Kill() })
	err := h.end()
	if !killed.Stop() {
		return fmt.Errorf("the hub has not stopped within %v: %s", stopTime, h.lastLog())
	}
	return err
}

func (h *hub) end() error {
	err := h.process.Wait()
	h.process = nil
	return errors.Join(err, h.log.Close())
}
