package secretstream

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/parleyhub/parley/identity"
)

func seeded(n byte) *identity.Pair { return identity.FromSeed(repeat(n)) }

func repeat(n byte) [32]byte { return [32]byte(bytes.Repeat([]byte{n}, 32)) }

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	message1 = "ed4928c628d1c2c6eae90338905995612959273a5c63f93636c14614ac8737d1605c88a9067c5f85bd7499907d5c869548dd90bed5350bb2e7cb47efe61f60bc315838e49205f95b5a618d7c8c212eebf0fd5de81ac21376e3d41edd5c45a3f792d9804ec7c718ae7574d68427044b17a2d3d08c"
	message2 = "ca93ac1705187071d67b83c7ff0efe8108e8ec4530575d7726879333dbdabe7cf6c0821870ca187d0c98e78a221fb8fdd38e0b38c9fe6f825c"
)

// The expected bytes come from the npm packages, with static keys 1 and 2 and ephemeral keys 3 and 4.
//
// WIRE-T1.
func TestHandshakeVectors(t *testing.T) {
	payload1, payload2 := unhex(t, "011a0001017f00000188130100fe040302010001"), unhex(t, "011800010100070001")
	public := seeded(2).Public()
	three, four := repeat(3), repeat(4)
	state, err := newHandshake(seeded(1), &public, bytes.NewReader(three[:]))
	if err != nil {
		t.Fatal(err)
	}
	i := &Initiator{state, public}
	m1, err := i.Message(payload1)
	if err != nil || hex.EncodeToString(m1) != message1 {
		t.Fatalf("message 1 is %x, %v", m1, err)
	}
	r, remote, got, err := newResponder(seeded(2), m1, bytes.NewReader(four[:]))
	if err != nil || remote != seeded(1).Public() || !bytes.Equal(got, payload1) {
		t.Fatalf("the responder decodes %x from %v, %v", got, remote, err)
	}
	m2, theirs, err := r.Finish(payload2)
	if err != nil || hex.EncodeToString(m2) != message2 {
		t.Fatalf("message 2 is %x, %v", m2, err)
	}
	if _, _, err := i.Finish(append([]byte{0}, m2...)); err == nil {
		t.Fatal("a corrupt answer was accepted")
	}
	got, ours, err := i.Finish(m2)
	if err != nil || !bytes.Equal(got, payload2) {
		t.Fatalf("the initiator decodes %x, %v", got, err)
	}
	for name, c := range map[string]struct{ got, want []byte }{
		"hash":     {ours.Hash[:], unhex(t, "5e59819b3b30433cedca1bceb6cbca0df4ef18ade0ed19a5ce0663c9bccc6cbafb2376e67e7142aed4eae2f942a5b7cca426d90e432e5f86ca2065cb3c005463")},
		"same":     {theirs.Hash[:], ours.Hash[:]},
		"send":     {ours.Send[:], unhex(t, "cc00d99bd3a15a6779df38fd42fd25a84d73264023e7c1da95cf3bcbdce9c210")},
		"receive":  {ours.Receive[:], unhex(t, "78dd48ecef5d11fd953197694a8ee2d9f8d86d49d56d856e3dd7c8e78047826b")},
		"crossed":  {theirs.Send[:], ours.Receive[:]},
		"crossed2": {theirs.Receive[:], ours.Send[:]},
	} {
		if !bytes.Equal(c.got, c.want) {
			t.Errorf("%s is %x, want %x", name, c.got, c.want)
		}
	}
}

// A peer cannot choose an ephemeral key for which the shared secret is known in advance.
//
// WIRE-T24.
func TestLowOrderEphemeralKeysAreRefused(t *testing.T) {
	for _, bad := range []string{
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"4075dbb597fbad7f4f06294126a980b0b988a773f2e887aaf06fbcbc7745a116",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	} {
		msg := append(unhex(t, bad), unhex(t, message1)[32:]...)
		if _, _, _, err := NewResponder(seeded(2), msg); err == nil {
			t.Errorf("the responder accepted %s", bad)
		}
		i, err := NewInitiator(seeded(1), identity.PublicKey(unhex(t, bad)))
		if err != nil {
			continue
		}
		if _, err := i.Message(nil); err == nil {
			t.Errorf("the initiator accepted %s", bad)
		}
	}
}

func TestMessagesForOthersAreRefused(t *testing.T) {
	if _, _, _, err := NewResponder(seeded(5), unhex(t, message1)); err == nil {
		t.Error("a message for key 2 was decrypted with key 5")
	}
	i, err := NewInitiator(seeded(1), seeded(2).Public())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Message(nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := i.Finish(unhex(t, message2)); err == nil {
		t.Error("the answer to another message was accepted")
	}
}

// WIRE-T25.
func FuzzResponder(f *testing.F) {
	f.Add(unhex(f, message1))
	f.Fuzz(func(t *testing.T, msg []byte) {
		r, _, _, err := NewResponder(seeded(2), msg)
		if err != nil {
			return
		}
		if _, _, err := r.Finish(nil); err != nil {
			t.Fatal(err)
		}
	})
}

// WIRE-T25.
func FuzzInitiator(f *testing.F) {
	f.Add(unhex(f, message2))
	i, err := NewInitiator(seeded(1), seeded(2).Public())
	if err != nil {
		f.Fatal(err)
	}
	if _, err := i.Message(nil); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		if _, _, err := i.Finish(msg); err == nil {
			t.Fatal("an answer was forged")
		}
	})
}
