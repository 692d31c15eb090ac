package ysync_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhub/parley/crdt/ysync"
)

// rawClient writes the frames of a WebSocket byte by byte.
type rawClient struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
	res  *http.Response
}

func (r *rig) dialRaw(t *testing.T, headers ...string) *rawClient {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	lines := append([]string{"GET /plan HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket",
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}, headers...)
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	c := &rawClient{t: t, conn: conn, r: bufio.NewReader(conn)}
	if c.res, err = http.ReadResponse(c.r, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

// masked returns a client's frame.
func masked(first byte, payload ...byte) []byte {
	mask := [4]byte{1, 2, 3, 4}
	b := []byte{first, 0x80 | byte(len(payload))}
	if len(payload) > 125 {
		b = binary.BigEndian.AppendUint16([]byte{first, 0x80 | 126}, uint16(len(payload)))
	}
	b = append(b, mask[:]...)
	for i, x := range payload {
		b = append(b, x^mask[i%4])
	}
	return b
}

// receive returns a frame of the server; first is 0 at the end of the connection.
func (c *rawClient) receive() (first byte, payload string) {
	c.t.Helper()
	var header [2]byte
	if _, err := io.ReadFull(c.r, header[:]); err != nil {
		return 0, ""
	}
	if header[1] > 125 {
		c.t.Fatalf("the server's frame begins with %x", header)
	}
	b := make([]byte, header[1])
	if _, err := io.ReadFull(c.r, b); err != nil {
		c.t.Fatal(err)
	}
	return header[0], string(b)
}

// The library reads; what it relies on below it is the socket, which others write to as well. The sections are those of RFC 6455.
func TestRFC6455(t *testing.T) {
	const (
		data, ping, text, end = 0x82, 0x89, 0x81, 0x88
		reserved              = "\x03\xea" // 1002
	)
	question, answer := []byte{0, 0, 1, 0}, "\x00\x01\x02\x00\x00"
	for name, tt := range map[string]struct {
		sent   [][]byte
		first  byte // of the server's frame
		answer string
	}{
		"5.4: a message in fragments, with a ping between them": {
			[][]byte{masked(0x02, question[:1]...), masked(ping, 'h', 'i'), masked(0x00, question[1:2]...), masked(0x80, question[2:]...)}, 0x8a, "hi"},
		"5.4: a message in fragments":                {[][]byte{masked(0x02, question[:3]...), masked(0x00), masked(0x80, question[3:]...)}, data, answer},
		"5.2: more bytes for the length than needed": {[][]byte{slices.Concat([]byte{data, 0x80 | 126, 0, 4, 0, 0, 0, 0}, question)}, data, answer},
		"5.5.2: a ping":                              {[][]byte{masked(ping)}, 0x8a, ""},
		"5.5.2: the longest ping":                    {[][]byte{masked(ping, make([]byte, 125)...)}, 0x8a, string(make([]byte, 125))},
		"5.5.3: a pong that answers nothing":         {[][]byte{masked(0x8a, 'x'), masked(data, question...)}, data, answer},
		"5.1: a frame that is not masked":            {[][]byte{append([]byte{data, 4}, question...)}, end, "\x03\xe9"},
		"5.2: a reserved bit":                        {[][]byte{masked(data|0x40, question...)}, end, reserved},
		"5.2: a reserved opcode":                     {[][]byte{masked(0x83)}, end, reserved},
		"5.4: a continuation of nothing":             {[][]byte{masked(0x80)}, end, reserved},
		"5.4: a message within another":              {[][]byte{masked(0x02, 0), masked(data, question...)}, end, reserved},
		"5.5: a ping in fragments":                   {[][]byte{masked(0x09)}, end, reserved},
		"5.5: a ping of 126 bytes":                   {[][]byte{masked(ping, make([]byte, 126)...)}, end, reserved},
		"5.5.1: a close":                             {[][]byte{masked(end, 0x03, 0xe8)}, end, "\x03\xe8"},
		"5.5.1: a close without a code":              {[][]byte{masked(end)}, end, ""},
		"5.5.1: a close with half a code":            {[][]byte{masked(end, 3)}, end, reserved},
		"7.4.1: a code that must not be sent":        {[][]byte{masked(end, 0x03, 0xed)}, end, reserved},
		"5.6: a text message":                        {[][]byte{masked(text, 'x')}, end, "\x11\x30"}, // 4400
	} {
		t.Run(name, func(t *testing.T) {
			c := newRig(t, 0).dialRaw(t, "Sec-WebSocket-Version: 13", "Sec-WebSocket-Extensions: permessage-deflate")
			if c.res.StatusCode != http.StatusSwitchingProtocols || c.res.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
				t.Fatalf("the answer is %s %v", c.res.Status, c.res.Header)
			}
			if got := c.res.Header["Sec-Websocket-Extensions"]; got != nil { // 9.1
				t.Errorf("the extensions are %q", got)
			}
			if first, payload := c.receive(); first != data || payload != "\x00\x00\x01\x00" {
				t.Fatalf("the first frame is %x %q", first, payload)
			}
			if _, err := c.conn.Write(slices.Concat(tt.sent...)); err != nil {
				t.Fatal(err)
			}
			first, payload := c.receive()
			if first == end && tt.first == end {
				payload = payload[:min(len(payload), 2)] // without the reason
			}
			if first != tt.first || payload != tt.answer {
				t.Errorf("the server sends %x %q", first, payload)
			}
		})
	}
	for name, headers := range map[string][]string{"4.4: another version": {"Sec-WebSocket-Version: 8"}, "4.2.1: no version": nil} {
		if c := newRig(t, 0).dialRaw(t, headers...); c.res.StatusCode != http.StatusBadRequest || c.res.Header.Get("Sec-WebSocket-Version") != "13" {
			t.Errorf("%s: %s %v", name, c.res.Status, c.res.Header)
		}
	}
}

// A client whose connection is ended begins a frame and sends nothing more: its connection ends all the same.
func TestABegunFrameDoesNotHoldTheConnection(t *testing.T) {
	begun := []byte{0x81, 0x80 | 126, 0xff, 0xff, 1, 2, 3, 4} // a text message
	for name, tt := range map[string]struct {
		open  error
		first string // frame of the server
		code  string
	}{
		"that is refused":     {nil, "\x82\x04\x00\x00\x01\x00", "\x11\x30"},            // 4400
		"of an outdated copy": {&ysync.StaleError{Message: "outdated"}, "", "\x11\x39"}, // 4409
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigWith(t, 0, tt.open)
			c := r.dialRaw(t, "Sec-WebSocket-Version: 13")
			if _, err := c.conn.Write(begun); err != nil {
				t.Fatal(err)
			}
			if err := c.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil { // it would never end
				t.Fatal(err)
			}
			got, err := io.ReadAll(c.r)
			if err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the connection does not end: %v", err)
			}
			if after, ok := strings.CutPrefix(string(got), tt.first); !ok || len(after) < 4 || after[0] != 0x88 || after[2:4] != tt.code {
				t.Errorf("the server sends %x", got)
			}
		})
	}
}
