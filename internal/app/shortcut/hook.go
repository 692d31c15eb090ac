package shortcut

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/parleyhub/parley/internal/base/caller"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

// What other packages define that this one does not import; a test compares them.
const (
	tokenEnv      = "PARLEY_TASK_TOKEN" // package delegation
	methodEvent   = "hub/sessions/event"
	methodShown   = "hub/sessions/shown"
	notFound      = -32601
	infoName      = "hub.json" // package daemon
	configName    = "config.yaml"
	dirName       = ".a2a-hub"
	maxEventInput = 1 << 20
	wakeExit      = 2
)

const (
	hookTime  = 2 * time.Second // as of the command
	maxFile   = 256 << 10       // bytes, of the hub's description and configuration
	maxAnswer = 1 << 20
)

// hook is a call of `parley hook`.
type hook struct {
	args           []string // the vendor, and the event's name unless the input has it
	getenv         func(string) string
	stdin          io.Reader
	stdout, stderr io.Writer
}

// event and reply are the parameters and the result of hub/sessions/event.
type event struct {
	Vendor   string           `json:"vendor"`
	Event    string           `json:"event,omitempty"`
	Input    string           `json:"input"`
	Headless bool             `json:"headless,omitempty"`
	Process  presence.Process `json:"process,omitzero"`
}

type reply struct {
	Output string `json:"output"`
	Wake   string `json:"wake"`
	Notice string `json:"notice"`
}

// run hands an event over to the running hub, and returns the exit code. Without done the event is left to the command, which
// reads stdin: there is no hub, its place is configured, it is of another version, or the event is of an agent of the hub.
func (h *hook) run() (code int, done bool) {
	hub, ok := h.connect()
	if !ok {
		return 0, false
	}
	defer hub.Close()
	input, ok := h.read()
	if !ok {
		return 0, true // as the command, which fails no session
	}
	if len(input) > maxEventInput || !utf8.Valid(input) {
		h.stdin = io.MultiReader(bytes.NewReader(input), h.stdin)
		return 0, false
	}
	e := event{Vendor: h.args[0], Input: string(input), Headless: presence.Headless(h.args[0], h.getenv), Process: presence.ProcessOf(h.args[0], h.getenv)}
	if len(h.args) > 1 {
		e.Event = h.args[1]
	}
	answers := bufio.NewReader(io.LimitReader(hub, maxAnswer))
	var r reply
	switch err := call(hub, answers, methodEvent, e, &r); {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, errRefused):
		return 0, true
	case err != nil:
		h.stdin = bytes.NewReader(input)
		return 0, false
	}
	if _, err := io.WriteString(h.stdout, r.Output); err != nil {
		return 0, true // the session did not get it
	}
	if r.Notice != "" {
		_ = call(hub, answers, methodShown, map[string]string{"notice": r.Notice}, nil) // else it is shown again
	}
	if r.Wake == "" {
		return 0, true
	}
	_, _ = io.WriteString(h.stderr, r.Wake+"\n")
	return wakeExit, true
}

// connect connects to the hub whose data directory is the usual one, or named by the environment.
func (h *hook) connect() (net.Conn, bool) {
	if h.getenv(tokenEnv) != "" || h.getenv("PARLEY_SOCKET") != "" || h.getenv("PARLEY_CONFIG") != "" {
		return nil, false
	}
	dir := h.getenv("PARLEY_DATA_DIR")
	if dir == "" {
		dir = filepath.Join(h.getenv("HOME"), dirName)
		if config, err := readFile(filepath.Join(dir, configName)); !errors.Is(err, os.ErrNotExist) && (err != nil || bytes.Contains(config, []byte("dataDir"))) {
			return nil, false
		}
	}
	var info struct {
		Socket string `json:"socket"`
	}
	data, err := readFile(filepath.Join(dir, infoName))
	if err != nil || !filepath.IsAbs(dir) || json.Unmarshal(data, &info) != nil {
		return nil, false
	}
	file, err := os.Stat(info.Socket)
	if err != nil || !local.IsSocket(file) || !local.OwnedByUser(file) {
		return nil, false
	}
	conn, err := net.DialTimeout("unix", info.Socket, hookTime)
	if err != nil {
		return nil, false
	}
	if caller.Of(conn).Kind == caller.Other || conn.SetDeadline(time.Now().Add(hookTime)) != nil {
		_ = conn.Close() // it was only opened
		return nil, false
	}
	return conn, true
}

// readFile reads a file of bounded size.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// read reads the event. It returns false for input that cannot be read or does not end in time.
func (h *hook) read() ([]byte, bool) {
	type result struct {
		input []byte
		err   error
	}
	done := make(chan result, 1)
	go func() { // ends with the process: standard input may never end
		input, err := io.ReadAll(io.LimitReader(h.stdin, maxEventInput+1))
		done <- result{input, err}
	}()
	select {
	case r := <-done:
		return r.input, r.err == nil
	case <-time.After(hookTime):
		return nil, false
	}
}

// errRefused means that the hub has refused a request.
var errRefused = errors.New("the hub has refused the request")

// call sends a request to the hub and reads the answer into result, unless that is nil.
func call(hub io.Writer, answers *bufio.Reader, method string, params, result any) error {
	request, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		return err
	}
	if _, err := hub.Write(append(request, '\n')); err != nil {
		return err
	}
	line, err := answers.ReadBytes('\n')
	if err != nil {
		return err
	}
	var a struct {
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Code int `json:"code"`
		} `json:"error"`
	}
	switch err := json.Unmarshal(line, &a); {
	case err != nil:
		return err
	case a.Error != nil && a.Error.Code == notFound:
		return errors.New("the hub is of another version")
	case a.Error != nil:
		return errRefused
	case result == nil:
		return nil
	}
	return json.Unmarshal(a.Result, result)
}
