//go:build !unix

package local

import "os"

// Pollable returns a file whose reads wait in the poller of the runtime, where the system can. Here it returns the file itself.
func Pollable(f *os.File, _ ...*os.File) *os.File { return f }
