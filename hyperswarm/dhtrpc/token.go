package dhtrpc

import (
	"crypto/rand"
	"crypto/subtle"
	"net/netip"
	"sync"
	"time"

	"github.com/parleyhub/parley/identity"
)

// tokenLife is how long tokens are made with one secret; a token is valid for one to two lives.
const tokenLife = 7500 * time.Millisecond

// tokens makes and checks tokens: a host that presents the token it was given has shown that it receives
// what is sent to its address.
type tokens struct {
	mu      sync.Mutex
	secrets [2][32]byte // newest first
	turned  time.Time
}

func newTokens() *tokens {
	t := &tokens{turned: time.Now()}
	rand.Read(t.secrets[0][:]) // never fails
	rand.Read(t.secrets[1][:])
	return t
}

// turn replaces expired secrets.
func (t *tokens) turn(now time.Time) {
	for ; now.Sub(t.turned) >= tokenLife; t.turned = t.turned.Add(tokenLife) {
		if now.Sub(t.turned) >= 3*tokenLife { // skip lives without a request
			t.turned = now.Add(-2 * tokenLife)
		}
		t.secrets[1] = t.secrets[0]
		rand.Read(t.secrets[0][:])
	}
}

func (t *tokens) make(host netip.Addr) [32]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(time.Now())
	return identity.KeyedHash(t.secrets[0][:], []byte(host.String()))
}

func (t *tokens) good(host netip.Addr, token [32]byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(time.Now())
	ok := 0
	for _, s := range t.secrets {
		want := identity.KeyedHash(s[:], []byte(host.String()))
		ok |= subtle.ConstantTimeCompare(want[:], token[:])
	}
	return ok == 1
}
