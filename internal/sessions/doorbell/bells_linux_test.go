package doorbell_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/parleyhub/parley/internal/sessions/doorbell"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

// shortDir returns a directory of the user's own with a path that is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bell")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func self() presence.Process { return presence.Running(os.Getpid()) }

func later(t *testing.T) func(doorbell.Outcome) {
	return func(o doorbell.Outcome) { t.Errorf("later it is %v", o) }
}

func TestAFileWakesASessionThatWatchesIt(t *testing.T) {
	f, err := doorbell.NewFile(filepath.Join(shortDir(t), "bells"))
	if err != nil {
		t.Fatal(err)
	}
	s := presence.Session{Vendor: presence.Claude, Process: self()}
	if o, err := f.Ring(t.Context(), s, "hello", later(t)); o != doorbell.Unable || err == nil {
		t.Errorf("a session that watches nothing: %v, %v", o, err)
	}
	path, err := f.Watch(s)
	if err != nil || path == "" {
		t.Fatal(path, err)
	}
	hooked := make(chan string, 1)
	go func() { // as the hook that the change calls
		for {
			if data, err := os.ReadFile(path); err == nil && len(data) > 0 {
				break
			}
		}
		text, _ := f.Take(s.Process)
		again, ok := f.Take(s.Process)
		hooked <- fmt.Sprint(text, again, ok)
	}()
	if o, err := f.Ring(t.Context(), s, "hello", later(t)); o != doorbell.Rung || err != nil {
		t.Errorf("%v, %v", o, err)
	}
	if got := <-hooked; got != "hello"+"false" {
		t.Errorf("the hook got %q", got)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if o, _ := f.Ring(canceled, s, "hello", later(t)); o != doorbell.Unable {
		t.Errorf("without a hook: %v", o)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.Watch(presence.Session{Vendor: presence.OpenCode, Process: s.Process})
	if after, _ := os.ReadFile(path); err != nil || again != path || len(before) == 0 || string(after) != string(before) {
		t.Errorf("the bell of a session that watches already rings: %q, %v", after, err)
	}
	if path, err := f.Watch(presence.Session{Vendor: presence.Codex, Process: self()}); path != "" || err != nil {
		t.Errorf("codex watches %q, %v", path, err)
	}
}

func TestFilesOfSessionsThatHaveEndedAreRemoved(t *testing.T) {
	dir := shortDir(t)
	f, err := doorbell.NewFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(dir, "999999999-1")
	if err := os.WriteFile(old, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Watch(presence.Session{Vendor: presence.Claude, Process: self()}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("the file is there")
	}
}

// claude is a session of Claude Code that answers each message with a status; "" is none.
func claude(t *testing.T, change func(record map[string]any), statuses ...string) (config string, got chan map[string]any) {
	t.Helper()
	config = shortDir(t)
	socket := filepath.Join(config, "c.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	record := map[string]any{"pid": os.Getpid(), "procStart": self().Start, "sessionId": "s", "version": "2.1.329", "peerProtocol": 1,
		"kind": "interactive", "messagingSocketPath": socket, "status": "idle"}
	if change != nil {
		change(record)
	}
	data, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(config, "sessions"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "sessions", fmt.Sprint(os.Getpid())+".json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	got = make(chan map[string]any, 10)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var m map[string]any
			err = json.NewDecoder(conn).Decode(&m)
			_ = conn.Close()
			if err != nil {
				return
			}
			for _, status := range statuses {
				answer(t, m, status)
			}
			got <- m
		}
	}()
	return config, got
}

// answer sends a status as Claude Code does: it waits until the other side has read it and closes.
func answer(t *testing.T, m map[string]any, status string) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: strings.TrimPrefix(m["from"].(string), "uds:"), Net: "unix"})
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "not JSON\n{\"type\":\"control\",\"action\":\"peer_message_status\",\"status\":%q,\"orig_msg_id\":%q}\n", status, m["msg_id"])
	_ = conn.CloseWrite()
	_, _ = io.Copy(io.Discard, conn)
}

func TestASocketWakesASessionOfClaude(t *testing.T) {
	for name, c := range map[string]struct {
		statuses []string
		want     doorbell.Outcome
		later    doorbell.Outcome
	}{
		"taken":     {nil, doorbell.Rung, 0},
		"held":      {[]string{"held"}, doorbell.Held, 0},
		"delivered": {[]string{"held", "delivered"}, doorbell.Held, doorbell.Rung},
		"denied":    {[]string{"held", "denied"}, doorbell.Held, doorbell.Refused},
		"refused":   {[]string{"expired"}, doorbell.Refused, 0},
		"dropped":   {[]string{"dropped"}, doorbell.Busy, 0},
	} {
		t.Run(name, func(t *testing.T) {
			config, got := claude(t, nil, c.statuses...)
			b := doorbell.NewSocket(config, nil)
			defer b.Close()
			if len(c.statuses) > 0 {
				b.SetAnswerTime(time.Minute)
			}
			changed := make(chan doorbell.Outcome, 1)
			o, err := b.Ring(t.Context(), presence.Session{Vendor: presence.Claude, Process: self()}, "hello", func(o doorbell.Outcome) { changed <- o })
			if o != c.want || err != nil {
				t.Errorf("%v, %v", o, err)
			}
			m := <-got
			if m["type"] != "user" || m["session_id"] != "s" || !strings.Contains(fmt.Sprint(m["message"]), "\nhello\n") || strings.Contains(fmt.Sprint(m), "from-mode") {
				t.Errorf("the message is %v", m)
			}
			if c.later != 0 {
				if o := <-changed; o != c.later {
					t.Errorf("later it is %v", o)
				}
			}
		})
	}
}

func TestASocketIsUsedOnlyIfClaudesRecordIsOfTheSession(t *testing.T) {
	for name, c := range map[string]struct {
		change func(map[string]any)
		want   doorbell.Outcome
	}{
		"another process":  {func(r map[string]any) { r["procStart"] = "1" }, doorbell.Unable},
		"no terminal":      {func(r map[string]any) { r["kind"] = "print" }, doorbell.Unable},
		"switched off":     {func(r map[string]any) { delete(r, "messagingSocketPath") }, doorbell.Unable},
		"another version":  {func(r map[string]any) { r["version"] = "9.0" }, doorbell.Unable},
		"another protocol": {func(r map[string]any) { r["peerProtocol"] = 2 }, doorbell.Unable},
		"not JSON":         {func(r map[string]any) { r["pid"] = "x" }, doorbell.Unable},
		"not a socket":     {func(r map[string]any) { r["messagingSocketPath"] = os.Args[0] }, doorbell.Unable},
		"no socket":        {func(r map[string]any) { r["messagingSocketPath"] = "/nowhere" }, doorbell.Unable},
		"busy":             {func(r map[string]any) { r["status"] = "busy" }, doorbell.Busy},
	} {
		t.Run(name, func(t *testing.T) {
			config, _ := claude(t, c.change)
			b := doorbell.NewSocket(config, nil)
			defer b.Close()
			if o, _ := b.Ring(t.Context(), presence.Session{Vendor: presence.Claude, Process: self()}, "hello", later(t)); o != c.want {
				t.Errorf("it is %v", o)
			}
		})
	}
	b := doorbell.NewSocket(shortDir(t), nil)
	defer b.Close()
	for _, s := range []presence.Session{{Vendor: presence.Claude}, {Vendor: presence.Claude, Process: self()}} {
		if o, err := b.Ring(t.Context(), s, "hello", later(t)); o != doorbell.Unable || err == nil {
			t.Errorf("without a record: %v, %v", o, err)
		}
	}
}

// A connection that says nothing neither holds up the answers of others nor the end.
func TestASilentConnectionHoldsUpNothing(t *testing.T) {
	config, got := claude(t, nil, "held")
	b := doorbell.NewSocket(config, nil)
	b.SetAnswerTime(time.Minute)
	s := presence.Session{Vendor: presence.Claude, Process: self()}
	if _, err := b.Ring(t.Context(), s, "hello", func(doorbell.Outcome) {}); err != nil {
		t.Fatal(err)
	}
	path := strings.TrimPrefix((<-got)["from"].(string), "uds:")
	var silent []net.Conn
	for range 15 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	for range 5 { // one of them is too many
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	b.Close()
	for _, conn := range silent {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a connection says something")
		}
	}
}

// others can write to the directory: whoever is there may not be Claude Code.
func TestASocketInAnOpenDirectoryIsNotUsed(t *testing.T) {
	config, _ := claude(t, nil)
	if err := os.Chmod(config, 0o777); err != nil {
		t.Fatal(err)
	}
	b := doorbell.NewSocket(config, nil)
	defer b.Close()
	if o, err := b.Ring(t.Context(), presence.Session{Vendor: presence.Claude, Process: self()}, "hello", later(t)); o != doorbell.Unable || err == nil {
		t.Errorf("%v, %v", o, err)
	}
}

// codex is Codex's daemon with threads, by id.
func codex(t *testing.T, threads map[string]string) (home string, turns chan string) {
	t.Helper()
	home = shortDir(t)
	dir := filepath.Join(home, "app-server-control")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	real := filepath.Join(shortDir(t), "d.sock")
	l, err := net.Listen("unix", real)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, filepath.Join(dir, "app-server-control.sock")); err != nil {
		t.Fatal(err)
	}
	turns = make(chan string, 10)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serveCodex(w, r, threads, turns) })}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return home, turns
}

func serveCodex(w http.ResponseWriter, r *http.Request, threads map[string]string, turns chan string) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer conn.CloseNow()
	for {
		_, data, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		var m struct {
			ID     *int
			Method string
			Params struct {
				ThreadID string
				Input    []struct{ Text string }
			}
		}
		if json.Unmarshal(data, &m) != nil || m.ID == nil {
			continue
		}
		result := `{"id":%d,"result":{}}`
		switch m.Method {
		case "thread/loaded/list":
			ids := []string{}
			for id := range threads {
				ids = append(ids, id)
			}
			list, _ := json.Marshal(ids)
			result = `{"id":%d,"result":{"data":` + string(list) + `}}`
		case "thread/read":
			if result = `{"id":%d,"error":{"message":"no such thread"}}`; threads[m.Params.ThreadID] != "" {
				result = `{"id":%d,"result":{"thread":` + threads[m.Params.ThreadID] + `}}`
			}
		case "turn/start":
			turns <- m.Params.ThreadID + " " + m.Params.Input[0].Text
		}
		notice := []byte(`{"method":"thread/status/changed","params":{}}`)
		if conn.Write(r.Context(), websocket.MessageText, notice) != nil || conn.Write(r.Context(), websocket.MessageText, fmt.Appendf(nil, result, *m.ID)) != nil {
			return
		}
	}
}

func TestAnIdleThreadOfCodexIsWoken(t *testing.T) {
	home, turns := codex(t, map[string]string{
		"idle":    `{"cwd":"/p","status":{"type":"idle"}}`,
		"active":  `{"cwd":"/p","ephemeral":true,"status":{"type":"active"}}`,
		"busy":    `{"cwd":"/q","status":{"type":"active","activeFlags":["waitingOnApproval"]}}`,
		"same-q":  `{"cwd":"/q","status":{"type":"idle"}}`,
		"dropped": `{"cwd":"/r","status":{"type":"notLoaded"}}`,
		"resumed": `{"cwd":"/t","status":{"type":"idle"}}`,
		"too":     `{"cwd":"/t","status":{"type":"idle"}}`,
		"only":    `{"cwd":"/u","status":{"type":"idle"}}`,
		"one":     `{"cwd":"/s","status":{"type":"idle"}}`,
		"two":     `{"cwd":"/s","status":{"type":"idle"}}`,
	})
	now := time.Now()
	known := func() []presence.Session {
		return []presence.Session{{Vendor: presence.Codex, ID: "one", GUID: "a"}, {Vendor: presence.Codex, GUID: "b"},
			{Vendor: presence.Codex, ID: "two", GUID: "d", Guessed: true}, {Vendor: presence.Codex, ID: "two"}, {Vendor: presence.Claude, ID: "two", GUID: "e"}}
	}
	for name, c := range map[string]struct {
		s    presence.Session
		want doorbell.Outcome
		turn string
	}{
		"by its id":        {presence.Session{ID: "idle"}, doorbell.Rung, "idle hello"},
		"by its directory": {presence.Session{Dir: "/p"}, doorbell.Rung, "idle hello"},
		"by a transcript":  {presence.Session{ID: "idle", Transcript: home + "/sessions/2026/x.jsonl"}, doorbell.Rung, "idle hello"},
		"just opened":      {presence.Session{ID: "idle", ServerSince: now.Add(-time.Second)}, doorbell.Busy, ""},
		"opened":           {presence.Session{ID: "idle", ServerSince: now.Add(-3 * time.Second)}, doorbell.Rung, "idle hello"},
		"of a later clock": {presence.Session{ID: "idle", ServerSince: now.Add(time.Hour)}, doorbell.Rung, "idle hello"},
		"in a turn":        {presence.Session{ID: "busy"}, doorbell.Busy, ""},
		"two of them":      {presence.Session{Dir: "/q"}, doorbell.Unable, ""},
		"the other's":      {presence.Session{Dir: "/s", GUID: "b"}, doorbell.Rung, "two hello"},
		"its own of two":   {presence.Session{Dir: "/t", GUID: "f"}, doorbell.Rung, "resumed hello"},
		"no other's":       {presence.Session{Dir: "/u", GUID: "f"}, doorbell.Unable, ""},
		"none of them":     {presence.Session{Dir: "/none"}, doorbell.Unable, ""},
		"a title's":        {presence.Session{ID: "active"}, doorbell.Unable, ""},
		"not open":         {presence.Session{ID: "dropped"}, doorbell.Unable, ""},
		"unknown":          {presence.Session{ID: "unknown"}, doorbell.Unable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := doorbell.AppServer{Home: home, Version: "1", Now: func() time.Time { return now }, Sessions: known, Former: func(thread string) string {
				return map[string]string{"resumed": "f", "too": "g", "only": "g"}[thread]
			}}
			if c.s.Transcript != "" {
				a.Home = "/nowhere"
			}
			o, err := a.Ring(t.Context(), c.s, "hello", later(t))
			if o != c.want || (err != nil) != (c.want == doorbell.Unable) {
				t.Errorf("%v, %v", o, err)
			}
			if c.turn != "" {
				if got := <-turns; got != c.turn {
					t.Errorf("the turn is %q", got)
				}
			}
		})
	}
}

func TestCodexWithoutADaemonCannotBeWoken(t *testing.T) {
	home := shortDir(t)
	a := doorbell.AppServer{Home: home}
	if o, err := a.Ring(t.Context(), presence.Session{ID: "x"}, "hello", later(t)); o != doorbell.Unable || err == nil {
		t.Errorf("%v, %v", o, err)
	}
	if err := os.Mkdir(filepath.Join(home, "app-server-control"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "app-server-control", "app-server-control.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if o, err := a.Ring(t.Context(), presence.Session{ID: "x"}, "hello", later(t)); o != doorbell.Unable || err == nil {
		t.Errorf("a file: %v, %v", o, err)
	}
}

func TestTheHubIsNoDescendantOfItself(t *testing.T) {
	if !presence.Running(os.Getppid()).IsAncestorOf(os.Getpid()) || self().IsAncestorOf(os.Getpid()) {
		t.Error("the ancestors are wrong")
	}
}
