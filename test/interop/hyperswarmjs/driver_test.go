//go:build interop

package hyperswarmjs_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

const modulesVariable = "PARLEY_INTEROP_NODE_MODULES"

// unmet skips a test whose requirement is missing, or fails it where all must be present.
func unmet(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(modulesVariable) != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// driver is a Node.js process that executes calls.
type driver struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	wg    sync.WaitGroup

	mu    sync.Mutex
	calls map[int]chan result
	last  int
	over  bool
}

// result has the fields of all answers.
type result struct {
	Call      int      `json:"call"`
	Failed    string   `json:"failed"`
	ID        int      `json:"id"`
	Key       string   `json:"key"`
	Keys      []string `json:"keys"`
	Hash      string   `json:"hash"`
	Value     string   `json:"value"`
	Seq       uint64   `json:"seq"`
	Missing   bool     `json:"missing"`
	Bootstrap []string `json:"bootstrap"`
	Nodes     []string `json:"nodes"`
	Received  int      `json:"received"`
	Closed    bool     `json:"closed"`
	Ended     bool     `json:"ended"`
	Error     string   `json:"error"`
	Conns     []int    `json:"conns"`
	Micros    int      `json:"micros"`
	Sent      int      `json:"sent"`
	Resent    int      `json:"retransmits"`
}

type args = map[string]any

// javascript starts a driver that ends with the test.
func javascript(t testing.TB) *driver {
	t.Helper()
	return javascriptBy(t, (*exec.Cmd).Start)
}

// javascriptBy is javascript for a driver that is started by a given command.
func javascriptBy(t testing.TB, start func(*exec.Cmd) error) *driver {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		unmet(t, "node is not in PATH")
	}
	modules := os.Getenv(modulesVariable)
	if modules == "" {
		modules = filepath.Join("..", "node_modules")
	}
	if modules, err = filepath.Abs(modules); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(modules, "hyperswarm")); err != nil {
		unmet(t, "hyperswarm is not in "+modules)
	}
	// node searches for modules only beside the script.
	dir := t.TempDir()
	script, err := os.ReadFile("driver.mjs")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "driver.mjs"), script, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	d := &driver{t: t, cmd: exec.Command(node, "driver.mjs"), calls: make(map[int]chan result)}
	d.cmd.Dir, d.cmd.Stderr = dir, os.Stderr
	if d.stdin, err = d.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := start(d.cmd); err != nil {
		t.Fatal(err)
	}
	d.wg.Go(func() { d.read(stdout) })
	t.Cleanup(d.close)
	return d
}

func (d *driver) read(r io.Reader) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var res result
		if err := json.Unmarshal(in.Bytes(), &res); err != nil {
			d.t.Errorf("the driver printed %q: %v", in.Text(), err)
			continue
		}
		d.mu.Lock()
		c := d.calls[res.Call]
		delete(d.calls, res.Call)
		d.mu.Unlock()
		if c != nil {
			c <- res
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	for _, c := range d.calls {
		close(c)
	}
}

func (d *driver) close() {
	_ = d.stdin.Close() // which ends the process
	d.wg.Wait()
	_ = d.cmd.Wait() // it may have been killed by the test
}

// kill ends the process as a crash would.
func (d *driver) kill() {
	if err := d.cmd.Process.Kill(); err != nil {
		d.t.Error(err)
	}
}

// start begins a call and returns a channel that receives its result.
func (d *driver) start(op string, a args) <-chan result {
	d.t.Helper()
	c := make(chan result, 1)
	d.mu.Lock()
	d.last++
	line := args{"call": d.last, "op": op}
	for k, v := range a {
		line[k] = v
	}
	if d.over {
		close(c)
	} else {
		d.calls[d.last] = c
	}
	d.mu.Unlock()
	data, err := json.Marshal(line)
	if err != nil {
		d.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(d.stdin, "%s\n", data); err != nil {
		d.t.Errorf("write to the driver: %v", err)
	}
	return c
}

// try executes a call that may fail; only a timeout, or the driver's end, fails the test.
func (d *driver) try(op string, a args) result {
	d.t.Helper()
	select {
	case r, ok := <-d.start(op, a):
		if !ok {
			d.t.Fatalf("%s: the driver has ended", op)
		}
		return r
	case <-time.After(2 * time.Minute):
		d.t.Fatalf("%s takes too long", op)
		return result{}
	}
}

// call is try for goroutines, which may not end the test: it returns an error.
func (d *driver) call(op string, a args) (result, error) {
	select {
	case r, ok := <-d.start(op, a):
		if !ok {
			return r, fmt.Errorf("%s: the driver has ended", op)
		}
		if r.Failed != "" {
			return r, fmt.Errorf("%s: %s", op, r.Failed)
		}
		return r, nil
	case <-time.After(2 * time.Minute):
		return result{}, fmt.Errorf("%s takes too long", op)
	}
}

// do executes a call, and fails the test if the call fails.
func (d *driver) do(op string, a args) result {
	d.t.Helper()
	r := d.try(op, a)
	if r.Failed != "" {
		d.t.Fatalf("%s: %s", op, r.Failed)
	}
	return r
}
