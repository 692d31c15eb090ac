package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

// maxMessage bounds a message and what is piped with it, in bytes. The hub accepts requests of up to 10 MiB.
const maxMessage = 8 << 20

// stdinKind is what the standard input is.
type stdinKind int

const (
	stdinNone   stdinKind = iota // a terminal or a device such as /dev/null, which are not read
	stdinFile                    // it ends
	stdinPipe                    // of a shell; a daemon may have left one open
	stdinSocket                  // mostly one that the parent process has opened and does not use
)

func kindOfStdin(stream io.Reader) stdinKind {
	f, ok := stream.(*os.File)
	if !ok {
		return stdinFile
	}
	info, err := f.Stat()
	switch {
	case err != nil, info.Mode()&fs.ModeCharDevice != 0:
		return stdinNone
	case info.Mode()&fs.ModeNamedPipe != 0:
		return stdinPipe
	case info.Mode()&fs.ModeSocket != 0:
		return stdinSocket
	}
	return stdinFile
}

// How long a pipe and a socket may be open without a byte. A shell's pipe is worth a long wait: the command before it
// may compile something first. The first wait of a pipe is followed by a note.
const (
	pipeNote   = 2 * time.Second
	pipeWait   = time.Minute
	socketWait = 2 * time.Second
)

// withPiped returns a message from the command line with what is piped to the command: "-" is replaced by it, any other
// message is followed by it, as a second text. It returns one or two texts.
func (a *app) withPiped(ctx context.Context, message string) ([]string, error) {
	if message == "-" {
		all, err := readMessage(a.stdin)
		if err == nil && strings.TrimSpace(all) == "" {
			return nil, &failure{Exit: exitUsage, Kind: "usage", Message: "standard input is empty: nothing was sent",
				Remedy: "check what the command before the pipe prints, or give the message as an argument"}
		}
		return []string{all}, errors.Join(err, checkMessage(all, err))
	}
	if err := checkMessage(message, nil); err != nil {
		return nil, err
	}
	piped, err := a.readPiped(ctx)
	if err != nil || strings.TrimSpace(piped) == "" {
		return []string{message}, err
	}
	if !utf8.ValidString(piped) {
		return nil, usage("what is piped to the command is not text (UTF-8); save it in a file and name the file in the message")
	}
	return []string{message, piped}, nil
}

func checkMessage(message string, err error) error {
	switch {
	case err != nil:
		return nil // reported already
	case strings.TrimSpace(message) == "":
		return &failure{Exit: exitUsage, Kind: "usage", Message: "the message is empty", Remedy: "name what the agent is to do"}
	case !utf8.ValidString(message):
		return usage("the message is not valid UTF-8")
	}
	return nil
}

// readPiped returns what is piped to the command, "" if nothing is.
func (a *app) readPiped(ctx context.Context) (string, error) {
	switch kindOfStdin(a.stdin) {
	case stdinFile:
		return readMessage(a.stdin)
	case stdinPipe:
		return a.readOpen(ctx, pipeNote, pipeWait)
	case stdinSocket:
		return a.readOpen(ctx, 0, socketWait)
	}
	return "", nil
}

// readOpen reads an input that may stay open without ever being written to. After the first byte it reads to the end.
// A silent pipe is an error, since the command before it may not be done; a silent socket is left alone, with a note.
func (a *app) readOpen(ctx context.Context, note, limit time.Duration) (string, error) {
	type input struct {
		text string
		err  error
	}
	begun, done := make(chan struct{}), make(chan input, 1)
	r := bufio.NewReader(a.stdin)
	go func() { // ends with the input, or with the process where a read cannot be interrupted
		_, _ = r.Peek(1) // the next read returns the same error
		close(begun)
		text, err := readMessage(r)
		done <- input{text, err}
	}()
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	remind := time.AfterFunc(max(note, limit/30), func() {
		if note > 0 {
			a.note("waiting for standard input, which is a pipe; without one, add: </dev/null")
		}
	})
	defer remind.Stop()
	silent := time.NewTimer(limit)
	defer silent.Stop()
	select {
	case <-begun:
	case <-silent.C:
		a.abandonStdin()
		if note > 0 {
			return "", &failure{Exit: exitUsage, Kind: "usage", Message: fmt.Sprintf("standard input is an open pipe, and nothing has come from it in %s; nothing was sent", limit),
				Remedy: "add </dev/null if nothing is piped, or save the input in a file and add <FILE"}
		}
		a.note("standard input is open, but nothing came from it: the message is sent without it")
		return "", nil
	case <-ctx.Done():
		a.abandonStdin()
		return "", context.Cause(ctx)
	}
	remind.Stop()
	select {
	case in := <-done:
		return in.text, in.err
	case <-ctx.Done():
		a.abandonStdin()
		return "", context.Cause(ctx)
	}
}

// abandonStdin ends a pending read of the standard input where the system can.
func (a *app) abandonStdin() {
	if f, ok := a.stdin.(*os.File); ok {
		_ = f.SetReadDeadline(time.Unix(1, 0)) // an error means that it cannot
	}
}

// readMessage reads a message without the newline that commands append to their output.
func readMessage(r io.Reader) (string, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxMessage+1))
	if err != nil {
		return "", fmt.Errorf("read the standard input: %w", err)
	}
	if len(data) > maxMessage {
		return "", usage("standard input is longer than the %d MiB that a message may have; save it in a file and name the file in the message", maxMessage>>20)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r"), nil
}

// warnUnread notes that a command does not read what is piped to it.
func (a *app) warnUnread(command string) {
	if k := kindOfStdin(a.stdin); k == stdinPipe || k == stdinFile && a.stdin == io.Reader(os.Stdin) {
		a.note("note: %s does not read standard input", command)
	}
}
