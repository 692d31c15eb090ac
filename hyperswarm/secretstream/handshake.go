// The handshake is Noise_IK_Ed25519_ChaChaPoly_BLAKE2b: one message each way proves both keys and yields the keys of
// the stream. Result.Hash is not secret: it follows from the messages and the responder's public key.

package secretstream

import (
	"errors"
	"fmt"
	"io"

	"github.com/flynn/noise"

	"github.com/parleyhub/parley/identity"
)

// Result is the outcome of a handshake, at either end.
type Result struct {
	Remote  identity.PublicKey
	Hash    [64]byte // known to everyone on the path
	Send    [32]byte
	Receive [32]byte
	// Initiator reports whether this end dialled.
	Initiator bool
}

// EphemeralSize is the length of the initiator's ephemeral key, with which the first message begins. A
// repeated message is recognised by it.
const EphemeralSize = 32

var errHandshake = errors.New("the handshake message is not valid")

// Initiator is the end that dials. It is not safe for concurrent use.
type Initiator struct {
	state  *noise.HandshakeState
	remote identity.PublicKey
}

// NewInitiator begins a handshake with the owner of a public key.
func NewInitiator(pair *identity.Pair, remote identity.PublicKey) (*Initiator, error) {
	state, err := newHandshake(pair, &remote, nil)
	if err != nil {
		return nil, err
	}
	return &Initiator{state: state, remote: remote}, nil
}

// Message returns the first message. Call it once.
func (i *Initiator) Message(payload []byte) ([]byte, error) {
	msg, _, _, err := i.state.WriteMessage(nil, payload)
	if err != nil {
		return nil, fmt.Errorf("the handshake cannot begin: %w", err)
	}
	return msg, nil
}

// Finish reads the answer. After an error another answer may be tried.
func (i *Initiator) Finish(msg []byte) (payload []byte, r *Result, err error) {
	// A failed key exchange spoils the state, so the ephemeral key is checked first.
	if len(msg) < EphemeralSize || !identity.PublicKey(msg[:EphemeralSize]).Valid() {
		return nil, nil, errHandshake
	}
	payload, send, receive, err := i.state.ReadMessage(nil, msg)
	if err != nil || send == nil {
		return nil, nil, fmt.Errorf("%w: %v", errHandshake, err)
	}
	return payload, result(i.state, i.remote, send, receive, true), nil
}

// Responder is the end that is dialled. It is not safe for concurrent use.
type Responder struct{ state *noise.HandshakeState }

// NewResponder reads a first message. The remote key is unconfirmed: the message may be a recording. See
// [Conn.Confirmed].
func NewResponder(pair *identity.Pair, msg []byte) (r *Responder, remote identity.PublicKey, payload []byte, err error) {
	return newResponder(pair, msg, nil)
}

func newResponder(pair *identity.Pair, msg []byte, random io.Reader) (*Responder, identity.PublicKey, []byte, error) {
	state, err := newHandshake(pair, nil, random)
	if err != nil {
		return nil, identity.PublicKey{}, nil, err
	}
	payload, _, _, err := state.ReadMessage(nil, msg)
	if err != nil || len(state.PeerStatic()) != len(identity.PublicKey{}) {
		return nil, identity.PublicKey{}, nil, fmt.Errorf("%w: %v", errHandshake, err)
	}
	return &Responder{state}, identity.PublicKey(state.PeerStatic()), payload, nil
}

// Finish returns the answer. Call it once.
func (r *Responder) Finish(payload []byte) (msg []byte, res *Result, err error) {
	msg, receive, send, err := r.state.WriteMessage(nil, payload)
	if err != nil {
		return nil, nil, fmt.Errorf("the handshake cannot be answered: %w", err)
	}
	return msg, result(r.state, identity.PublicKey(r.state.PeerStatic()), send, receive, false), nil
}

func result(state *noise.HandshakeState, remote identity.PublicKey, send, receive *noise.CipherState, initiator bool) *Result {
	return &Result{
		Remote: remote, Hash: [64]byte(state.ChannelBinding()), Initiator: initiator,
		Send: send.UnsafeKey(), Receive: receive.UnsafeKey(),
	}
}

var suite = noise.NewCipherSuite(curve{}, noise.CipherChaChaPoly, noise.HashBLAKE2b)

// newHandshake prepares a handshake, the responder's if remote is nil.
func newHandshake(pair *identity.Pair, remote *identity.PublicKey, random io.Reader) (*noise.HandshakeState, error) {
	seed, public := pair.Seed(), pair.Public()
	c := noise.Config{
		CipherSuite: suite, Pattern: noise.HandshakeIK, Prologue: identity.PeerHandshake[:], Random: random,
		StaticKeypair: noise.DHKey{Private: seed[:], Public: public[:]},
	}
	if remote != nil {
		c.Initiator, c.PeerStatic = true, remote[:]
	}
	state, err := noise.NewHandshakeState(c)
	if err != nil {
		return nil, fmt.Errorf("the handshake cannot begin: %w", err)
	}
	return state, nil
}

// curve is Diffie-Hellman on Ed25519 keys; a private key is a seed.
type curve struct{}

func (curve) GenerateKeypair(random io.Reader) (noise.DHKey, error) {
	var seed [32]byte
	if _, err := io.ReadFull(random, seed[:]); err != nil {
		return noise.DHKey{}, err
	}
	public := identity.FromSeed(seed).Public()
	return noise.DHKey{Private: seed[:], Public: public[:]}, nil
}

func (curve) DH(private, public []byte) ([]byte, error) {
	if len(private) != 32 || len(public) != 32 {
		return nil, errHandshake
	}
	shared, err := identity.FromSeed([32]byte(private)).DH(identity.PublicKey(public))
	return shared[:], err
}

func (curve) DHLen() int     { return 32 }
func (curve) DHName() string { return "Ed25519" }
