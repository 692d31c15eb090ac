package server

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"time"
)

// errLineTooLong is returned for a line that was too long. It was skipped, and the next line can be read.
var errLineTooLong = errors.New("the line is too long")

// lineReader reads lines from a connection.
type lineReader struct {
	conn   net.Conn
	buf    *bufio.Reader
	limits Limits
	// stopped reports whether the server stops reading. It becomes true before a
	// deadline in the past is set, which no later deadline may replace.
	stopped func() bool
}

// errStopped is returned after the server has stopped reading.
var errStopped = errors.New("reading has been stopped")

func newLineReader(conn net.Conn, limits Limits, stopped func() bool) *lineReader {
	return &lineReader{conn: conn, buf: bufio.NewReaderSize(conn, 16<<10), limits: limits, stopped: stopped}
}

// wait blocks until data can be read. A timeout means that the connection was idle for too long.
func (l *lineReader) wait() error {
	if l.buf.Buffered() > 0 {
		return nil
	}
	if err := l.deadline(l.limits.Idle); err != nil {
		return err
	}
	_, err := l.buf.Peek(1)
	return err
}

// next returns a copy of the next line without its line break, which the last line need
// not have. A timeout means that the line was sent too slowly.
func (l *lineReader) next() ([]byte, error) {
	buffered, err := l.buf.Peek(l.buf.Buffered())
	if err != nil {
		return nil, err
	}
	if bytes.IndexByte(buffered, '\n') < 0 {
		if err := l.deadline(l.limits.ReadTimeout); err != nil {
			return nil, err
		}
	}
	var line []byte
	tooLong := false
	for {
		piece, err := l.buf.ReadSlice('\n')
		if len(line)+len(bytes.TrimRight(piece, "\r\n")) > l.limits.Message {
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

// buffered reads what was read ahead, and returns its length. At its end the reader gives up its buffer: the rest is read from the
// connection.
func (l *lineReader) buffered(b []byte) int {
	if l.buf == nil || l.buf.Buffered() == 0 {
		l.buf = nil
		return 0
	}
	n, _ := l.buf.Read(b) // it does not read from the connection
	return n
}

func (l *lineReader) deadline(d time.Duration) error {
	err := l.conn.SetReadDeadline(time.Now().Add(d))
	if err == nil && l.stopped() {
		err = errStopped
	}
	return err
}
