// Package identity provides the identities and hashes of Hyperswarm: Ed25519 key pairs, a file to keep one
// in, BLAKE2b hashes, the protocol's name spaces, and the list of peers that may connect.
package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"filippo.io/edwards25519"
	"golang.org/x/crypto/blake2b"
)

// PublicKey identifies a peer.
type PublicKey [32]byte

// String returns the key in hexadecimal.
func (k PublicKey) String() string { return hex.EncodeToString(k[:]) }

// ParsePublicKey parses the result of String. The key must be [PublicKey.Valid].
func ParsePublicKey(text string) (PublicKey, error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(PublicKey{}) {
		return PublicKey{}, fmt.Errorf("a public key has 64 hexadecimal digits; this one is %d characters like %.8q", len(text), text)
	}
	k := PublicKey(b)
	if !k.Valid() {
		return PublicKey{}, errPoint
	}
	return k, nil
}

// Pair is a key pair. It is safe for concurrent use. The zero value is not usable.
type Pair struct {
	public  PublicKey
	private ed25519.PrivateKey
	scalar  *edwards25519.Scalar
}

// Generate returns a new random pair.
func Generate() *Pair {
	var seed [32]byte
	rand.Read(seed[:]) // never fails
	return FromSeed(seed)
}

// FromSeed returns the pair of an RFC 8032 seed.
func FromSeed(seed [32]byte) *Pair {
	private := ed25519.NewKeyFromSeed(seed[:])
	h := sha512.Sum512(seed[:])
	s, err := edwards25519.NewScalar().SetBytesWithClamping(h[:32])
	if err != nil {
		panic(err) // it is 32 bytes
	}
	return &Pair{public: PublicKey(private.Public().(ed25519.PublicKey)), private: private, scalar: s}
}

// Derive returns a pair computed from this one and a purpose. The public keys alone do not show that the
// pairs are related.
func (p *Pair) Derive(purpose string) *Pair {
	seed := p.Seed()
	return FromSeed(KeyedHash(seed[:], []byte("derived key\n"+purpose)))
}

// Public returns the public key.
func (p *Pair) Public() PublicKey { return p.public }

// Seed returns the secret seed that the pair was made from.
func (p *Pair) Seed() [32]byte { return [32]byte(p.private.Seed()) }

// Sign signs a message.
func (p *Pair) Sign(message []byte) [64]byte { return [64]byte(ed25519.Sign(p.private, message)) }

// String omits the private key, so that logs do not contain it.
func (p *Pair) String() string { return "key pair of " + p.public.String() }

// GoString omits the private key, so that logs do not contain it.
func (p *Pair) GoString() string { return p.String() }

// DH multiplies the private scalar with a public key. A public key that is not [PublicKey.Valid] is an
// error: with such a key an attacker could choose the result or learn bits of the scalar.
func (p *Pair) DH(public PublicKey) ([32]byte, error) {
	q, err := point(public)
	if err != nil {
		return [32]byte{}, err
	}
	return [32]byte(new(edwards25519.Point).ScalarMult(p.scalar, q).Bytes()), nil
}

// Verify reports whether sig is the signature of message under a valid public key. crypto/ed25519 alone
// accepts keys of small order, for which anyone can forge signatures.
func Verify(public PublicKey, message []byte, sig [64]byte) bool {
	if !public.Valid() {
		return false
	}
	return ed25519.Verify(public[:], message, sig[:])
}

// Valid reports whether the key is the canonical form of a point in the group of prime order, as every key
// made from a seed is.
func (k PublicKey) Valid() bool {
	if valid.has(k) {
		return true
	}
	_, err := point(k)
	if err == nil {
		valid.add(k)
	}
	return err == nil
}

// keySet is a bounded set of keys. It is safe for concurrent use.
type keySet struct {
	mu   sync.Mutex
	keys map[PublicKey]struct{}
}

// valid has valid keys: the check is a scalar multiplication, and a hub reads the keys of its peers again and again.
var valid keySet

const mostKeys = 1024

func (s *keySet) has(k PublicKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.keys[k]
	return ok
}

// add adds a key. A full set is emptied: strangers can make others slower, and nothing else.
func (s *keySet) add(k PublicKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil || len(s.keys) == mostKeys {
		s.keys = map[PublicKey]struct{}{}
	}
	s.keys[k] = struct{}{}
}

var errPoint = errors.New("the public key is not a point of the prime-order group")

// orderMinusOne is the group's order less one, as a scalar.
var orderMinusOne = new(edwards25519.Scalar).Negate(one())

func one() *edwards25519.Scalar {
	s, err := edwards25519.NewScalar().SetCanonicalBytes(append([]byte{1}, make([]byte, 31)...))
	if err != nil {
		panic(err) // 1 is canonical
	}
	return s
}

// point decodes a public key and checks that it is valid.
func point(k PublicKey) (*edwards25519.Point, error) {
	p, err := new(edwards25519.Point).SetBytes(k[:])
	if err != nil || PublicKey(p.Bytes()) != k {
		return nil, errPoint
	}
	identity := edwards25519.NewIdentityPoint()
	if p.Equal(identity) == 1 {
		return nil, errPoint
	}
	// [order-1]P + P is the identity exactly for the points of the group.
	zero := edwards25519.NewScalar()
	q := new(edwards25519.Point).VarTimeDoubleScalarBaseMult(orderMinusOne, p, zero)
	if q.Add(q, p).Equal(identity) != 1 {
		return nil, errPoint
	}
	return p, nil
}

// Hash returns the BLAKE2b-256 hash of the concatenated parts.
func Hash(parts ...[]byte) [32]byte { return KeyedHash(nil, parts...) }

// KeyedHash returns the keyed BLAKE2b-256 hash of the concatenated parts. It panics if the key is longer
// than 64 bytes.
func KeyedHash(key []byte, parts ...[]byte) (sum [32]byte) {
	h, err := blake2b.New256(key)
	if err != nil {
		panic(err) // the key is longer than 64 bytes
	}
	for _, p := range parts {
		h.Write(p) // never fails
	}
	h.Sum(sum[:0])
	return sum
}

// Namespace returns the i-th tag of a name.
func Namespace(name string, i byte) [32]byte {
	h := Hash([]byte(name))
	return Hash(h[:], []byte{i})
}

// The protocol's name spaces: a signature made in one is not valid in another.
var (
	PeerHandshake   = Namespace("hyperswarm/dht", 0)
	PeerHolepunch   = Namespace("hyperswarm/dht", 1)
	Announce        = Namespace("hyperswarm/dht", 4)
	Unannounce      = Namespace("hyperswarm/dht", 5)
	MutablePut      = Namespace("hyperswarm/dht", 6)
	StreamInitiator = Namespace("hyperswarm/secret-stream", 0)
	StreamResponder = Namespace("hyperswarm/secret-stream", 1)
)
