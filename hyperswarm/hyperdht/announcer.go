package hyperdht

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/internal/base/wait"
)

const (
	relayPing       = 3 * time.Second
	pingsPerRound   = 100
	announceTimeout = 20 * time.Second
	withdrawTime    = 2 * time.Second
	retryAnnounce   = 2 * time.Second
	longestRetry    = time.Minute
)

// announcer keeps a listener's key announced at the three nodes closest to it, and keeps the NAT mapping
// from them to the listener open.
type announcer struct {
	l     *Listener
	first chan struct{} // closed after the first round

	mu      sync.Mutex
	relays  []relayInfo
	failure error
}

func (a *announcer) init(l *Listener) { a.l, a.first = l, make(chan struct{}) }

func (a *announcer) err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failure
}

// current returns the relays that forward to the listener.
func (a *announcer) current() []relayInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.relays)
}

// addresses returns the relays to announce, after this node if it is public.
func (a *announcer) addresses() []netip.AddrPort {
	var all []netip.AddrPort
	if public := a.l.n.rpc.Public(); public.IsValid() {
		all = append(all, public)
	}
	for _, r := range a.current() {
		if len(all) < maxRelays {
			all = append(all, r.relay)
		}
	}
	return all
}

// run announces until the listener closes, then withdraws the announcement.
func (a *announcer) run() {
	retry := wait.Backoff{First: retryAnnounce, Most: longestRetry}
	for round := 0; a.l.ctx.Err() == nil; round++ {
		err := a.announce()
		a.mu.Lock()
		a.failure = err
		a.mu.Unlock()
		if round == 0 {
			close(a.first)
		}
		if err == nil {
			retry.Reset()
			a.keepOpen()
			continue
		}
		a.l.n.log.Debug("the listener cannot be announced", "error", err)
		retry.Pause(a.l.ctx)
	}
	a.withdraw()
}

// announce runs one round.
func (a *announcer) announce() error {
	ctx, cancel := context.WithTimeout(a.l.ctx, announceTimeout)
	defer cancel()
	nodes, err := a.l.n.walk(ctx, dhtrpc.Walk{Target: a.l.target, Command: cmdFindPeer})
	if err != nil {
		return err
	}
	done := a.l.n.announceAt(ctx, cmdAnnounce, a.l.target, a.l.pair, nil, nodes[:min(len(nodes), maxRelays)])
	if len(done) == 0 && a.l.n.rpc.Persistent() && a.l.n.rpc.Known() == 0 {
		return nil // the only node of its network: peers ask this node
	}
	if err := committed(len(done), nil); err != nil {
		return err
	}
	var relays []relayInfo
	for _, r := range done {
		relays = append(relays, relayInfo{relay: r.From, peer: r.To})
	}
	a.mu.Lock()
	old := a.relays
	a.relays = relays
	a.mu.Unlock()
	a.leave(ctx, slices.DeleteFunc(slices.Clone(old), func(o relayInfo) bool {
		return slices.ContainsFunc(relays, func(r relayInfo) bool { return r.relay == o.relay })
	}))
	return nil
}

// keepOpen pings the relays until too few of them answer or a new round is due.
func (a *announcer) keepOpen() {
	for range pingsPerRound {
		if !wait.Pause(a.l.ctx, relayPing) {
			return
		}
		relays := a.current()
		if len(relays) == 0 {
			return // no other node yet: walk again
		}
		if a.ping(relays) < min(maxRelays, len(relays)) && a.l.ctx.Err() == nil {
			return
		}
	}
}

// ping pings the relays and returns how many answer.
func (a *announcer) ping(relays []relayInfo) int {
	var wg sync.WaitGroup
	var answers atomic.Int32
	for _, r := range relays {
		wg.Go(func() {
			if _, err := a.l.n.rpc.Ping(a.l.ctx, r.relay, nil, 3); err == nil {
				answers.Add(1)
			}
		})
	}
	wg.Wait()
	return int(answers.Load())
}

// withdraw removes the announcement. The listener's context has ended by then.
func (a *announcer) withdraw() {
	ctx, cancel := context.WithTimeout(a.l.n.ctx, withdrawTime)
	defer cancel()
	a.mu.Lock()
	relays := a.relays
	a.relays = nil
	a.mu.Unlock()
	a.leave(ctx, relays)
}

// leave unannounces at each of the nodes, with a fresh token.
func (a *announcer) leave(ctx context.Context, relays []relayInfo) {
	var wg sync.WaitGroup
	for _, r := range relays {
		wg.Go(func() {
			reply, err := a.l.n.rpc.Call(ctx, r.relay, dhtrpc.Call{Command: cmdFindPeer, Target: &a.l.target, Tries: 2})
			if err == nil {
				a.l.n.announceAt(ctx, cmdUnannounce, a.l.target, a.l.pair, nil, []*dhtrpc.Reply{reply})
			}
		})
	}
	wg.Wait()
}
