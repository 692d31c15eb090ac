package bus

import (
	"crypto/rand"
	"crypto/subtle"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	hubUser = "hub" // the hub's own; a Grant's has the name of its account and a dot

	// grantTTL is how long a Grant may stay unused.
	grantTTL = 30 * time.Second
	// maxUnused bounds the Grants that wait to be used.
	maxUnused = 1024
)

// users is who may connect to an embedded server: the hub itself as often as it
// likes, and the holder of a Grant once. It changes while the server runs.
type users struct {
	mu     sync.Mutex
	byName map[string]*user
}

type user struct {
	server.User
	password string
	expires  time.Time // zero: stays, for any number of connections
}

func newUsers() *users { return &users{byName: make(map[string]*user)} }

// add makes a user with a new random password, and returns it. u says what the
// user may do: a nil Account is the hub's own, nil Permissions are all in its
// account. With a time at which it expires the user serves for one connection;
// ok is false where too many such wait already.
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

// sweep drops what has expired. us.mu is held.
func (us *users) sweep(now time.Time) {
	for name, u := range us.byName {
		if u.expired(now) {
			delete(us.byName, name)
		}
	}
}

func (u *user) expired(now time.Time) bool { return !u.expires.IsZero() && now.After(u.expires) }

// expects says whether a user's credential is there and was not used.
func (us *users) expects(name string) bool {
	us.mu.Lock()
	defer us.mu.Unlock()
	u, ok := us.byName[name]
	return ok && !u.expired(time.Now())
}

// remove takes a user's right to connect away.
func (us *users) remove(name string) {
	us.mu.Lock()
	defer us.mu.Unlock()
	delete(us.byName, name)
}

// withdraw takes the right to connect from all users of an account but one.
func (us *users) withdraw(account, except string) {
	us.mu.Lock()
	defer us.mu.Unlock()
	for name, u := range us.byName {
		if u.Account != nil && u.Account.Name == account && name != except {
			delete(us.byName, name)
		}
	}
}

// take returns the user that a connection logs in as, nil if it may not.
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

// Check implements server.Authentication.
func (us *users) Check(c server.ClientAuthentication) bool {
	opts := c.GetOpts()
	u := us.take(opts.Username, opts.Password)
	if u == nil {
		return false
	}
	c.RegisterUser(u)
	return true
}
