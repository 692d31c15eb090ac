package cli_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/coder/acp-go-sdk"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/testbed"
)

// The test binary stands in for other programs: with these variables set it is
// parley itself, or an agent.
const (
	beParley = "PARLEY_TEST_PROGRAM"
	beAgent  = "PARLEY_TEST_AGENT"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(beParley); name != "" {
		os.Exit(cli.Main(name, os.Args[1:]))
	}
	if kind := os.Getenv(beAgent); kind != "" {
		os.Exit(agent(kind))
	}
	if len(os.Args) > 1 && os.Args[1] == "start" { // by a hub's finder: it must not run the tests again
		fmt.Fprintln(os.Stderr, beParley+" is not set")
		os.Exit(1)
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") //nolint:errcheck // else its own processes take a second to end, no more
	goleak.VerifyTestMain(m, testbed.Leaks()...)
}

// agent is a coding agent that does one thing.
func agent(kind string) int {
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println("1.2.3")
		return 0
	}
	switch kind {
	case "asks":
		return askingAgent()
	case "words": // says each word of the prompt at a time
		words := bufio.NewScanner(os.Stdin)
		words.Split(bufio.ScanWords)
		for words.Scan() {
			fmt.Print(words.Text(), " ")
		}
	case "hangs": // until it is killed; the prompt must be read first
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // it hangs either way
		fmt.Print("thinking… ")
		r, w, err := os.Pipe()
		if err != nil {
			return 1
		}
		defer w.Close()
		io.Copy(io.Discard, r) //nolint:errcheck // nothing ever comes
	case "fails":
		fmt.Fprintln(os.Stderr, "the model is on strike")
		return 3
	case "hostile":
		fmt.Print("red \x1b[31malert\x1b[0m \x1b]0;your title is mine\x07\x1b]52;c;cm0gLXJmIC8=\x07done\u202e.\n")
	}
	return 0
}

// askingAgent speaks ACP and asks for permission before it does anything.
func askingAgent() int {
	a := &asker{}
	a.conn = acp.NewAgentSideConnection(a, os.Stdout, os.Stdin)
	<-a.conn.Done()
	return 0
}

type asker struct {
	acp.Agent // methods that the hub does not call
	conn      *acp.AgentSideConnection
}

func (*asker) Initialize(context.Context, acp.InitializeRequest) (acp.InitializeResponse, error) {
	return acp.InitializeResponse{ProtocolVersion: acp.ProtocolVersionNumber}, nil
}

func (*asker) NewSession(context.Context, acp.NewSessionRequest) (acp.NewSessionResponse, error) {
	return acp.NewSessionResponse{SessionId: "s1"}, nil
}

func (*asker) Cancel(context.Context, acp.CancelNotification) error { return nil }

func (a *asker) Prompt(ctx context.Context, p acp.PromptRequest) (acp.PromptResponse, error) {
	title := "Run `rm -rf build`?"
	answer, err := a.conn.RequestPermission(ctx, acp.RequestPermissionRequest{
		SessionId: p.SessionId,
		ToolCall: acp.ToolCallUpdate{
			ToolCallId: "t1", Title: &title, Kind: acp.Ptr(acp.ToolKindExecute),
			RawInput: map[string]any{"command": "rm -rf build\x1b[2K"},
		},
		Options: []acp.PermissionOption{
			{OptionId: "yes-once", Name: "Allow once", Kind: acp.PermissionOptionKindAllowOnce},
			{OptionId: "no-once", Name: "Reject", Kind: acp.PermissionOptionKindRejectOnce},
		},
	})
	if err != nil {
		return acp.PromptResponse{}, err
	}
	text := "cancelled"
	if answer.Outcome.Selected != nil {
		text = "you said " + string(answer.Outcome.Selected.OptionId)
	}
	err = a.conn.SessionUpdate(ctx, acp.SessionNotification{SessionId: p.SessionId, Update: acp.UpdateAgentMessageText(text)})
	return acp.PromptResponse{StopReason: acp.StopReasonEndTurn}, err
}

// agentsYAML configures the agents above. {exe} is the test binary.
const agentsYAML = `version: 1
http: {enabled: false}
bus: {durability: fast}
agents:
  claude-code: {disabled: true}
  gemini: {disabled: true}
  codex: {disabled: true}
  vibe: {disabled: true}
  words: {driver: exec, command: "{exe}", env: {set: {GOCOVERDIR: "{cover}", GORACE: "atexit_sleep_ms=0", PARLEY_TEST_AGENT: words}}}
  hangs: {driver: exec, command: "{exe}", env: {set: {GOCOVERDIR: "{cover}", GORACE: "atexit_sleep_ms=0", PARLEY_TEST_AGENT: hangs}}, stop: {signals: [TERM], grace: 100ms}}
  fails: {driver: exec, command: "{exe}", env: {set: {GOCOVERDIR: "{cover}", GORACE: "atexit_sleep_ms=0", PARLEY_TEST_AGENT: fails}}}
  hostile: {driver: exec, command: "{exe}", env: {set: {GOCOVERDIR: "{cover}", GORACE: "atexit_sleep_ms=0", PARLEY_TEST_AGENT: hostile}}}
  asks: {driver: acp, command: "{exe}", env: {set: {GOCOVERDIR: "{cover}", GORACE: "atexit_sleep_ms=0", PARLEY_TEST_AGENT: asks}}}
  missing: {driver: exec, command: parley-no-such-program, probe: {install: "install it with: magic"}}
`

// place is a data directory and a socket of a test's own.
type place struct {
	dir, socket string
}

func newPlace(t *testing.T) place {
	t.Helper()
	dir, err := os.MkdirTemp("", "parley") // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	config := strings.NewReplacer("{exe}", exe, "{cover}", dir).Replace(agentsYAML)
	if err := errors.Join(os.Mkdir(dir+"/data", 0o700), os.WriteFile(dir+"/data/config.yaml", []byte(config), 0o600)); err != nil {
		t.Fatal(err)
	}
	return place{dir: dir + "/data", socket: dir + "/hub.sock"}
}

func (p place) args(args ...string) []string {
	return append([]string{"--data-dir", p.dir, "--socket", p.socket}, args...)
}
