package bus

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Syncer lets tests replace the sync of the disk.
type Syncer = syncer

// WithSyncer makes a bus use the syncer that open returns.
func WithSyncer(c Config, open func(dir string) (Syncer, error)) Config {
	c.openSyncer = open
	return c
}

// Committer is the group commit without a bus.
type Committer struct{ c *committer }

// NewCommitter starts a committer.
func NewCommitter(s Syncer) Committer { return Committer{newCommitter(s)} }

// Commit blocks until everything written before is durable, as Bus.Commit does.
func (c Committer) Commit(ctx context.Context) error { return c.c.commit(ctx) }

// Close stops the committer.
func (c Committer) Close() error { return c.c.close() }

// ShownURL checks the URL and credentials of a configuration, and returns the URL without secrets.
func ShownURL(c Config) (string, error) {
	r, err := newRemote(c)
	if err != nil {
		return "", err
	}
	return r.shown, nil
}

// The limits that the tests exceed.
const (
	MaxSubscriptions = maxSubscriptions
	MaxUnused        = maxUnused
)

// Users is the set of users that may connect.
type Users struct{ us *users }

// NewUsers returns an empty set.
func NewUsers() Users { return Users{newUsers()} }

// Add adds a user.
func (u Users) Add(name string, expires time.Time) (string, bool) {
	return u.us.add(server.User{Username: name}, expires)
}

// Take reports whether a login succeeds.
func (u Users) Take(name, password string) bool { return u.us.take(name, password) != nil }

// Password returns the password of a user, or the empty string.
func (u Users) Password(name string) string {
	if user := u.us.byName[name]; user != nil {
		return user.password
	}
	return ""
}

// Accounts returns the number of open namespaces.
func (b *Bus) Accounts() int {
	b.embedded.accounts.mu.Lock()
	defer b.embedded.accounts.mu.Unlock()
	return len(b.embedded.accounts.byName)
}

// ReadGreeting reads a NATS server's first line and returns the largest message that the server
// accepts.
func ReadGreeting(data []byte) (maxPayload int64, err error) {
	g, err := readGreeting(bufio.NewReaderSize(bytes.NewReader(data), maxGreeting))
	return g.MaxPayload, err
}

// Reopen opens the store again, as after a failed write.
func (b *Bus) Reopen(ctx context.Context) bool {
	reason := "a test"
	b.embedded.log.write.Store(&reason)
	return b.reopen(ctx)
}

// Distinct returns the subjects of a permission that the server gets.
var Distinct = distinct

// ScanFrames returns the control lines in the pieces of a connection, and whether the last operation is complete.
func ScanFrames(pieces [][]byte) (lines []string, whole bool) {
	var f frames
	for _, p := range pieces {
		f.scan(p, func(words [][]byte, _, _ int) { lines = append(lines, string(bytes.Join(words, []byte(" ")))) })
	}
	return lines, f.whole()
}

// NewRestConn returns a client's connection that can rest.
func NewRestConn(conn net.Conn, rest *Rest) net.Conn {
	return newRestConn(conn, rest, newHubDialer(nil, Grant{}), "_INBOX_me")
}
