package server

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"time"
)

// errLineTooLong says that a line was longer than allowed. It has been skipped:
// the next line can be read.
var errLineTooLong = errors.New("the line is too long")

// lineReader cuts a connection's bytes into lines.
type lineReader struct {
	conn net.Conn
	buf  *bufio.Reader
	max  int           // bytes of a line
	idle time.Duration // to wait for the first byte of a line
	line time.Duration // from the first byte to the last
	// stopped tells that somebody has set a deadline in the past to end the
	// reading, after it became true: no later deadline may replace it.
	stopped func() bool
}

// errStopped says that the server reads no more.
var errStopped = errors.New("reading has been stopped")

func newLineReader(conn net.Conn, limits Limits, stopped func() bool) *lineReader {
	return &lineReader{
		conn: conn,
		buf:  bufio.NewReaderSize(conn, 16<<10),
		max:  limits.Message,
		idle: limits.Idle,
		line: limits.ReadTimeout,

		stopped: stopped,
	}
}

// wait blocks until there is something to read. A timeout means that the
// connection was idle for too long.
func (l *lineReader) wait() error {
	if l.buf.Buffered() > 0 {
		return nil
	}
	if err := l.deadline(l.idle); err != nil {
		return err
	}
	_, err := l.buf.Peek(1)
	return err
}

// next returns the next line without its end, in memory of its own. The last
// line needs no end. A timeout means that the line came too slowly.
func (l *lineReader) next() ([]byte, error) {
	buffered, err := l.buf.Peek(l.buf.Buffered())
	if err != nil {
		return nil, err
	}
	if bytes.IndexByte(buffered, '\n') < 0 {
		if err := l.deadline(l.line); err != nil {
			return nil, err
		}
	}
	var line []byte
	tooLong := false
	for {
		piece, err := l.buf.ReadSlice('\n')
		if len(line)+len(bytes.TrimRight(piece, "\r\n")) > l.max {
			tooLong, line = true, nil
		}
		if !tooLong {
			line = append(line, piece...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case tooLong && (err == nil || errors.Is(err, io.EOF)):
			return nil, errLineTooLong
		case errors.Is(err, io.EOF) && len(line) > 0, err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		default:
			return nil, err
		}
	}
}

func (l *lineReader) deadline(d time.Duration) error {
	if err := l.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	if l.stopped() {
		return errStopped
	}
	return nil
}
