package bus

import (
	"bufio"
	"cmp"
	"context"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/base/local"
)

// Ask requests a Grant from the running hub over its socket. It may block until ctx ends.
type Ask func(ctx context.Context) (Grant, error)

// Join connects to the embedded bus of a hub from another process of the same user, with the rights of the Grant
// that ask returns. Of cfg it uses Name, NoEcho, InboxPrefix, Rest and Logger. It makes one attempt.
//
// A joined Bus has the hub's durability. The hub syncs what [Bus.PublishOnce] stores in a project's namespace, once for all
// processes. For all else this process syncs the filesystem of the store itself, which does not share syncs with other
// processes, but also works if the hub dies between its acknowledgement and the sync.
//
// When the hub restarts, the Bus requests a new Grant about every two seconds until it gets one.
// Until then calls fail with CodeNotRunning.
func Join(ctx context.Context, cfg Config, ask Ask) (*Bus, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := newBus(cfg, KindJoined)
	if err := b.join(ctx, cfg, ask); err != nil {
		return nil, b.abandon(err)
	}
	return b, nil
}

// joinedPing is the shortest time between two pings of a connection to the hub, and half of the longest. Pings only
// detect a hub that hangs: the system reports at once when its process ends. Each answer costs the hub a stack of 32
// KiB for a while, so many connections must not ping often or all at once.
const joinedPing = 2 * time.Minute

func (b *Bus) join(ctx context.Context, cfg Config, ask Ask) error {
	grant, err := ask(ctx)
	if err != nil {
		return hubError(err)
	}
	b.dir = grant.StoreDir
	if grant.Cluster != "" {
		b.kind = KindLinked
	}
	b.hub = newHubDialer(ask, grant)
	b.hub.rest, b.hub.answers = cfg.Rest, cmp.Or(cfg.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, "."))
	b.link = newLink(b.log, "the hub", maxLocalDelay)
	// The URL is not used: the dialer has the address.
	options := []nats.Option{
		nats.SetCustomDialer(b.hub),
		nats.SkipHostLookup(),
		nats.IgnoreDiscoveredServers(),
		nats.UserInfoHandler(b.hub.credential),
		nats.PingInterval(joinedPing + rand.N(joinedPing)),
	}
	if cfg.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(cfg.InboxPrefix))
	}
	err = b.connect(cfg, "nats://hub", options...)
	if err != nil {
		return hubError(err)
	}
	if b.kind == KindJoined { // a cluster syncs its own store
		b.publisher = newPublisher(b.conn, b.link)
		if err := b.openJoinedCommitter(cfg, grant); err != nil {
			return err
		}
		if err := b.openDisk(false); err != nil {
			return err
		}
	}
	if err := b.checkJetStream(ctx); err != nil {
		return jetStreamError(err, "the hub")
	}
	b.log.Info("bus joined", "address", grant.Address, "hub", grant.PID, "durability", grant.Durability)
	return nil
}

// openJoinedCommitter syncs the hub's store from this process.
func (b *Bus) openJoinedCommitter(cfg Config, grant Grant) error {
	s, err := cfg.openSyncer(b.dir)
	switch {
	case err == nil:
		b.commits = newCommitter(s)
	case grant.Durability == DurabilityCommit:
		return errorf(CodeStorage, err, "give it access to the data directory, or run the hub with durability always",
			"this process cannot sync the bus's store: %v", err)
	}
	return nil
}

// hubError is connectError for the hub, whose URL and credentials are not configured.
func hubError(err error) error {
	known := asError(err) != nil
	e := connectError(err, "the hub", nil)
	if !known {
		e.Remedy = "try again in case it is restarting, otherwise restart it: " + local.Program() + " stop, " + local.Program() + " start"
	}
	return e
}

// grantTimeout is how long one attempt waits for the hub's Grant. nats.go holds its lock
// meanwhile, so a longer wait would block callers that only read the connection's state.
const grantTimeout = time.Second

// A hubDialer connects to the hub that is running. nats.go calls it sequentially, and requests
// the credential in the same attempt.
type hubDialer struct {
	ask    Ask
	ctx    context.Context // for ask; ends with close
	cancel context.CancelFunc
	asking sync.WaitGroup // also of rests

	rest    *Rest  // nil without
	answers string // prefix of the subjects of answers
	rests   atomic.Bool

	mu     sync.Mutex
	answer chan answer // of the request that is not used yet; nil without one
	grant  Grant       // of the last attempt
}

type answer struct {
	grant Grant
	err   error
}

func newHubDialer(ask Ask, first Grant) *hubDialer {
	d := &hubDialer{ask: ask, grant: first, answer: make(chan answer, 1)}
	d.answer <- answer{grant: first}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// close cancels the requests. The connection must be closed before.
func (d *hubDialer) close() {
	d.cancel()
	d.asking.Wait()
}

// Dial implements nats.CustomDialer. It ignores the address.
func (d *hubDialer) Dial(string, string) (net.Conn, error) {
	g, err := d.next(grantTimeout)
	if err != nil {
		return nil, err
	}
	conn, err := dialHub(g)
	if err != nil || d.rest == nil {
		return conn, err
	}
	return newRestConn(conn, d.rest, d, d.answers), nil
}

func dialHub(g Grant) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", g.Address, connectTimeout)
	if err != nil {
		return nil, errorf(CodeNotRunning, err, "it may be stopping: try again, or see "+local.Program()+" status",
			"the hub (process %d) does not answer at %s", g.PID, g.Address)
	}
	return conn, nil
}

// reconnect connects with the Grant that ends a rest, up to the login.
func (d *hubDialer) reconnect(g Grant) (net.Conn, error) {
	conn, err := dialHub(g)
	if err != nil {
		return nil, err
	}
	err = conn.SetDeadline(time.Now().Add(connectTimeout))
	if err == nil {
		_, err = readGreeting(bufio.NewReader(conn)) // the server waits for the login then
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close() // err is the cause
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.grant = g
	return conn, nil
}

// next returns an unused Grant, or an error after a time. A Grant that arrives too late is used by the next attempt.
func (d *hubDialer) next(within time.Duration) (Grant, error) {
	var a answer
	select {
	case a = <-d.request():
	case <-time.After(within):
		return Grant{}, &Error{Code: CodeNotRunning, Message: "the hub has not answered yet", Remedy: "it may be starting: try again in a moment"}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = nil
	if a.err != nil {
		return Grant{}, a.err
	}
	if a.grant.StoreDir != d.grant.StoreDir {
		return Grant{}, errorf(CodeConfig, nil, "restart this process to join the new hub, or start the hub with the former data directory",
			"the running hub stores its data in %s, the former one in %s", a.grant.StoreDir, d.grant.StoreDir)
	}
	d.grant = a.grant
	return a.grant, nil
}

// request requests a Grant, unless a request is pending, and returns the channel of the answer.
func (d *hubDialer) request() <-chan answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.answer == nil {
		pending := make(chan answer, 1)
		d.answer = pending
		d.asking.Go(func() {
			g, err := d.ask(d.ctx)
			pending <- answer{g, err}
		})
	}
	return d.answer
}

// credential is the callback of nats.UserInfoHandler.
func (d *hubDialer) credential() (user, password string) {
	g := d.current()
	return g.User, string(g.Password)
}

func (d *hubDialer) current() Grant {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.grant
}
