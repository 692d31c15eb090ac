package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/parleyhub/parley/internal/base/local"
)

// output is standard output. It keeps the first error of a write: commands print without looking, and run fails for
// them. Safe for concurrent use.
type output struct {
	stream io.Writer
	once   sync.Once
	failed chan struct{} // closed with the first error
	err    error         // of the first write that failed; valid when failed is closed
}

func newOutput(stream io.Writer) *output {
	return &output{stream: stream, failed: make(chan struct{})}
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.stream.Write(p)
	if err != nil {
		o.once.Do(func() {
			o.err = err
			close(o.failed)
		})
	}
	return n, err
}

// failure returns what the user gets when the output is not complete, nil if it is. A reader that has closed its pipe
// has read enough: the failure says nothing then.
func (o *output) failure() *failure {
	select {
	case <-o.failed:
	default:
		return nil
	}
	f := &failure{Exit: exitFailure, Kind: "output-lost", Message: "the output could not be written: " + local.Reason(o.err),
		Remedy: "what the command did is done, only its output is incomplete; write it to another place"}
	switch {
	case local.DiskFull(o.err):
		f.Remedy = "what the command did is done, only its output is incomplete; make room, or write it to another place"
	case local.PipeClosed(o.err), errors.Is(o.err, io.ErrClosedPipe):
		f.quiet = true
	}
	return f
}

// fileOf returns the file of a stream, also of standard output.
func fileOf(stream any) (*os.File, bool) {
	if o, ok := stream.(*output); ok {
		stream = o.stream
	}
	f, ok := stream.(*os.File)
	return f, ok
}

// reading returns a context for a command that only reads and prints. The first signal ends it, and also output that
// cannot be written: what follows would be lost.
func (a *app) reading(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := a.interruptible(ctx)
	go func() {
		select {
		case <-a.stdout.failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
