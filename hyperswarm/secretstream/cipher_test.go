package secretstream

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"testing"

	"golang.org/x/crypto/chacha20"
	"pgregory.net/rapid"
)

func repeated(b byte) (key [keySize]byte, header [headerSize]byte) {
	copy(key[:], bytes.Repeat([]byte{b}, keySize))
	copy(header[:], bytes.Repeat([]byte{b - 0x11}, headerSize))
	return key, header
}

func pair(t testing.TB) (push, pull *state) {
	t.Helper()
	key, header := repeated(0x55)
	push, err := newState(key, header)
	if err != nil {
		t.Fatal(err)
	}
	if pull, err = newState(key, header); err != nil {
		t.Fatal(err)
	}
	return push, pull
}

func sealed(t testing.TB, s *state, message []byte) []byte {
	t.Helper()
	b := make([]byte, sealRoom, sealRoom+len(message)+macSize)
	out, err := s.seal(append(b, message...))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(out)
}

func opened(s *state, data []byte) ([]byte, byte, error) {
	return s.open(append(make([]byte, openRoom), data...))
}

// The expected bytes come from libsodium.
//
// WIRE-T1.
func TestVectors(t *testing.T) {
	push, pull := pair(t)
	for _, c := range []struct{ message, want string }{
		{"hello", "9196bd59eeff995670a3c840a9d0cf5177c3122985cb"},
		{"", "559ccc4afdb31a9e0944fff14290f96ba3"},
	} {
		got := sealed(t, push, []byte(c.message))
		if hex.EncodeToString(got) != c.want {
			t.Errorf("%q became %x, want %s", c.message, got, c.want)
		}
		if m, tag, err := opened(pull, got); err != nil || string(m) != c.message || tag != 0 {
			t.Errorf("%x became %q, %d, %v", got, m, tag, err)
		}
	}
}

// reference implements the construction from its description, without the AEAD.
func reference(s *state, message []byte) []byte {
	c, err := chacha20.NewUnauthenticatedCipher(s.key[:], s.nonce[:])
	if err != nil {
		panic(err)
	}
	stream := make([]byte, 2*blockSize+len(message))
	c.XORKeyStream(stream, stream)
	block := bytes.Clone(stream[blockSize : 2*blockSize])
	text := make([]byte, len(message))
	for i := range message {
		text[i] = message[i] ^ stream[2*blockSize+i]
	}
	mac := s.mac(append(bytes.Clone(block), text...), len(message))
	return append(append([]byte{block[0]}, text...), mac[:]...)
}

func TestSealMatchesTheReference(t *testing.T) {
	push, pull := pair(t)
	for n := range 300 {
		message := bytes.Repeat([]byte{byte(n)}, n)
		want := reference(push, message)
		got := sealed(t, push, message)
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes became %x, want %x", n, got, want)
		}
		if m, _, err := opened(pull, got); err != nil || !bytes.Equal(m, message) {
			t.Fatalf("%d bytes became %x, %v", n, m, err)
		}
	}
}

// A changed, repeated, reordered or truncated message is refused, and the next genuine one still opens.
func TestForgedMessagesAreRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, header := repeated(0x55)
		push, err := newState(key, header)
		if err != nil {
			t.Fatal(err)
		}
		pull, err := newState(key, header)
		if err != nil {
			t.Fatal(err)
		}
		message := rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "message")
		b := make([]byte, sealRoom, sealRoom+len(message)+macSize)
		out, err := push.seal(append(b, message...))
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(out)
		if rapid.Bool().Draw(t, "cut") {
			bad = bad[:rapid.IntRange(0, len(bad)-1).Draw(t, "length")]
		} else {
			bad[rapid.IntRange(0, len(bad)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "change"))
		}
		if _, _, err := opened(pull, bad); err == nil {
			t.Fatal("a forged message was accepted")
		}
		if m, _, err := opened(pull, out); err != nil || !bytes.Equal(m, message) {
			t.Fatalf("the genuine message: %x, %v", m, err)
		}
		if _, _, err := opened(pull, out); err == nil {
			t.Fatal("a repeated message was accepted")
		}
	})
}

// After 2^32 messages both ends derive a new key.
func TestKeyChangesWhenTheCounterWraps(t *testing.T) {
	push, pull := pair(t)
	for _, s := range []*state{push, pull} {
		binary.LittleEndian.PutUint32(s.nonce[:4], 0xffffffff)
	}
	before := push.key
	for _, text := range []string{"the last", "the first"} {
		if m, _, err := opened(pull, sealed(t, push, []byte(text))); err != nil || string(m) != text {
			t.Errorf("%q, %v", m, err)
		}
	}
	if push.key == before || push.key != pull.key {
		t.Error("the two ends have different keys, or the old one")
	}
}

// WIRE-T25.
func FuzzOpen(f *testing.F) {
	push, _ := pair(f)
	f.Add(sealed(f, push, []byte("hello")))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		push, pull := pair(t)
		m, _, err := opened(pull, data)
		if err == nil && !bytes.Equal(sealed(t, push, m), data) {
			t.Fatal("a message was forged")
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	push, _ := pair(b)
	buf := make([]byte, sealRoom+chunkSize+macSize)
	b.SetBytes(chunkSize)
	for b.Loop() {
		if _, err := push.seal(buf[:sealRoom+chunkSize]); err != nil {
			b.Fatal(err)
		}
	}
}
