package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/nats-io/nats.go"
)

// Join connects to the embedded bus of the hub that runs on cfg.DataDir, as
// another process of the same user. Of cfg it uses DataDir, Name and Logger.
// If no hub runs, it fails with CodeNotRunning and leaves no trace; it does not
// wait.
//
// A joined Bus has the hub's durability: this process syncs the filesystem of
// the store itself. That shares no sync with other processes, but it needs
// nothing of the hub, so that the promise holds even if the hub dies between
// its acknowledgement and the sync.
//
// When the hub restarts, the Bus finds the new one within about two seconds,
// with its new address and credential. Until then calls fail with
// CodeNotRunning.
func Join(ctx context.Context, cfg Config) (*Bus, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.DataDir == "" {
		return nil, &Error{Code: CodeConfig, Message: "joining a bus needs the hub's data directory"}
	}
	b := newBus(cfg, KindJoined)
	if err := b.join(ctx, cfg); err != nil {
		return nil, b.abandon(err)
	}
	return b, nil
}

func (b *Bus) join(ctx context.Context, cfg Config) error {
	b.dir = filepath.Join(cfg.DataDir, busDir)
	b.hub = &hubDialer{dir: b.dir}
	b.link = newLink(b.log, "the hub", maxLocalDelay)
	// The URL only has to be one: the dialer knows the address.
	err := b.connect(cfg, "nats://hub",
		nats.SetCustomDialer(b.hub),
		nats.SkipHostLookup(),
		nats.IgnoreDiscoveredServers(),
		nats.UserInfoHandler(b.hub.credential),
	)
	if err != nil {
		return hubError(err)
	}
	s, err := cfg.openSyncer(b.dir)
	switch {
	case err == nil:
		b.commits = newCommitter(s)
	case b.hub.current().Durability == DurabilityCommit:
		return &Error{
			Code:    CodeStorage,
			Message: "this process cannot sync the bus's store: " + err.Error(),
			Remedy:  "let it open the data directory, or run the hub with durability always",
			Err:     err,
		}
	}
	if err := b.checkJetStream(ctx); err != nil {
		return jetStreamError(err, "the hub")
	}
	r := b.hub.current()
	b.log.Info("bus joined", "address", r.Address, "hub", r.PID, "durability", r.Durability)
	return nil
}

// hubError is connectError for a server whose URL and credentials no user
// configures.
func hubError(err error) error {
	known := asError(err) != nil
	e := connectError(err, "the hub", nil)
	if !known {
		e.Remedy = "try again in case it is restarting, otherwise restart it: parley stop, parley start"
	}
	return e
}

// A hubDialer connects to whichever hub runs on a data directory at the time.
// nats.go uses it for one attempt after the other, and asks for the credential
// in the same attempt.
type hubDialer struct {
	dir string

	mu  sync.Mutex
	run runFile // of the last attempt
}

// Dial implements nats.CustomDialer. It ignores the address.
func (d *hubDialer) Dial(string, string) (net.Conn, error) {
	r, err := findHub(d.dir)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.run = r
	d.mu.Unlock()
	conn, err := net.DialTimeout("tcp", r.Address, connectTimeout)
	if err != nil {
		return nil, &Error{
			Code:    CodeNotRunning,
			Message: fmt.Sprintf("the hub (process %d) does not answer at %s", r.PID, r.Address),
			Remedy:  "it may be stopping: try again, or see parley status",
			Err:     err,
		}
	}
	return conn, nil
}

// credential is nats.go's callback.
func (d *hubDialer) credential() (user, password string) {
	r := d.current()
	return r.User, string(r.Password)
}

func (d *hubDialer) current() runFile {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.run
}

// findHub reads the run file of the hub that holds the lock. Without the lock,
// a run file is what a killed hub left: its port may be another's by now.
func findHub(dir string) (runFile, error) {
	running, err := locked(dir)
	if err != nil {
		return runFile{}, &Error{
			Code:    CodeStorage,
			Message: fmt.Sprintf("cannot look whether a hub runs on %s", filepath.Dir(dir)),
			Remedy:  "check that the data directory is yours",
			Err:     err,
		}
	}
	if !running {
		return runFile{}, &Error{
			Code:    CodeNotRunning,
			Message: fmt.Sprintf("no hub is running on %s", filepath.Dir(dir)),
			Remedy:  "start it with: parley start",
		}
	}
	r, err := readRunFile(dir)
	if errors.Is(err, os.ErrNotExist) {
		return r, &Error{
			Code:    CodeNotRunning,
			Message: fmt.Sprintf("the hub on %s is starting or stopping", filepath.Dir(dir)),
			Remedy:  "try again in a moment",
		}
	}
	if err != nil {
		if e := asError(err); e != nil {
			return r, e
		}
		return r, &Error{Code: CodeStorage, Message: "cannot read the hub's run file", Remedy: "restart the hub", Err: err}
	}
	return r, nil
}
