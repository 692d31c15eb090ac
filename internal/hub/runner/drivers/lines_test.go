package drivers

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

func TestOutboxKeepsTheOrder(t *testing.T) {
	r, w := io.Pipe()
	o := newOutbox(w)
	for i := range 100 {
		if err := o.send(i); err != nil {
			t.Fatal(err)
		}
	}
	var want strings.Builder
	for i := range 100 {
		fmt.Fprintln(&want, i)
	}
	got := make([]byte, want.Len())
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want.String() {
		t.Errorf("%q, %v", got, err)
	}
	_ = w.Close() // never fails: a pipe in memory
	o.close()
	if err := o.send(1); !errors.Is(err, duplex.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

func TestOutboxIsBounded(t *testing.T) {
	tests := map[string]any{"by lines": 1, "by bytes": strings.Repeat("x", 1<<20)}
	for name, v := range tests {
		t.Run(name, func(t *testing.T) {
			_, w := io.Pipe() // nothing reads from the pipe
			o := newOutbox(w)
			n := 0
			for ; n < 5000; n++ {
				if err := o.send(v); err != nil {
					break
				}
			}
			if n < 30 || n > 1100 {
				t.Errorf("%d messages are queued", n)
			}
			_ = w.Close() // never fails: a pipe in memory
			o.close()
		})
	}
}

func TestOutboxReportsAFailedWrite(t *testing.T) {
	r, w := io.Pipe()
	_ = r.CloseWithError(errors.New("gone")) // never fails
	o := newOutbox(w)
	defer o.close()
	err := o.send(1)
	for !errors.Is(err, duplex.ErrClosed) { // until the write has failed
		err = o.send(1)
	}
	if !strings.Contains(err.Error(), "gone") {
		t.Errorf("error %v", err)
	}
}
