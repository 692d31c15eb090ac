package damage

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"testing"
)

// Too few descriptors say nothing of a block.
func TestOnlyTheSystemIsOutOfDescriptors(t *testing.T) {
	_, missing := os.Open("not there")
	for _, c := range []struct {
		err error
		is  bool
	}{
		{&fs.PathError{Op: "open", Path: "1.blk", Err: syscall.EMFILE}, true},
		{&fs.PathError{Op: "open", Path: "1.blk", Err: syscall.ENFILE}, true},
		{missing, false},
		{errors.New("too many open files"), false},
		{nil, false},
	} {
		if is := outOfDescriptors(c.err); is != c.is {
			t.Errorf("%v: %t", c.err, is)
		}
	}
}
