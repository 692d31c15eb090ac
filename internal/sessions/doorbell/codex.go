package doorbell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

const (
	appServerTime  = 5 * time.Second
	maxFrame       = 4 << 20 // bytes; a thread may have a long preview
	maxThreads     = 50
	maxFrames      = 200 // notifications of other threads that come before an answer
	controlSocket  = "app-server-control/app-server-control.sock"
	waitsForAnswer = "waitingOn" // the beginning of the flags of a thread that waits for its user
	// openingTime is how long a thread is left alone after its MCP server has begun. The terminal that has opened it reads its turns and
	// then subscribes to it, and would not show a turn that begins in between.
	openingTime = 3 * time.Second
)

// AppServer wakes sessions of Codex through the daemon that serves all of a user's sessions. It neither subscribes to a thread
// nor answers what Codex asks its user.
type AppServer struct {
	// Home is Codex's directory, if the session's transcript does not name it.
	Home string
	// Version is Parley's.
	Version string
	// Sessions returns the sessions that are known; nil for none. A thread of another one is not that of a session without a thread.
	Sessions func() []presence.Session
	// Former returns the agent that a thread had before its user resumed it, "" if that is not known; nil for none.
	Former func(thread string) (guid string)
	// Now is the clock; time.Now by default.
	Now func() time.Time
}

// Ring implements [Bell].
func (a AppServer) Ring(ctx context.Context, s presence.Session, words string, _ func(Outcome)) (Outcome, error) {
	if a.opens(s) {
		return Busy, nil
	}
	ctx, cancel := context.WithTimeout(ctx, appServerTime)
	defer cancel()
	path, err := ownSocket(filepath.Join(a.home(s), filepath.FromSlash(controlSocket)))
	if err != nil {
		return Unable, err
	}
	c, err := dialAppServer(ctx, path)
	if err != nil {
		return Unable, fmt.Errorf("codex's daemon cannot be reached: %w", err)
	}
	defer c.conn.CloseNow()
	defer c.client.CloseIdleConnections()
	if err := c.greet(ctx, a.Version); err != nil {
		return Unable, err
	}
	thread := s.ID
	if thread == "" {
		if thread, err = a.find(ctx, c, s); err != nil {
			return Unable, err
		}
	}
	return c.start(ctx, thread, words)
}

// opens reports whether a terminal may be opening the session's thread.
func (a AppServer) opens(s presence.Session) bool {
	now := a.Now
	if now == nil {
		now = time.Now
	}
	age := now().Sub(s.ServerSince)
	return age >= 0 && age < openingTime
}

// home returns Codex's directory: a session's transcript is below its folder sessions.
func (a AppServer) home(s presence.Session) string {
	if dir, _, ok := strings.Cut(filepath.ToSlash(s.Transcript), "/sessions/"); ok && filepath.IsAbs(dir) {
		return filepath.FromSlash(dir)
	}
	return a.Home
}

// taken returns the threads that are known to be those of other sessions than s.
func (a AppServer) taken(s presence.Session) (threads []string) {
	if a.Sessions == nil {
		return nil
	}
	for _, x := range a.Sessions() {
		if x.Vendor == presence.Codex && x.ID != "" && x.GUID != "" && x.GUID != s.GUID && !x.Guessed {
			threads = append(threads, x.ID)
		}
	}
	return threads
}

// appServer is a connection to Codex's daemon.
type appServer struct {
	conn   *websocket.Conn
	client *http.Client
	last   int
}

func dialAppServer(ctx context.Context, path string) (*appServer, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		if err := checkPeer(conn, 0); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return conn, nil
	}}}
	conn, _, err := websocket.Dial(ctx, "ws://localhost/", &websocket.DialOptions{HTTPClient: client}) //nolint:bodyclose // the package closes it
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(maxFrame)
	return &appServer{conn: conn, client: client}, nil
}

// thread is what Codex says of a thread.
type thread struct {
	Ephemeral bool   `json:"ephemeral"`
	Dir       string `json:"cwd"`
	Status    struct {
		Type  string   `json:"type"`
		Flags []string `json:"activeFlags"`
	} `json:"status"`
}

func (c *appServer) greet(ctx context.Context, version string) error {
	hello := map[string]any{"clientInfo": map[string]any{"name": "parley", "title": "Parley", "version": version}, "capabilities": map[string]any{"experimentalApi": true}}
	if err := c.call(ctx, "initialize", hello, nil); err != nil {
		return err
	}
	return c.write(ctx, map[string]any{"method": "initialized"})
}

func (c *appServer) read(ctx context.Context, id string) (thread, error) {
	var r struct {
		Thread thread `json:"thread"`
	}
	err := c.call(ctx, "thread/read", map[string]any{"threadId": id}, &r)
	return r.Thread, err
}

// find returns the thread of a session that has had no turn, so that no hook has named it: the one that was its agent's before, or else the
// only one in its directory that is no other agent's.
func (a AppServer) find(ctx context.Context, c *appServer, s presence.Session) (id string, err error) {
	threads, err := c.threads(ctx, s.Dir, a.taken(s))
	if err != nil {
		return "", err
	}
	var former, free []string
	for _, x := range threads {
		switch guid := a.former(x); guid {
		case "":
			free = append(free, x)
		case s.GUID:
			former = append(former, x)
		}
	}
	if len(former) > 0 {
		free = former
	}
	switch len(free) {
	case 0:
		return "", errors.New("codex has no open thread in its directory")
	case 1:
		return free[0], nil
	}
	return "", errors.New("several threads work in its directory, and it has had no turn")
}

func (a AppServer) former(thread string) string {
	if a.Former == nil {
		return ""
	}
	return a.Former(thread)
}

// threads returns the open threads that work in a directory and are not taken.
func (c *appServer) threads(ctx context.Context, dir string, taken []string) (ids []string, err error) {
	var loaded struct {
		Data []string `json:"data"`
	}
	if err := c.call(ctx, "thread/loaded/list", map[string]any{}, &loaded); err != nil {
		return nil, err
	}
	for _, x := range loaded.Data[:min(len(loaded.Data), maxThreads)] {
		if slices.Contains(taken, x) {
			continue
		}
		t, err := c.read(ctx, x)
		if err == nil && !t.Ephemeral && t.Dir == dir && dir != "" {
			ids = append(ids, x)
		}
	}
	return ids, nil
}

// start starts a turn of a thread that is idle.
func (c *appServer) start(ctx context.Context, id, input string) (Outcome, error) {
	t, err := c.read(ctx, id)
	switch {
	case err != nil:
		return Unable, err
	case t.Ephemeral || t.Status.Type == "notLoaded":
		return Unable, errors.New("its thread is not open")
	case t.Status.Type != "idle", slices.ContainsFunc(t.Status.Flags, func(f string) bool { return strings.HasPrefix(f, waitsForAnswer) }):
		return Busy, nil
	}
	err = c.call(ctx, "turn/start", map[string]any{"threadId": id, "clientUserMessageId": uuid.NewString(),
		"input": []any{map[string]any{"type": "text", "text": input}}}, nil)
	if err != nil {
		return Unable, err
	}
	return Rung, nil
}

// call sends a request and reads its answer into out. Notifications are dropped, requests of the daemon are not answered.
func (c *appServer) call(ctx context.Context, method string, params, out any) error {
	c.last++
	if err := c.write(ctx, map[string]any{"id": c.last, "method": method, "params": params}); err != nil {
		return err
	}
	for range maxFrames {
		_, data, err := c.conn.Read(ctx)
		if err != nil {
			return err
		}
		result, ok, err := decodeAnswer(data, c.last)
		if !ok && err == nil {
			continue
		}
		if err != nil || out == nil {
			return err
		}
		return json.Unmarshal(result, out)
	}
	return fmt.Errorf("no answer to %s among %d messages", method, maxFrames)
}

// decodeAnswer returns the result of a request; ok is false for another message.
func decodeAnswer(data []byte, id int) (result json.RawMessage, ok bool, err error) {
	var m struct {
		ID     *int            `json:"id"`
		Method string          `json:"method"`
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(data, &m) != nil || m.ID == nil || *m.ID != id || m.Method != "" {
		return nil, false, nil
	}
	if m.Error != nil {
		return nil, true, fmt.Errorf("codex: %s", text.Clip(text.OneLine(m.Error.Message), 300))
	}
	return m.Result, true, nil
}

func (c *appServer) write(ctx context.Context, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.conn.Write(ctx, websocket.MessageText, data)
}

// ownSocket returns the socket at a path, which may be a link, if it and the link are the user's and nobody else can write to its
// directory.
func ownSocket(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", fmt.Errorf("no socket: %w", err)
	}
	if !owned(info) {
		return "", fmt.Errorf("%s belongs to another user", path)
	}
	if info.Mode()&os.ModeSymlink != 0 {
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return "", err
		}
	}
	return path, checkSocket(path)
}

// checkSocket returns an error unless a path is a socket of the user in a directory of the user that nobody else can change.
func checkSocket(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	dir, err := os.Stat(filepath.Dir(path))
	switch {
	case err != nil:
		return err
	case info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("%s is not a socket", path)
	case !owned(info) || !owned(dir):
		return fmt.Errorf("%s belongs to another user", path)
	case dir.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others can write to the directory of %s", path)
	}
	return nil
}
