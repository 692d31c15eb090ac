// Package handshake is the Noise handshake of Hyperswarm:
// Noise_IK_Ed25519_ChaChaPoly_BLAKE2b. One message each way proves both keys and
// gives the keys of the stream.
//
// The first message can be recorded and sent again by whoever forwards it: the
// responder knows that the initiator is there only when something arrives under
// the keys of the [Result]. And Result.Hash is no secret: it follows from the two
// messages and the responder's public key.
package secretstream

import (
	"errors"
	"fmt"
	"io"

	"github.com/flynn/noise"

	"github.com/parleyhub/parley/identity"
)

// Result is what both ends have after the handshake.
type Result struct {
	Remote  identity.PublicKey
	Hash    [64]byte // known to everybody on the path
	Send    [32]byte
	Receive [32]byte
	// Initiator says which end this is.
	Initiator bool
}

// EphemeralSize is how many bytes of the first message are the initiator's
// ephemeral key, by which a repeated message is recognised.
const EphemeralSize = 32

var errHandshake = errors.New("the handshake message is not valid")

// Initiator is the end that dials. It is not safe for concurrent use.
type Initiator struct {
	state  *noise.HandshakeState
	remote identity.PublicKey
}

// NewInitiator starts a handshake with the owner of a public key.
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
	// The state is of no more use once a key exchange in it has failed, so the
	// ephemeral key is looked at first.
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

// NewResponder reads a first message. Remote is who claims to have sent it.
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

// newHandshake prepares a handshake; a nil remote makes the responder's.
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

// curve is Diffie-Hellman on Ed25519 keys. A private key is a seed.
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
