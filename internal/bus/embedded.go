package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/parleyhub/parley/internal/base/local"
)

const (
	busDir = "bus" // below the data directory

	maxMemoryStore = 256 << 20        // for streams in memory, in bytes
	fastSync       = 10 * time.Second // the interval of syncs in the mode fast
	startTimeout   = 10 * time.Second // to listen, after the recovery of the store

	maxAllConnections = 8192
	maxSubscriptions  = 10_000 // per connection
	// maxClosedClients are the connections that the server remembers after their end, at about a kilobyte each.
	maxClosedClients = 64
)

// embedded is a NATS server in this process.
type embedded struct {
	maxStore int64
	server   *server.Server
	users    *users
	accounts *accounts
	log      *serverLogger
	leaf     *leaf // nil without a link
}

// startServer starts a server with its store in dir. It returns when the store is recovered and the server listens. check is called
// before the server opens the store of another account than its global one.
func startServer(cfg Config, dir string, mode Durability, check func(account string) error) (*embedded, error) {
	e := &embedded{users: newUsers(), maxStore: cfg.MaxStore}
	var err error
	if e.leaf, err = newLeaf(cfg.Leaf, cfg.Logger.With("component", "leaf")); err != nil {
		return nil, err
	}
	opts := &server.Options{
		ServerName:             "parley",
		Host:                   "127.0.0.1",
		Port:                   server.RANDOM_PORT,
		NoSigs:                 true, // the process handles the signals
		NoLog:                  true, // until SetLogger
		MaxPayload:             MaxPayload,
		JetStream:              true,
		StoreDir:               dir,
		JetStreamMaxStore:      cfg.MaxStore,
		JetStreamMaxMemory:     maxMemoryStore,
		SyncAlways:             mode == DurabilityAlways,
		DisableJetStreamBanner: true,
		MaxConn:                maxAllConnections,
		MaxSubs:                maxSubscriptions,
		MaxClosedClients:       maxClosedClients,
		// Every reader of a stream has a durable consumer: no limit.
		JetStreamLimits:            server.JSLimitOpts{DefaultMaxConsumers: -1},
		CustomClientAuthentication: e.users,
	}
	if mode == DurabilityFast {
		opts.SyncInterval = fastSync
	}
	log := &serverLogger{log: cfg.Logger.With("component", "nats")}
	if e.leaf != nil {
		e.leaf.configure(opts)
		log.isLink, log.secrets = e.leaf.record, e.leaf.secrets
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, &Error{Code: CodeStorage, Message: "cannot set up the embedded NATS server", Err: err}
	}
	srv.SetLogger(log, false, false)
	e.server, e.accounts, e.log = srv, newAccounts(srv, cfg.Logger, check), log

	if e.leaf != nil {
		if err := e.leaf.prepare(srv, e.users); err != nil {
			return nil, linkError(err)
		}
	}
	srv.Start()
	if text := log.unread.Load(); text != nil {
		e.stop()
		return nil, outOfFiles(errors.New(*text))
	}
	if reason := log.fatal.Load(); reason != nil || !srv.ReadyForConnections(startTimeout) {
		e.stop()
		cause := errors.New("it does not listen")
		if reason != nil {
			cause = errors.New(*reason)
		}
		return nil, errorf(CodeStorage, cause, "check that the data directory is writable and the disk is not full",
			"the embedded NATS server did not start: %v", cause)
	}
	e.users.listen(srv.Addr())
	if e.leaf != nil {
		if err := e.leaf.start(); err != nil {
			e.stop()
			return nil, linkError(err)
		}
	}
	return e, nil
}

// outOfFiles is the error of a start that could not read all of the store for want of descriptors. Without what the server
// has left out, it would begin streams and consumers anew.
func outOfFiles(cause error) *Error {
	return errorf(CodeStorage, cause, "raise the limit of open files (ulimit -n) to 1024 or more, and start the hub again; nothing of the store was changed",
		"the store cannot be read, because too few files can be opened")
}

func linkError(err error) error {
	return &Error{Code: CodeStorage, Message: "the embedded NATS server cannot be prepared for a link to a cluster", Err: err}
}

// storageError returns the error of a stream that accepts no more messages, "" if all do.
func (e *embedded) storageError() string {
	if text := e.log.write.Load(); text != nil {
		return errorf(CodeStorage, nil, "check the disk's health and free space; if it stays, restart the hub", "%s", *text).Error()
	}
	return ""
}

// address returns the address at which the server listens.
func (e *embedded) address() string { return e.server.Addr().(*net.TCPAddr).String() }

// stop stops the server; it returns when the store is closed.
func (e *embedded) stop() {
	if e.leaf != nil {
		e.leaf.close()
	}
	e.server.Shutdown()
	e.server.WaitForShutdown()
}

// makeDir creates the bus directory and returns it. Its mode is 0700, whatever the mode of the data directory.
func makeDir(dataDir string) (string, error) {
	dir := filepath.Join(dataDir, busDir)
	fail := func(err error) (string, error) {
		if e := asError(err); e != nil {
			return "", e
		}
		return "", errorf(CodeStorage, err, "check that it is a directory that you own and can write to",
			"cannot use the data directory %s", dataDir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fail(err)
	}
	if !info.IsDir() {
		return fail(fmt.Errorf("%s is not a directory", dir))
	}
	if !local.OwnedByUser(info) {
		return fail(insecure(dir, "belongs to another user"))
	}
	if info.Mode().Perm() != 0o700 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return fail(err)
		}
	}
	return dir, nil
}

const (
	lockName = "lock"
	// A process that checks for a hub holds the lock for an instant, and a hub that stops a
	// little longer: retry that long.
	lockTimeout = 250 * time.Millisecond
	lockRetry   = 10 * time.Millisecond
)

// lockDir locks the bus directory for this process. Two servers with one store would overwrite
// each other's data without an error.
func lockDir(ctx context.Context, dir string) (*flock.Flock, error) {
	lock := flock.New(filepath.Join(dir, lockName))
	waitCtx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	ok, err := lock.TryLockContext(waitCtx, lockRetry)
	if ok {
		return lock, nil
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx.Err(), "waiting for the lock of the data directory")
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, errorf(CodeStorage, err, "put the data directory on a local filesystem that you can write to",
			"cannot lock %s", lock.Path())
	}
	return nil, errorf(CodeLocked, nil, "stop it, or set another data directory for this one",
		"another hub uses the data directory %s", filepath.Dir(dir))
}
