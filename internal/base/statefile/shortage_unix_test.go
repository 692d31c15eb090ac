//go:build unix

package statefile_test

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/testbed"
)

// shortageEnv makes the test binary a process that can open few files.
const shortageEnv = "PARLEY_STATEFILE_TEST_FILES"

// A copy that cannot be opened, since another goroutine has the last descriptor, is no damaged one.
func TestACopyWithoutADescriptorIsNotLost(t *testing.T) {
	if os.Getenv(shortageEnv) == "" {
		exe, err := os.Executable()
		must(t, err)
		cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), shortageEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	raw, _ := openRaw(t)
	must(t, raw.Write([]byte(secret)))
	must(t, os.WriteFile(raw.Path, []byte("no key"), 0o600))
	object := open(t)
	must(t, object.Write(names{[]string{"ada"}}))
	must(t, os.Truncate(object.Path, 20))
	defer useOneDescriptor(t)()
	for name, peek := range map[string]func() (*statefile.Damage, error){
		"raw":    func() (*statefile.Damage, error) { _, damage, err := raw.Peek(); return damage, err },
		"object": func() (*statefile.Damage, error) { _, damage, err := object.Peek(); return damage, err },
	} {
		short := 0
		for range 20_000 {
			damage, err := peek()
			switch {
			case statefile.IsShortage(err):
				short++
			case err != nil || damage == nil || !damage.Restored:
				t.Fatalf("%s: %+v, %v", name, damage, err)
			}
		}
		t.Log(name, short)
	}
}

// useOneDescriptor leaves this process one descriptor, which a goroutine has at times, until stop is called.
func useOneDescriptor(t *testing.T) (stop func()) {
	t.Helper()
	restore := testbed.LeaveDescriptors(t, 1)
	ended := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
			}
			if fd, err := syscall.Open(os.DevNull, syscall.O_RDONLY, 0); err == nil {
				_ = syscall.Close(fd)
			}
		}
	})
	return func() {
		close(ended)
		wait.Wait()
		restore()
	}
}
