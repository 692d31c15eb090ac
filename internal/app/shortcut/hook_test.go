//go:build unix

package shortcut

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/mcp/delegation"
	"github.com/parleyhub/parley/internal/sessions/hooks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// request is what a hub gets.
type request struct {
	Method string
	Params map[string]any
}

// fakeHub listens in a data directory, and answers the n-th request with the n-th answer; without an answer it closes the connection.
type fakeHub struct {
	dir string
	got chan request
}

func newFakeHub(t *testing.T, answers ...string) *fakeHub {
	t.Helper()
	dir, err := os.MkdirTemp("", "parley") // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeHub{dir, make(chan request, 10)}
	f.describe(t, `{"socket":"`+socket+`"}`)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.serve(conn, answers)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close() // it is not used any more
		<-done
		os.RemoveAll(dir)
	})
	return f
}

func (f *fakeHub) describe(t *testing.T, info string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, infoName), []byte(info), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (f *fakeHub) serve(conn net.Conn, answers []string) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 2*maxEventInput)
	for i := 0; lines.Scan(); i++ {
		var r request
		_ = json.Unmarshal(lines.Bytes(), &r) // the test sees what is missing
		f.got <- r
		if i >= len(answers) {
			return
		}
		_, _ = io.WriteString(conn, answers[i]+"\n") // the hook may have ended
	}
}

// result is how a hook ended.
type result struct {
	code           int
	done           bool
	stdout, stderr string
	left           string // of standard input, for the command
}

func (f *fakeHub) run(t *testing.T, input string, env ...string) result {
	t.Helper()
	vars := map[string]string{"PARLEY_DATA_DIR": f.dir}
	for i := 0; i < len(env); i += 2 {
		vars[env[i]] = env[i+1]
	}
	var stdout, stderr strings.Builder
	h := hook{args: []string{"claude", "Stop"}, getenv: func(name string) string { return vars[name] }, stdin: strings.NewReader(input), stdout: &stdout, stderr: &stderr}
	code, done := h.run()
	r := result{code: code, done: done, stdout: stdout.String(), stderr: stderr.String()}
	if !done {
		left, err := io.ReadAll(h.stdin)
		if err != nil {
			t.Error(err)
		}
		r.left = string(left)
	}
	return r
}

const stop = `{"session_id":"s1"}`

func TestAHookIsAnsweredByTheHub(t *testing.T) {
	f := newFakeHub(t, `{"jsonrpc":"2.0","id":1,"result":{"output":"{\"decision\":\"block\"}\n","wake":"wake","notice":"n1"}}`, `{"jsonrpc":"2.0","id":1,"result":{"known":true}}`)
	r := f.run(t, stop, "CLAUDE_CODE_ENTRYPOINT", "sdk-cli")
	if want := (result{code: 2, done: true, stdout: `{"decision":"block"}` + "\n", stderr: "wake\n"}); r != want {
		t.Errorf("it ends with %+v", r)
	}
	asked, shown := <-f.got, <-f.got
	if p := asked.Params; asked.Method != methodEvent || p["vendor"] != "claude" || p["event"] != "Stop" || p["input"] != stop || p["headless"] != true {
		t.Errorf("the hub is asked %+v", asked)
	}
	if shown.Method != methodShown || shown.Params["notice"] != "n1" {
		t.Errorf("the hub is told %+v", shown)
	}
}

func TestAHookThatHasNothingToSayIsSilent(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing": `{"jsonrpc":"2.0","id":1,"result":{}}`,
		"refused": `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}`,
	} {
		f := newFakeHub(t, answer)
		if r := f.run(t, stop); r != (result{done: true}) {
			t.Errorf("%s: it ends with %+v", name, r)
		}
	}
}

func TestAHookThatTheHubDoesNotAnswerIsLeftToTheCommand(t *testing.T) {
	long := strings.Repeat("x", maxEventInput+10)
	left := result{left: stop}
	for name, c := range map[string]struct {
		answers []string
		input   string
		want    result
	}{
		"another version": {[]string{`{"jsonrpc":"2.0","id":1,"error":{"code":-32601}}`}, stop, left},
		"it ends":         {nil, stop, left},
		"no JSON":         {[]string{"rubbish"}, stop, left},
		"too long":        {nil, long, result{left: long}},
		"not UTF-8":       {nil, "\xff", result{left: "\xff"}},
	} {
		f := newFakeHub(t, c.answers...)
		if r := f.run(t, c.input); r != c.want {
			t.Errorf("%s: it ends with %+v", name, r)
		}
	}
}

func TestAHubWhosePlaceIsConfiguredIsLeftToTheCommand(t *testing.T) {
	f := newFakeHub(t)
	left := result{left: stop}
	for _, env := range [][]string{{"PARLEY_SOCKET", "/s"}, {"PARLEY_CONFIG", "/c"}, {tokenEnv, "t"}, {"PARLEY_DATA_DIR", "relative"}, {"PARLEY_DATA_DIR", t.TempDir()}} {
		if r := f.run(t, stop, env...); r != left {
			t.Errorf("%q: it ends with %+v", env, r)
		}
	}
	for _, info := range []string{"{", `{}`, `{"socket":"/nowhere"}`, `{"socket":"` + f.dir + `"}`} {
		f.describe(t, info)
		if r := f.run(t, stop); r != left {
			t.Errorf("%s: it ends with %+v", info, r)
		}
	}
	if len(f.got) > 0 {
		t.Errorf("the hub is asked %+v", <-f.got)
	}
}

func TestAHubInTheHomeDirectory(t *testing.T) {
	f := newFakeHub(t, `{"jsonrpc":"2.0","id":1,"result":{"output":"yes"}}`)
	home := t.TempDir()
	if err := os.Symlink(f.dir, filepath.Join(home, dirName)); err != nil {
		t.Fatal(err)
	}
	if r := f.run(t, stop, "PARLEY_DATA_DIR", "", "HOME", home); r != (result{done: true, stdout: "yes"}) {
		t.Errorf("it ends with %+v", r)
	}
	for text, want := range map[string]bool{"http:\n  port: 0\n": true, "dataDir: /elsewhere\n": false} {
		if err := os.WriteFile(filepath.Join(f.dir, configName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := f.run(t, stop, "PARLEY_DATA_DIR", "", "HOME", home); r.done != want {
			t.Errorf("with %q it ends with %+v", text, r)
		}
	}
}

func TestOnlyHooksWithoutFlagsAreTaken(t *testing.T) {
	for line, want := range map[string]bool{"hook claude": true, "hook claude Stop": true, "hook": false, "hook --help": false, "hook claude -v": false,
		"hook claude Stop x": false, "send claude": false} {
		if IsHook(strings.Fields(line)) != want {
			t.Errorf("%s: %v", line, !want)
		}
	}
	if Stdin() != os.Stdin {
		t.Error("the commands do not read standard input")
	}
}

func TestWhatOtherPackagesDefine(t *testing.T) {
	if tokenEnv != delegation.TokenEnv || methodEvent != dialect.MethodSessionEvent || methodShown != dialect.MethodSessionShown || notFound != jsonrpc.CodeMethodNotFound ||
		maxEventInput != dialect.MaxSessionInput || wakeExit != hooks.WakeExit {
		t.Error("the constants differ")
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	cfg, err := config.Load(config.Options{LookupEnv: func(string) (string, bool) { return "", false }})
	if err != nil || cfg.DataDir != filepath.Join(home, dirName) {
		t.Errorf("the data directory is %+v, %v", cfg, err)
	}
}
