package bus

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	busDir = "bus" // below the data directory

	maxMemoryStore = 256 << 20 // for streams that somebody keeps in memory
	fastSync       = 10 * time.Second
	startTimeout   = 10 * time.Second // to listen; recovery of the store is not counted

	maxAllConnections = 8192
	maxSubscriptions  = 10_000 // of one connection
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

// startServer starts a server on a store. It returns once the store is
// recovered and the server listens.
func startServer(cfg Config, dir string, mode Durability) (*embedded, error) {
	e := &embedded{users: newUsers(), maxStore: cfg.MaxStore}
	var err error
	if e.leaf, err = newLeaf(cfg.Leaf, cfg.Logger.With("component", "leaf")); err != nil {
		return nil, err
	}
	opts := &server.Options{
		ServerName:             "parley",
		Host:                   "127.0.0.1",
		Port:                   server.RANDOM_PORT,
		NoSigs:                 true, // the signals are the process's
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
		// One durable consumer for every reader of a stream: no limit.
		JetStreamLimits:            server.JSLimitOpts{DefaultMaxConsumers: -1},
		CustomClientAuthentication: e.users,
	}
	if mode == DurabilityFast {
		opts.SyncInterval = fastSync
	}
	log := &serverLogger{log: cfg.Logger.With("component", "nats")}
	if e.leaf != nil {
		e.leaf.configure(opts)
		log.hear, log.secrets = e.leaf.hear, e.leaf.secrets
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, &Error{Code: CodeStorage, Message: "cannot set up the embedded NATS server", Err: err}
	}
	srv.SetLogger(log, false, false)
	e.server, e.accounts, e.log = srv, newAccounts(srv), log

	if e.leaf != nil {
		if err := e.leaf.prepare(srv, e.users); err != nil {
			return nil, linkError(err)
		}
	}
	srv.Start()
	if why := log.fatal.Load(); why != nil || !srv.ReadyForConnections(startTimeout) {
		e.stop()
		cause := errors.New("it does not listen")
		if why != nil {
			cause = errors.New(*why)
		}
		return nil, &Error{
			Code:    CodeStorage,
			Message: "the embedded NATS server did not start: " + cause.Error(),
			Remedy:  "check that the data directory can be written and the disk has room",
			Err:     cause,
		}
	}
	if e.leaf != nil {
		if err := e.leaf.start(); err != nil {
			e.stop()
			return nil, linkError(err)
		}
	}
	return e, nil
}

func linkError(err error) error {
	return &Error{Code: CodeStorage, Message: "the embedded NATS server cannot be prepared for a link to a cluster", Err: err}
}

// storageError is why a stream takes nothing more, "" if all do.
func (e *embedded) storageError() string {
	why := e.log.write.Load()
	if why == nil {
		return ""
	}
	return (&Error{Code: CodeStorage, Message: *why, Remedy: "check the disk's health and free space, then restart the hub"}).Error()
}

// address is where the server listens.
func (e *embedded) address() string { return e.server.Addr().(*net.TCPAddr).String() }

// stop returns when the store is closed.
func (e *embedded) stop() {
	if e.leaf != nil {
		e.leaf.close()
	}
	e.server.Shutdown()
	e.server.WaitForShutdown()
}

// makeDir makes the bus directory and returns it. Nobody else can look into
// it, whatever the mode of the data directory.
func makeDir(dataDir string) (string, error) {
	dir := filepath.Join(dataDir, busDir)
	fail := func(err error) (string, error) {
		if e := asError(err); e != nil {
			return "", e
		}
		return "", &Error{
			Code:    CodeStorage,
			Message: fmt.Sprintf("cannot use the data directory %s", dataDir),
			Remedy:  "check that it is a directory that you own and can write to",
			Err:     err,
		}
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
	if err := checkOwner(dir, info); err != nil {
		return fail(err)
	}
	if info.Mode().Perm() != 0o700 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return fail(err)
		}
	}
	return dir, nil
}
