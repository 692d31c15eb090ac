package process

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// keepBuffer is the largest buffer that Lines keeps after a line.
const keepBuffer = 64 << 10

// Lines reads lines of a bounded length. It is not safe for concurrent use.
type Lines struct {
	r    *bufio.Reader
	max  int
	buf  []byte
	long func(part []byte, first bool) // see OnLong; may be nil
}

// NewLines returns a reader of lines of at most max bytes without the line end. It uses
// about max bytes of memory, however long a line is.
func NewLines(r io.Reader, max int) *Lines { return NewLinesSize(r, max, 32<<10) }

// NewLinesSize is NewLines with the size of the buffer, in bytes, that it keeps while there is nothing to read.
func NewLinesSize(r io.Reader, max, size int) *Lines {
	return &Lines{r: bufio.NewReaderSize(r, size), max: max}
}

// OnLong calls f with all parts of each line that is too long, in order, while Next skips it. They are valid during the call.
func (l *Lines) OnLong(f func(part []byte, first bool)) { l.long = f }

// Next returns the next line without its end (\n or \r\n), valid until the next call. The
// last line needs no end. A line that is too long is skipped and reported once as
// ErrLineTooLong; the caller may continue. At the end the error is io.EOF.
func (l *Lines) Next() ([]byte, error) {
	if cap(l.buf) > keepBuffer {
		l.buf = nil
	}
	l.buf = l.buf[:0]
	size, long := 0, false
	for {
		frag, err := l.r.ReadSlice('\n')
		size += len(frag)
		// Keep two more bytes than allowed: they may be the line's end.
		kept := min(len(frag), max(l.max+2-len(l.buf), 0))
		l.buf = append(l.buf, frag[:kept]...)
		if kept < len(frag) && l.long != nil {
			if !long {
				l.long(l.buf, true)
			}
			long = true
			l.long(frag[kept:], false)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && size == 0:
			return nil, err
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		}
		line, err := l.line(size)
		if err != nil && !long && l.long != nil {
			l.long(l.buf, true)
		}
		return line, err
	}
}

func (l *Lines) line(size int) ([]byte, error) {
	if size <= len(l.buf) {
		line := bytes.TrimSuffix(bytes.TrimSuffix(l.buf, []byte{'\n'}), []byte{'\r'})
		if len(line) <= l.max {
			return line, nil
		}
	}
	return nil, fmt.Errorf("%w: %d bytes, the most is %d", ErrLineTooLong, size, l.max)
}
