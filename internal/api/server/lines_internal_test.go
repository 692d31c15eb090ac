package server

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"
)

// byteConn is a connection that can only be read.
type byteConn struct {
	net.Conn
	r io.Reader
}

func (c byteConn) Read(b []byte) (int, error)      { return c.r.Read(b) }
func (c byteConn) SetReadDeadline(time.Time) error { return nil }

// FuzzLines compares the reader's lines with those of a plain split, for any chunks of
// input. Each line that is too long yields an error instead.
func FuzzLines(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "{}\n{}\r\n", "no end", "\r\n\r\n", "12345678\n123456789\n1", "123456789", "\x00\xff\n\n\n", "12345678\r\n",
	} {
		f.Add([]byte(seed), true)
	}
	f.Add(append(bytes.Repeat([]byte("0123456789abcdef"), 1300), "\n{}\n"...), false)
	f.Fuzz(func(t *testing.T, data []byte, slowly bool) {
		const limit = 20_000
		var r io.Reader = bytes.NewReader(data)
		if slowly {
			r = iotest.OneByteReader(r)
		}
		lines := newLineReader(byteConn{r: r}, Limits{Message: limit}, func() bool { return false })
		text, last := bytes.CutSuffix(data, []byte("\n"))
		for want := range bytes.SplitSeq(text, []byte("\n")) {
			if len(data) == 0 {
				break
			}
			if err := lines.wait(); err != nil {
				t.Fatalf("the lines end before %.40q: %v", want, err)
			}
			got, err := lines.next()
			want = bytes.TrimRight(want, "\r")
			switch {
			case len(want) > limit:
				if !errors.Is(err, errLineTooLong) {
					t.Fatalf("a line of %d bytes: %v", len(want), err)
				}
			case err != nil || !bytes.Equal(got, want):
				t.Fatalf("got %.40q, %v, want %.40q (the last line is terminated: %t)", got, err, want, last)
			}
		}
		if err := lines.wait(); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last line: %v", err)
		}
	})
}

func TestNoLineIsReadAfterShutdown(t *testing.T) {
	lines := newLineReader(byteConn{r: bytes.NewReader([]byte("{}\n"))}, Limits{Message: 10}, func() bool { return true })
	if err := lines.wait(); !errors.Is(err, errStopped) {
		t.Error(err)
	}
}
