package bus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Ask asks the running hub for a Grant, over its socket: the bus itself knows no
// other way to the hub. It may take its time, but ends with ctx.
type Ask func(ctx context.Context) (Grant, error)

// Join connects to the embedded bus of a hub, as another process of the same
// user, with the rights of the Grant that ask returns. Of cfg it uses Name,
// NoEcho, InboxPrefix and Logger. It tries once.
//
// A joined Bus has the hub's durability: this process syncs the filesystem of
// the store itself. That shares no sync with other processes, but it needs
// nothing of the hub, so that the promise holds even if the hub dies between
// its acknowledgement and the sync.
//
// When the hub restarts, the Bus asks for a new Grant, about every two seconds
// until there is one. Until then calls fail with CodeNotRunning.
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

// joinedPing is the shortest time between two pings of a connection to the hub, and half
// of the longest. The system tells at once when the hub's process ends, so they only
// find one that hangs, and there is no other to go to. Each answer costs the hub a stack
// of 32 KiB for a while: many connections must not ping often, nor all at once.
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
	b.link = newLink(b.log, "the hub", maxLocalDelay)
	// The URL only has to be one: the dialer knows the address.
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
	if b.kind == KindJoined { // what is stored elsewhere is not ours to sync
		if err := b.openJoinedCommitter(cfg, grant); err != nil {
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
		return &Error{
			Code:    CodeStorage,
			Message: "this process cannot sync the bus's store: " + err.Error(),
			Remedy:  "let it open the data directory, or run the hub with durability always",
			Err:     err,
		}
	}
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

// dialPatience is how long one attempt waits for the hub's Grant. nats.go holds
// its lock meanwhile, so a longer wait would stall everybody who only wants to
// know whether the connection is there.
const dialPatience = time.Second

// A hubDialer connects to whichever hub runs at the time. nats.go uses it for
// one attempt after the other, and asks for the credential in the same attempt.
type hubDialer struct {
	ask    Ask
	ctx    context.Context // of the asking; ends with close
	cancel context.CancelFunc
	asking sync.WaitGroup

	mu     sync.Mutex
	answer chan answer // of what was asked and not used yet; nil: nothing
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

// close ends the asking. The connection is closed before.
func (d *hubDialer) close() {
	d.cancel()
	d.asking.Wait()
}

// Dial implements nats.CustomDialer. It ignores the address.
func (d *hubDialer) Dial(string, string) (net.Conn, error) {
	g, err := d.next()
	if err != nil {
		return nil, err
	}
	conn, err := net.DialTimeout("tcp", g.Address, connectTimeout)
	if err != nil {
		return nil, &Error{
			Code:    CodeNotRunning,
			Message: fmt.Sprintf("the hub (process %d) does not answer at %s", g.PID, g.Address),
			Remedy:  "it may be stopping: try again, or see parley status",
			Err:     err,
		}
	}
	return conn, nil
}

// next returns a Grant that was not used yet. What has not come in time is for
// the next attempt.
func (d *hubDialer) next() (Grant, error) {
	a, ok := awaitAnswer(d.asked())
	if !ok {
		return Grant{}, &Error{Code: CodeNotRunning, Message: "the hub has not answered yet", Remedy: "it may be starting: try again in a moment"}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = nil
	if a.err != nil {
		return Grant{}, a.err
	}
	if a.grant.StoreDir != d.grant.StoreDir {
		return Grant{}, &Error{Code: CodeConfig,
			Message: fmt.Sprintf("the hub that runs now keeps its data in %s, the one before did in %s", a.grant.StoreDir, d.grant.StoreDir),
			Remedy:  "restart this process to join the new one, or start the hub on the former data directory"}
	}
	d.grant = a.grant
	return a.grant, nil
}

// asked returns where the answer comes, and asks if nobody did yet.
func (d *hubDialer) asked() <-chan answer {
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

func awaitAnswer(pending <-chan answer) (answer, bool) {
	timer := time.NewTimer(dialPatience)
	defer timer.Stop()
	select {
	case a := <-pending:
		return a, true
	case <-timer.C:
		return answer{}, false
	}
}

// credential is nats.go's callback.
func (d *hubDialer) credential() (user, password string) {
	g := d.current()
	return g.User, string(g.Password)
}

func (d *hubDialer) current() Grant {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.grant
}
