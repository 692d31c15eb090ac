package bus

import (
	"bufio"
	"bytes"
	"context"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Syncer lets tests take the disk's place.
type Syncer = syncer

// WithSyncer makes a bus sync through what open returns.
func WithSyncer(c Config, open func(dir string) (Syncer, error)) Config {
	c.openSyncer = open
	return c
}

// Committer is the group commit without a bus.
type Committer struct{ c *committer }

// NewCommitter starts a committer.
func NewCommitter(s Syncer) Committer { return Committer{newCommitter(s)} }

// Commit is what Bus.Commit calls.
func (c Committer) Commit(ctx context.Context) error { return c.c.commit(ctx) }

// Close ends the committer.
func (c Committer) Close() error { return c.c.close() }

// ShownURL checks a configuration's URL and credentials, and returns the URL
// as it is shown.
func ShownURL(c Config) (string, error) {
	r, err := newRemote(c)
	if err != nil {
		return "", err
	}
	return r.shown, nil
}

// The limits that the tests reach.
const (
	MaxSubscriptions = maxSubscriptions
	MaxUnused        = maxUnused
)

// Users is who may connect, without a server.
type Users struct{ us *users }

// NewUsers returns one without anybody.
func NewUsers() Users { return Users{newUsers()} }

// Add adds a user.
func (u Users) Add(name string, expires time.Time) (string, bool) {
	return u.us.add(server.User{Username: name}, expires)
}

// Take logs in.
func (u Users) Take(name, password string) bool { return u.us.take(name, password) != nil }

// Password of a user.
func (u Users) Password(name string) string {
	if user := u.us.byName[name]; user != nil {
		return user.password
	}
	return ""
}

// Accounts is how many namespaces are open.
func (b *Bus) Accounts() int {
	b.embedded.accounts.mu.Lock()
	defer b.embedded.accounts.mu.Unlock()
	return len(b.embedded.accounts.byName)
}

// ReadGreeting reads a NATS server's first line and returns the largest message that
// it takes.
func ReadGreeting(data []byte) (maxPayload int64, err error) {
	g, err := readGreeting(bufio.NewReaderSize(bytes.NewReader(data), maxGreeting))
	return g.MaxPayload, err
}
