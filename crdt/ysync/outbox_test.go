package ysync

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// sockets returns both ends of a connection of this computer.
func sockets(t *testing.T) (here *socket, there net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s := newSocket(accepted)
	t.Cleanup(func() { s.Close() })
	return s, c
}

// The outbox of a client that does not read is bounded; a single frame may have any size.
func TestTheOutboxIsBounded(t *testing.T) {
	here, there := net.Pipe() // has no buffer
	defer there.Close()
	o := outbox{socket: newSocket(here), wake: make(chan struct{}, 1)}
	defer o.socket.Close()
	var read sync.WaitGroup
	receive := func(n int) {
		read.Go(func() {
			if _, err := io.CopyN(io.Discard, there, int64(n)); err != nil {
				t.Error(err)
			}
		})
		if _, err := o.flush(); err != nil {
			t.Fatal(err)
		}
		read.Wait()
	}
	if !o.put(make([]byte, 2*maxOutBytes)) || o.put([]byte{1}) {
		t.Error("the outbox must accept exactly one large frame")
	}
	receive(2 * maxOutBytes)
	n := 0
	for o.put([]byte{1, 2, 3}) {
		n++
	}
	if n != maxOutBytes/3 {
		t.Errorf("%d small frames were accepted", n)
	}
	if len(o.queue) > 2*maxOutBytes/joined {
		t.Errorf("they are %d elements", len(o.queue))
	}
	receive(3 * n)
	if o.bytes != 0 || len(o.queue) != 0 {
		t.Errorf("%d bytes remain", o.bytes)
	}
}

// A change that the system accepts at once costs no memory for each of the pages that have it.
func TestAFrameIsWrittenWithoutAllocating(t *testing.T) {
	here, there := sockets(t)
	o := outbox{socket: here, wake: make(chan struct{}, 1)}
	if here.raw == nil || !canAttempt {
		return // frames are queued here
	}
	frame, received := []byte("frame"), make([]byte, 5)
	if n := testing.AllocsPerRun(500, func() {
		if !o.put(frame) {
			t.Error("a frame was refused")
		}
		if _, err := io.ReadFull(there, received); err != nil {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("a frame takes %v allocations", n)
	}
}

func TestWhatTheSystemDoesNotAcceptAtOnceFollowsInOrder(t *testing.T) {
	here, there := sockets(t)
	o := outbox{socket: here, wake: make(chan struct{}, 1)}
	var want []byte
	for i := byte(0); here.rest == nil && len(o.queue) == 0; i++ {
		frame := bytes.Repeat([]byte{i}, 100_000)
		if !o.put(frame) {
			t.Fatal("a frame was refused")
		}
		want = append(want, frame...)
	}
	for i := range byte(3) { // behind the rest
		if !o.put([]byte{i}) {
			t.Fatal("a frame was refused")
		}
		want = append(want, i)
	}
	if here.rest == nil && runtime.GOOS == "linux" {
		t.Error("no frame was cut")
	}
	var received sync.WaitGroup
	got := make([]byte, len(want))
	received.Go(func() {
		if _, err := io.ReadFull(there, got); err != nil {
			t.Error(err)
		}
	})
	<-o.wake
	if _, err := o.flush(); err != nil {
		t.Fatal(err)
	}
	received.Wait()
	if !bytes.Equal(got, want) {
		t.Error("the frames arrived changed or in another order")
	}
	if o.bytes != 0 {
		t.Errorf("%d bytes count as queued although all have arrived", o.bytes)
	}
}

// The library answers a client's close frame by itself, while others have changes for the client (RFC 6455, 5.5.1).
func TestNothingFollowsACloseFrame(t *testing.T) {
	here, there := sockets(t)
	o := outbox{socket: here, wake: make(chan struct{}, 1)}
	if !o.put([]byte("first")) {
		t.Fatal("a frame was refused")
	}
	if runtime.GOOS == "windows" { // put has queued it
		if _, err := o.flush(); err != nil {
			t.Fatal(err)
		}
	}
	end := []byte{closeFrame, 0}
	if _, err := here.Write(end); err != nil {
		t.Fatal(err)
	}
	o.put([]byte("second"))
	o.putAnswer([]byte("third"))
	if _, err := o.flush(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("flush: %v", err)
	}
	if _, err := here.Write([]byte{0x8a, 0}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a pong: %v", err)
	}
	here.Close()
	if got, err := io.ReadAll(there); err != nil || string(got) != "first"+string(end) {
		t.Errorf("received %q, %v", got, err)
	}
}

// RFC 6455, 5.5.1: the reason is UTF-8.
func TestTheReasonOfACloseIsUTF8(t *testing.T) {
	for _, tt := range []struct{ reason, want string }{
		{"outdated", "outdated"},
		{strings.Repeat("x", 99) + "é", strings.Repeat("x", 99)},
		{"a name \xff of a client", "a name  of a client"},
	} {
		if got := short(tt.reason); got != tt.want {
			t.Errorf("%q becomes %q", tt.reason, got)
		}
	}
}

// The library writes control frames while others send documents.
func TestControlFramesStandBetweenFrames(t *testing.T) {
	here, there := sockets(t)
	o := outbox{socket: here, wake: make(chan struct{}, 1)}
	document, control := bytes.Repeat([]byte{'d'}, 100_000), []byte("ccc")
	const frames = 400
	var sent sync.WaitGroup
	done := make(chan struct{})
	sent.Go(func() {
		defer close(done)
		for range frames {
			for !o.put(document) {
				runtime.Gosched() // the outbox is full
			}
		}
	})
	sent.Go(func() {
		for range frames {
			if _, err := here.Write(control); err != nil {
				t.Error(err)
			}
		}
	})
	sent.Go(func() {
		for ended := false; !ended; {
			select {
			case <-o.wake:
			case <-done:
				ended = true
			}
			if _, err := o.flush(); err != nil {
				t.Error(err)
			}
		}
	})
	in := bufio.NewReaderSize(there, len(document))
	documents, controls := 0, 0
	for documents < frames || controls < frames {
		first, err := in.Peek(1)
		if err != nil {
			t.Fatal(err)
		}
		want, count := document, &documents
		if first[0] == 'c' {
			want, count = control, &controls
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(in, got); err != nil || !bytes.Equal(got, want) {
			t.Fatal("a frame was cut by another", err)
		}
		*count++
	}
	sent.Wait()
}

func TestNothingFollowsTheEnd(t *testing.T) {
	here, there := sockets(t)
	o := outbox{socket: here, wake: make(chan struct{}, 1)}
	o.end()
	o.put([]byte("late"))
	if _, err := o.flush(); err != nil {
		t.Fatal(err)
	}
	here.Close()
	if got, err := io.ReadAll(there); err != nil || len(got) > 0 {
		t.Errorf("%q followed the end: %v", got, err)
	}
}
