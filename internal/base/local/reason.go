package local

import (
	"errors"
	"io/fs"
	"net"
	"os"
)

// Reason returns the text of an error of the operating system for people: why it failed, without the names of the
// system call and of the file, which the message around it names. Any other error's text is returned as it is.
func Reason(err error) string {
	var path *fs.PathError
	var link *os.LinkError
	var op *net.OpError
	var call *os.SyscallError
	cause := err
	switch {
	case errors.As(err, &path):
		cause = path.Err
	case errors.As(err, &link):
		cause = link.Err
	case errors.As(err, &op):
		cause = op.Err
	}
	if errors.As(cause, &call) {
		cause = call.Err
	}
	return cause.Error()
}
