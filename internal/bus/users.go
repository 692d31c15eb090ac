package bus

import (
	"crypto/rand"
	"crypto/subtle"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/parleyhub/parley/internal/base/caller"
)

const (
	hubUser = "hub" // the hub's own user; those of Grants start with the account's name and a dot

	// grantTTL is how long a Grant may stay unused.
	grantTTL = 30 * time.Second
	// maxUnused bounds the Grants that wait to be used.
	maxUnused = 1024
)

// users are the users that may connect to an embedded server: the hub itself any number of times,
// the holder of a Grant once. It is safe for concurrent use.
type users struct {
	mu        sync.Mutex
	byName    map[string]*user
	resting   map[string]struct{} // those that are not connected, and may connect again
	listening net.Addr            // nil until the server listens
}

type user struct {
	server.User
	password string
	expires  time.Time // zero for a user with any number of connections
}

func newUsers() *users {
	return &users{byName: make(map[string]*user), resting: make(map[string]struct{})}
}

// add adds a user with a new random password, and returns the password. A nil u.Account is the
// hub's own, nil u.Permissions permit everything in the account. With an expiry time the user may
// connect once; ok is false if too many such users have not connected yet.
func (us *users) add(u server.User, expires time.Time) (password string, ok bool) {
	password = rand.Text() + rand.Text() // 256 bits
	us.mu.Lock()
	defer us.mu.Unlock()
	if !expires.IsZero() && len(us.byName) > maxUnused {
		us.sweep(time.Now())
		if len(us.byName) > maxUnused {
			return "", false
		}
	}
	us.byName[u.Username] = &user{User: u, password: password, expires: expires}
	return password, true
}

// sweep removes expired users. us.mu is held.
func (us *users) sweep(now time.Time) {
	maps.DeleteFunc(us.byName, func(_ string, u *user) bool { return u.expired(now) })
}

func (u *user) expired(now time.Time) bool { return !u.expires.IsZero() && now.After(u.expires) }

// unused reports whether a user may still connect.
func (us *users) unused(name string) bool {
	us.mu.Lock()
	defer us.mu.Unlock()
	u, ok := us.byName[name]
	return ok && !u.expired(time.Now())
}

// remove removes a user.
func (us *users) remove(name string) {
	us.mu.Lock()
	defer us.mu.Unlock()
	delete(us.byName, name)
	delete(us.resting, name)
}

// rest notes that a user rests. It returns false if it does so already.
func (us *users) rest(name string) bool {
	us.mu.Lock()
	defer us.mu.Unlock()
	_, rests := us.resting[name]
	us.resting[name] = struct{}{}
	return !rests
}

// wake notes that a user does not rest any more. It returns false if it did not.
func (us *users) wake(name string) bool {
	us.mu.Lock()
	defer us.mu.Unlock()
	_, rests := us.resting[name]
	delete(us.resting, name)
	return rests
}

// rests reports whether a user rests.
func (us *users) rests(name string) bool {
	us.mu.Lock()
	defer us.mu.Unlock()
	_, rests := us.resting[name]
	return rests
}

// countResting returns how many users rest. All of them are of the agents' network.
func (us *users) countResting() int {
	us.mu.Lock()
	defer us.mu.Unlock()
	return len(us.resting)
}

// withdraw removes all users of an account but one.
func (us *users) withdraw(account, except string) {
	us.mu.Lock()
	defer us.mu.Unlock()
	maps.DeleteFunc(us.byName, func(name string, u *user) bool {
		return u.Account != nil && u.Account.Name == account && name != except
	})
}

// take returns the user that logs in, nil if the login is refused.
func (us *users) take(name, password string) *server.User {
	us.mu.Lock()
	defer us.mu.Unlock()
	u, ok := us.byName[name]
	if !ok || subtle.ConstantTimeCompare([]byte(u.password), []byte(password)) != 1 || u.expired(time.Now()) {
		return nil
	}
	if !u.expires.IsZero() {
		delete(us.byName, name)
	}
	return &u.User
}

// foreign reports whether a connection is of another user of this computer, who could only have a stolen credential. Where
// the system does not tell, the credential decides alone.
func (us *users) foreign(c server.ClientAuthentication) bool {
	us.mu.Lock()
	listening := us.listening
	us.mu.Unlock()
	return listening != nil && caller.Between(listening, c.RemoteAddress()).Kind == caller.Other
}

// listen sets the address at which the server listens.
func (us *users) listen(at net.Addr) {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.listening = at
}

// Check implements server.Authentication.
func (us *users) Check(c server.ClientAuthentication) bool {
	if us.foreign(c) {
		return false
	}
	opts := c.GetOpts()
	u := us.take(opts.Username, opts.Password)
	if u == nil {
		return false
	}
	c.RegisterUser(u)
	return true
}
