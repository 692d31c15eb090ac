package websocket_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	ws "github.com/coder/websocket"

	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// seeds are encoded messages.
func seeds(f *testing.F) [][]byte {
	var codec transport.Codec
	hello := &transport.Hello{Version: 1, Channel: "c", Secret: "s", From: "a", To: "b", Window: 1, Card: []byte(`{"id":"a"}`)}
	var all [][]byte
	var together []byte
	for _, frame := range []transport.Frame{
		{Kind: transport.Open, Hello: hello},
		{Kind: transport.Accept, Hello: hello},
		{Kind: transport.Ready},
		{Kind: transport.Refuse, Reason: &transport.Reason{Code: "X", Message: "no"}},
		data(f, map[string]any{"task": "review", "files": []string{"a.go"}}),
		{Kind: transport.Data, Seq: 1 << 60},
		{Kind: transport.Ack, Seq: 8, Ack: 9},
		{Kind: transport.Close, Reason: &transport.Reason{Code: "Y", Message: "bye"}},
	} {
		one, err := codec.Append(nil, &frame)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, one)
		together = append(together, one...)
	}
	return append(all, together, nil, []byte{0xff})
}

// FuzzMessage sends an arbitrary message: its frames arrive, or the connection is closed, or nothing happens. The
// listener continues to work.
func FuzzMessage(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed, true)
	}
	f.Add([]byte("text"), false)
	l := listenUntilTheEnd(f, websocket.ListenOptions{})
	f.Fuzz(func(t *testing.T, message []byte, binary bool) {
		c, _, err := ws.Dial(patience(t), l.Endpoint().Address, &ws.DialOptions{Subprotocols: []string{websocket.Subprotocol}})
		if err != nil {
			t.Fatal(err)
		}
		conn := accept(t, l)
		defer conn.Close()
		defer c.CloseNow() // before the other end, which would wait for an answer
		kind := ws.MessageText
		if binary {
			kind = ws.MessageBinary
		}
		c.Write(patience(t), kind, message) // the listener may have closed the connection already
		c.Write(patience(t), ws.MessageBinary, []byte{byte(transport.Ready)})
		var codec transport.Codec
		want, wantErr := codec.Decode(nil, message)
		frames, err := conn.Receive(patience(t))
		switch {
		case binary && wantErr == nil && err != nil:
			t.Fatalf("%d good frames gave %v", len(want), err)
		case (!binary || wantErr != nil) && err == nil:
			t.Fatalf("a bad message gave %v", frames)
		case err == nil && len(frames) != max(len(want), 1): // an empty message has no frames; Ready follows it
			t.Fatalf("%d of %d frames arrived", len(frames), len(want))
		}
	})
}

// FuzzAfterHandshake sends arbitrary bytes on the socket after the handshake.
func FuzzAfterHandshake(f *testing.F) {
	for _, seed := range []string{
		"", "\x82\x81\x00\x00\x00\x00\x03", "\x82\x01\x03", "\x89\x80\x00\x00\x00\x00", "\x88\x82\x00\x00\x00\x00\x03\xe8",
		"\x02\x81\x00\x00\x00\x00\x03\x80\x80\x00\x00\x00\x00", "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00", "\xf2\x80\x00\x00\x00\x00",
	} {
		f.Add([]byte(seed))
	}
	l := listenUntilTheEnd(f, websocket.ListenOptions{})
	f.Fuzz(func(t *testing.T, sent []byte) {
		socket, err := net.Dial("tcp", strings.TrimPrefix(l.Endpoint().Address, "ws://"))
		if err != nil {
			t.Fatal(err)
		}
		defer socket.Close()
		request := "GET / HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
			"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: a2a.v1\r\n\r\n"
		if _, err := socket.Write(append([]byte(request), sent...)); err != nil {
			t.Fatal(err)
		}
		conn := accept(t, l)
		defer conn.Close()
		socket.(*net.TCPConn).CloseWrite()
		for {
			if _, err := conn.Receive(patience(t)); err != nil {
				if errors.Is(err, context.DeadlineExceeded) {
					t.Fatal("the connection is open after its socket was closed")
				}
				return
			}
		}
	})
}

// FuzzHandshake sends an arbitrary HTTP request to the listener: it gets an answer, and no connection without the
// token.
func FuzzHandshake(f *testing.F) {
	head := "GET / HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: a2a.v1\r\n"
	for _, seed := range []string{
		head + "\r\n", head + "Authorization: Bearer wrong\r\n\r\n", head + "Authorization: Bearer\r\n\r\n", head + "A2a-Max-Message: -1\r\n\r\n",
		head + "Origin: null\r\n\r\n", "GET / HTTP/1.0\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	const secret = "Q7GZP3Y2C4WJ6XNV5TKD"
	l := websocket.NewListener(websocket.ListenOptions{Authenticate: websocket.Tokens(map[string]string{"mars": secret})})
	f.Cleanup(func() { l.Close() })
	f.Fuzz(func(t *testing.T, request []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(request)))
		if err != nil || strings.Contains(string(request), secret) {
			return
		}
		w := httptest.NewRecorder()
		l.ServeHTTP(w, r)
		if w.Code < 400 {
			t.Fatalf("status %d", w.Code)
		}
	})
}

// FuzzEndpoint dials an arbitrary address without a network: it is refused, or dialled at that host, and the token
// is never sent without TLS.
func FuzzEndpoint(f *testing.F) {
	for _, seed := range []string{"ws://127.0.0.1:1", "wss://hub.example/path?x=y", "ws://[::1]:1", "ws://hub", "http://x", "ws://%zz", "wss://a@b", "ws://localhost.evil:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, address string) {
		dialled := ""
		d := &websocket.Dialer{
			Token: func(context.Context, *url.URL) (string, error) { return "secret", nil },
			DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
				dialled = address
				return nil, errors.New("no network in this test")
			},
		}
		_, err := d.Dial(t.Context(), at(address))
		if transport.CodeOf(err) == "" {
			t.Fatalf("got %v", err)
		}
		if dialled == "" {
			return
		}
		u, err := url.Parse(address)
		if err != nil {
			t.Fatalf("%q is not a URL, but was dialled", address)
		}
		ip := net.ParseIP(u.Hostname())
		if u.Scheme == "ws" && !strings.EqualFold(u.Hostname(), "localhost") && (ip == nil || !ip.IsLoopback()) {
			t.Fatalf("the token was sent to %q without TLS", dialled)
		}
	})
}
