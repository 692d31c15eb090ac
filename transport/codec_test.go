package transport_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/envelope/envelopetest"
	"github.com/parleyhub/parley/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func frame() *rapid.Generator[transport.Frame] {
	return rapid.Custom(func(t *rapid.T) transport.Frame {
		f := transport.Frame{Kind: transport.Kind(rapid.IntRange(1, 8).Draw(t, "kind"))}
		switch f.Kind {
		case transport.Open, transport.Accept:
			f.Hello = &transport.Hello{Version: 1, Channel: rapid.StringMatching(`[a-z]{0,9}`).Draw(t, "channel"), From: "a", To: "b",
				Received: rapid.Uint64().Draw(t, "received"), Card: json.RawMessage(`{"id":"a"}`), Resume: rapid.Bool().Draw(t, "resume")}
		case transport.Refuse, transport.Close, transport.Reject:
			if f.Kind == transport.Reject {
				f.Seq = rapid.Uint64().Draw(t, "seq")
			}
			f.Reason = &transport.Reason{Code: "X", Message: rapid.StringMatching(`[a-zé ]{0,9}`).Draw(t, "message")}
		case transport.Ack:
			f.Seq, f.Ack = rapid.Uint64().Draw(t, "seq"), rapid.Uint64().Draw(t, "ack")
		case transport.Data:
			f.Seq, f.Ack = rapid.Uint64().Draw(t, "seq"), rapid.Uint64().Draw(t, "ack")
			if rapid.IntRange(0, 4).Draw(t, "given up") > 0 {
				f.Envelope = envelopetest.Envelope().Draw(t, "envelope")
			}
		}
		return f
	})
}

func TestFramesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c transport.Codec
		frames := rapid.SliceOfN(frame(), 0, 6).Draw(t, "frames")
		var data []byte
		for i := range frames {
			var err error
			if data, err = c.Append(data, &frames[i]); err != nil {
				t.Fatal(err)
			}
		}
		back, err := c.Decode(nil, data)
		if err != nil {
			t.Fatal(err)
		}
		if len(frames) != len(back) {
			t.Fatalf("%d of %d frames were decoded", len(back), len(frames))
		}
		if d := cmp.Diff(frames, back); d != "" && len(frames) > 0 {
			t.Fatal(d)
		}
	})
}

func TestAppendRefusesInvalidFrames(t *testing.T) {
	e, err := envelope.New("a", "b", envelope.Request, strings.Repeat("x", 100))
	if err != nil {
		t.Fatal(err)
	}
	c := transport.Codec{Envelope: envelope.Codec{MaxSize: 50}}
	for want, f := range map[transport.Code]*transport.Frame{
		transport.CodeTooLarge: {Kind: transport.Data, Envelope: e},
		transport.CodeInvalid:  {Kind: 99},
	} {
		out, err := c.Append([]byte("kept"), f)
		if transport.CodeOf(err) != want || string(out) != "kept" {
			t.Errorf("%q, %v, want %s", out, err, want)
		}
	}
	long := &transport.Frame{Kind: transport.Close, Reason: &transport.Reason{Message: strings.Repeat("x", 1<<20)}}
	if _, err := c.Append(nil, long); transport.CodeOf(err) != transport.CodeTooLarge {
		t.Errorf("a reason of 1 MiB: %v", err)
	}
}

func TestDecodeRefusesInvalidMessages(t *testing.T) {
	var c transport.Codec
	for name, data := range map[string]string{
		"unknown kind":           "\x00",
		"empty Open":             "\x01",
		"Open with invalid JSON": "\x01\x01{",
		"truncated Data":         "\x05\x01",
		"length beyond the end":  "\x05\x01\x00\x7f{}",
		"length beyond memory":   "\x05\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
		"number beyond 64 bits":  "\x06\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"empty Reject":           "\x08\x01",
		"Close of 1 MiB":         "\x07\x80\x80\x40" + strings.Repeat(" ", 1<<20),
	} {
		if _, err := c.Decode(nil, []byte(data)); transport.CodeOf(err) != transport.CodeInvalid || err.Error() == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An envelope that cannot be decoded does not affect the others.
func TestDecodeMarksTheInvalidEnvelope(t *testing.T) {
	var large transport.Codec
	small := transport.Codec{Envelope: envelope.Codec{MaxSize: 1000}}
	var data []byte
	for i, size := range []int{10, 2000, 10} {
		e, err := envelope.New("a", "b", envelope.Request, strings.Repeat("x", size))
		if err != nil {
			t.Fatal(err)
		}
		if data, err = large.Append(data, &transport.Frame{Kind: transport.Data, Seq: uint64(i + 1), Ack: 9, Envelope: e}); err != nil {
			t.Fatal(err)
		}
	}
	frames, err := small.Decode(nil, data)
	if err != nil || len(frames) != 3 || frames[0].Envelope == nil || frames[2].Envelope == nil {
		t.Fatalf("got %+v, %v", frames, err)
	}
	var tooLarge *envelope.Error
	if f := frames[1]; f.Envelope != nil || f.Seq != 2 || f.Ack != 9 || !errors.As(f.Err, &tooLarge) || tooLarge.Code != envelope.CodeTooLarge {
		t.Errorf("got %+v", f)
	}
}

func TestError(t *testing.T) {
	cause := errors.New("cut")
	err := transport.ErrClosed("the connection", cause)
	if !errors.Is(err, cause) || err.Error() != "the connection is closed: cut" || transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("got %v", err)
	}
	if transport.CodeOf(cause) != "" {
		t.Error("another error has a code")
	}
}

func FuzzDecode(f *testing.F) {
	var c transport.Codec
	e, err := envelope.New("a", "b", envelope.Request, nil)
	if err != nil {
		f.Fatal(err)
	}
	var all []byte
	for _, fr := range []transport.Frame{
		{Kind: transport.Open, Hello: &transport.Hello{Version: 1, Channel: "c"}}, {Kind: transport.Ready},
		{Kind: transport.Data, Seq: 1, Ack: 7, Envelope: e}, {Kind: transport.Data, Seq: 2}, {Kind: transport.Ack, Seq: 300, Ack: 2},
		{Kind: transport.Close, Reason: &transport.Reason{Code: "X"}}, {Kind: transport.Reject, Seq: 3, Reason: &transport.Reason{Code: "X"}},
	} {
		if all, err = c.Append(all, &fr); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, data []byte) {
		frames, err := c.Decode(nil, data)
		if err != nil {
			return
		}
		var again []byte
		for i := range frames {
			if again, err = c.Append(again, &frames[i]); err != nil {
				t.Fatal(err)
			}
		}
		back, err := c.Decode(nil, again)
		if err != nil || len(back) != len(frames) {
			t.Fatalf("%d frames became %d, %v", len(frames), len(back), err)
		}
	})
}
