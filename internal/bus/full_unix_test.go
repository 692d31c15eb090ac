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

// fullEnv is the environment variable that makes the test binary a process whose files cannot
// grow.
const fullEnv = "PARLEY_BUS_TEST_FULL"

// After a failed write a stream does not answer until JetStream starts again. Info must report that, and the bus does it.
func TestAStreamThatCannotBeWrittenIsReported(t *testing.T) {
	if os.Getenv(fullEnv) == "" {
		t.Parallel() // it takes some seconds, mostly until the server reports the failure
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
	if problem := b.Info().StorageError; problem != "" {
		t.Fatalf("before: %s", problem)
	}
	signal.Ignore(syscall.SIGXFSZ)
	var unlimited syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &unlimited))
	must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: unlimited.Max}))
	// The message that does not fit gets no answer, nor do those after it.
	var problem string
	for late := time.After(30 * time.Second); problem == ""; problem = b.Info().StorageError {
		select {
		case <-late:
			t.Fatal("the storage error is not reported")
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := b.Publish(ctx, &nats.Msg{Subject: "s.1", Data: make([]byte, 64<<10)})
		cancel()
		if err != nil {
			t.Log(err)
		}
	}
	if !strings.Contains(strings.ToLower(problem), "critical write error") || !strings.Contains(problem, "restart the hub") {
		t.Errorf("the storage error is %q", problem)
	}
	must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &unlimited))
	for late := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := b.Publish(ctx, &nats.Msg{Subject: "s.1", Data: []byte("fits again")})
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("the store is not opened again: %v", err)
		}
	}
	if problem := b.Info().StorageError; problem != "" {
		t.Errorf("afterwards: %s", problem)
	}
}
