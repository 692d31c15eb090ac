package secretstream

import (
	"crypto/cipher"
	"crypto/subtle"
	"encoding/binary"
	"errors"

	"golang.org/x/crypto/chacha20"
	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/crypto/poly1305" //lint:ignore SA1019 the AEAD package cannot express libsodium's padding
)

// libsodium's crypto_secretstream_xchacha20poly1305 with empty additional data and tag 0.
const (
	keySize    = 32
	headerSize = 24
	blockSize  = 64
	macSize    = 16
	tagSize    = 1
	// cipherOverhead is how many bytes longer a sealed message is.
	cipherOverhead = tagSize + macSize
)

var errForged = errors.New("a frame was not made by the peer")

// state is one direction of a secret stream.
//
// The cipher is ChaCha20 with block 0 for the Poly1305 key, block 1 for the tag, and the message from block
// 2. That is what the AEAD ChaCha20-Poly1305 does with a message that has the tag's block in front, so its
// fast code is used. Only the padding before the MAC's lengths differs, for messages whose length is no
// multiple of eight: libsodium pads with the length modulo 16, not up to 16.
type state struct {
	aead  cipher.AEAD
	key   [keySize]byte
	nonce [chacha20.NonceSize]byte // 32-bit counter, then 8 bytes that change with each message
}

func newState(key [keySize]byte, header [headerSize]byte) (*state, error) {
	sub, err := chacha20.HChaCha20(key[:], header[:16])
	if err != nil {
		return nil, err
	}
	s := &state{key: [keySize]byte(sub)}
	copy(s.nonce[4:], header[16:])
	return s, s.rewind()
}

// rewind begins counting under the present key.
func (s *state) rewind() (err error) {
	binary.LittleEndian.PutUint32(s.nonce[:4], 1)
	s.aead, err = chacha20poly1305.New(s.key[:])
	return err
}

// sealRoom is how many bytes seal needs in front of the message.
const sealRoom = blockSize

// seal encrypts the message in b[sealRoom:], which must have room for a MAC behind it, in place. It returns
// the sealed message: tag, ciphertext, MAC.
func (s *state) seal(b []byte) ([]byte, error) {
	clear(b[:blockSize])
	n := len(b) - blockSize
	out := s.aead.Seal(b[:0], s.nonce[:], b, nil)
	if !sameMAC(n) {
		mac := s.mac(out[:len(b)], n)
		copy(out[len(b):], mac[:])
	}
	out[blockSize-1] = out[0]
	sealed := out[blockSize-1:]
	return sealed, s.advance(sealed[len(sealed)-macSize:])
}

// openRoom is how many bytes open needs in front of a sealed message.
const openRoom = blockSize - tagSize

// open decrypts the sealed message in b[openRoom:] in place and returns the message. After an error the
// state is as before, and b is spoilt.
func (s *state) open(b []byte) (message []byte, tag byte, err error) {
	if len(b) < openRoom+cipherOverhead {
		return nil, 0, errForged
	}
	var zero [blockSize]byte
	var stream [blockSize + macSize]byte
	s.aead.Seal(stream[:0], s.nonce[:], zero[:], nil) // the key stream of block 1
	first := b[openRoom]
	tag = first ^ stream[0]
	copy(b, stream[:blockSize])
	b[0] = first
	sealed, mac := b[:len(b)-macSize], [macSize]byte(b[len(b)-macSize:])
	n := len(sealed) - blockSize
	if sameMAC(n) {
		if message, err = s.aead.Open(b[:0], s.nonce[:], b, nil); err != nil {
			return nil, 0, errForged
		}
		return message[blockSize:], tag, s.advance(mac[:])
	}
	want := s.mac(sealed, n)
	if subtle.ConstantTimeCompare(want[:], mac[:]) != 1 {
		return nil, 0, errForged
	}
	message = s.aead.Seal(b[:0], s.nonce[:], sealed, nil) // adding the key stream takes it away
	return message[blockSize : len(message)-macSize], tag, s.advance(mac[:])
}

// sameMAC reports whether the AEAD's MAC of n bytes is ours, too.
func sameMAC(n int) bool { return n%8 == 0 }

// mac authenticates a sealed block and message, libsodium's way.
func (s *state) mac(sealed []byte, n int) (sum [macSize]byte) {
	c, err := chacha20.NewUnauthenticatedCipher(s.key[:], s.nonce[:])
	if err != nil {
		panic(err) // the sizes are right
	}
	var key [32]byte
	c.XORKeyStream(key[:], key[:])
	var tail [16 + 16]byte
	pad := n % 16
	binary.LittleEndian.PutUint64(tail[pad+8:], uint64(blockSize+n))
	m := poly1305.New(&key)
	m.Write(sealed)        // never fails
	m.Write(tail[:pad+16]) // never fails
	m.Sum(sum[:0])
	return sum
}

// advance makes the next message's nonce from this one's MAC.
func (s *state) advance(mac []byte) error {
	subtle.XORBytes(s.nonce[4:], s.nonce[4:], mac[:8])
	n := binary.LittleEndian.Uint32(s.nonce[:4]) + 1
	binary.LittleEndian.PutUint32(s.nonce[:4], n)
	if n == 0 {
		return s.rekey()
	}
	return nil
}

// rekey derives a new key when the counter is used up.
func (s *state) rekey() error {
	c, err := chacha20.NewUnauthenticatedCipher(s.key[:], s.nonce[:])
	if err != nil {
		return err
	}
	var next [keySize + 8]byte
	copy(next[:], s.key[:])
	copy(next[keySize:], s.nonce[4:])
	c.XORKeyStream(next[:], next[:])
	s.key = [keySize]byte(next[:keySize])
	copy(s.nonce[4:], next[keySize:])
	return s.rewind()
}
