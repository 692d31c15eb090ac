package bus

import "context"

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

// Redact is what the server's log goes through.
var Redact = redact
