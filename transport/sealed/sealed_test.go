package sealed_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/sealed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// streams returns the two ends of a secret stream over TCP.
func streams(t testing.TB) (a, b *secretstream.Conn) {
	t.Helper()
	return streamsOver(t, func(c *net.TCPConn) secretstream.Stream { return c })
}

// streamsOver is streams with the first end over what dialled makes of its TCP connection.
func streamsOver(t testing.TB, dialled func(*net.TCPConn) secretstream.Stream) (a, b *secretstream.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	owner := identity.Generate()
	i, err := secretstream.NewInitiator(identity.Generate(), owner.Public())
	if err != nil {
		t.Fatal(err)
	}
	msg, err := i.Message(nil)
	if err != nil {
		t.Fatal(err)
	}
	r, _, _, err := secretstream.NewResponder(owner, msg)
	if err != nil {
		t.Fatal(err)
	}
	msg, there, err := r.Finish(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, here, err := i.Finish(msg)
	if err != nil {
		t.Fatal(err)
	}
	o := secretstream.Options{MaxMessage: new(transport.Codec).MaxMessage()}
	if a, err = secretstream.New(dialled(out.(*net.TCPConn)), here, o); err != nil {
		t.Fatal(err)
	}
	if b, err = secretstream.New(in.(*net.TCPConn), there, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Destroy(); b.Destroy() })
	return a, b
}

func greet(t testing.TB, s *secretstream.Conn, codec *transport.Codec) chan *sealed.Conn {
	done := make(chan *sealed.Conn, 1)
	go func() {
		c, err := sealed.Greet(deadline(t), s, codec)
		if err != nil {
			t.Error(err)
		}
		done <- c
	}()
	return done
}

// Each end receives the other's size limit, and sends no larger messages.
func TestSendRespectsThePeersLimit(t *testing.T) {
	s1, s2 := streams(t)
	small := &transport.Codec{Envelope: envelope.Codec{MaxSize: 1000}}
	atA, atB := greet(t, s1, new(transport.Codec)), greet(t, s2, small)
	a, b := <-atA, <-atB
	defer a.Close()
	defer b.Abort()
	e, err := envelope.New("a", "b", envelope.Notification, strings.Repeat("x", 900<<10))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Send(deadline(t), []transport.Frame{{Kind: transport.Data, Seq: 1, Envelope: e}}); transport.CodeOf(err) != transport.CodeTooLarge {
		t.Errorf("got %v", err)
	}
	if err := a.Send(deadline(t), []transport.Frame{{Kind: transport.Ack, Seq: 1}}); err != nil {
		t.Fatal(err)
	}
	if frames, err := b.Receive(deadline(t)); err != nil || frames[0].Kind != transport.Ack {
		t.Errorf("%v, %v", frames, err)
	}
}

func TestPeersThatAreNotAgents(t *testing.T) {
	for _, text := range []string{"GET / HTTP/1.1", sealed.Greeting, sealed.Greeting + "\x01", sealed.Greeting[:5]} {
		s1, s2 := streams(t)
		if err := s2.WriteMessage([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, err := sealed.Greet(deadline(t), s1, new(transport.Codec)); transport.CodeOf(err) != transport.CodeInvalid {
			t.Errorf("%q: %v", text, err)
		}
		s2.Destroy()
	}
	s1, s2 := streams(t)
	s2.Destroy()
	if _, err := sealed.Greet(deadline(t), s1, new(transport.Codec)); transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("a peer that closes the connection: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s1, _ = streams(t)
	if _, err := sealed.Greet(ctx, s1, new(transport.Codec)); transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("a context that has ended: %v", err)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{byte(transport.Ready)})
	f.Add([]byte("\x06\x01\x02"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		s1, s2 := streams(t)
		at := greet(t, s1, new(transport.Codec))
		if err := s2.WriteMessage([]byte(sealed.Greeting + "\x80\x80\x40")); err != nil {
			t.Fatal(err)
		}
		c := <-at
		defer c.Abort()
		if err := s2.WriteMessage(data); err != nil {
			t.Fatal(err)
		}
		if err := s2.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := c.Receive(deadline(t)); err != nil {
				return
			}
		}
	})
}

// brokenTCP is a TCP connection that accepts so many bytes more, once it breaks.
type brokenTCP struct {
	*net.TCPConn
	broken  atomic.Bool
	accepts int
}

func (c *brokenTCP) Write(p []byte) (int, error) {
	if !c.broken.Load() {
		return c.TCPConn.Write(p)
	}
	n, err := c.TCPConn.Write(p[:c.accepts])
	if err != nil {
		return n, err
	}
	return n, net.ErrClosed
}

// Only a send of which certainly nothing has left says so: the channel tries it again (Req 3.5).
func TestSendSaysWhetherAnythingMayHaveLeft(t *testing.T) {
	for accepts, nothing := range map[int]bool{0: true, 1: false, 20: false} {
		broken := &brokenTCP{accepts: accepts}
		s1, s2 := streamsOver(t, func(c *net.TCPConn) secretstream.Stream { broken.TCPConn = c; return broken })
		atA, atB := greet(t, s1, new(transport.Codec)), greet(t, s2, new(transport.Codec))
		a, b := <-atA, <-atB
		frames := []transport.Frame{{Kind: transport.Ack, Seq: 1}}
		broken.broken.Store(true)
		err := a.Send(deadline(t), frames)
		if transport.CodeOf(err) != transport.CodeClosed || transport.NothingSent(err) != nothing {
			t.Errorf("after %d bytes: %v, nothing sent: %v", accepts, err, transport.NothingSent(err))
		}
		if err := a.Send(deadline(t), frames); transport.CodeOf(err) != transport.CodeClosed || !transport.NothingSent(err) {
			t.Errorf("the next send: %v", err)
		}
		a.Abort()
		b.Abort()
	}
}
