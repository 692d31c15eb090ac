//go:build unix

package bus_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/bus"
)

// filesEnv makes the test binary a process that can open few files.
const filesEnv = "PARLEY_BUS_TEST_FILES"

// The server leaves out streams and consumers that it cannot open, and they would begin anew. So a start fails
// without descriptors, and what is open is read and opened again.
func TestAStoreIsNotOpenedWithoutDescriptors(t *testing.T) {
	if os.Getenv(filesEnv) == "" {
		t.Parallel()
		exe, err := os.Executable()
		must(t, err)
		cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), filesEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	dir, other := t.TempDir(), t.TempDir()
	b := open(t, bus.Config{DataDir: dir})
	s := ensureStream(t, b, "S", "s.>")
	_, err := b.Publish(t.Context(), &nats.Msg{Subject: "s.1", Data: []byte("x")})
	must(t, err)
	var usual syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &usual))
	few := usual
	few.Cur = 40
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	if _, err := bus.Open(t.Context(), bus.Config{DataDir: other}); bus.CodeOf(err) != bus.CodeStorage || !strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("a start without descriptors: %v", err)
	}
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &usual))
	if !b.Reopen(t.Context()) {
		t.Error("the store was not opened again")
	}
	if m, err := s.GetMsg(t.Context(), 1); err != nil || string(m.Data) != "x" {
		t.Errorf("the message: %v", err)
	}
}
