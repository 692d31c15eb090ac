package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test's own binary is the program when this is set.
const asProgram = "TALK_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

func talk(ctx context.Context, t *testing.T, token string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "TALK_TOKEN="+token, "GORACE=atexit_sleep_ms=0")
	return cmd
}

func TestTwoProcessesTalk(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	venus := talk(ctx, t, "a secret", "-as", "venus", "-listen", "127.0.0.1:0")
	out, err := venus.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := venus.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = venus.Wait() // killed
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	at := strings.TrimSpace(strings.TrimPrefix(line, "listening at "))

	got, err := talk(ctx, t, "a secret", "-as", "mars", "-to", "venus", "-at", at, "hello", "how are you?").CombinedOutput()
	if want := "venus answers: HELLO\nvenus answers: HOW ARE YOU?\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	got, err = talk(ctx, t, "wrong", "-as", "io", "-to", "venus", "-at", at, "hello").CombinedOutput()
	if err == nil || strings.Contains(string(got), "answers") || strings.Contains(string(got), "a secret") {
		t.Errorf("with the wrong token: %q, %v", got, err)
	}
}
