//go:build unix

package bus_test

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/bus"
)

// fullEnv makes the test below a process whose files cannot grow.
const fullEnv = "PARLEY_BUS_TEST_FULL"

// A stream whose write failed answers nobody until the hub restarts. Whoever asks how
// the bus is must learn that.
func TestAStreamThatCannotBeWrittenIsReported(t *testing.T) {
	if os.Getenv(fullEnv) == "" {
		t.Parallel() // it takes some seconds, mostly until the server gives up
		exe, err := os.Executable()
		must(t, err)
		cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), fullEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	b := open(t, bus.Config{DataDir: t.TempDir()})
	ensureStream(t, b, "S", "s.>")
	if _, err := b.Publish(t.Context(), &nats.Msg{Subject: "s.1", Data: []byte("fits")}); err != nil {
		t.Fatal(err)
	}
	if notified := b.Info().StorageError; notified != "" {
		t.Fatalf("before: %s", notified)
	}
	signal.Ignore(syscall.SIGXFSZ)
	must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}))
	// The message that does not fit is answered by nobody, and so are those after it.
	var notified string
	for late := time.After(30 * time.Second); notified == ""; notified = b.Info().StorageError {
		select {
		case <-late:
			t.Fatal("it is not told")
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := b.Publish(ctx, &nats.Msg{Subject: "s.1", Data: make([]byte, 64<<10)})
		cancel()
		if err != nil {
			t.Log(err)
		}
	}
	if !strings.Contains(notified, "critical write error") || !strings.Contains(notified, "restart the hub") {
		t.Errorf("told %q", notified)
	}
}
