// Package doorbell wakes open sessions that wait for their user's next words while something is new for them.
//
// How a session is woken is its vendor's: see [File], [Socket] and [AppServer]. A bell carries only a sentence of Parley's own: what
// is new is said by the session's hook, and the messages are read with a tool. A session that cannot be woken sees what is new in its
// next turn.
package doorbell

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/sessions/news"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

// Outcome is what became of a bell.
type Outcome int

// The outcomes.
const (
	Unable  Outcome = iota // the session cannot be reached in this way
	Busy                   // it is in a turn, or its user has to answer it
	Rung                   // it was handed over to the session's program
	Held                   // the program asks its user first
	Refused                // the program or its user does not let it in
)

// String returns the outcome in a word.
func (o Outcome) String() string {
	return [...]string{"unable", "busy", "rung", "held", "refused"}[o]
}

// Bell is one way to wake sessions of a vendor.
type Bell interface {
	// Ring wakes a session with a text. later is called, at most once and from any goroutine, if the outcome changes afterwards. The
	// error says why the session cannot be reached.
	Ring(ctx context.Context, s presence.Session, text string, later func(Outcome)) (Outcome, error)
}

// News is what is new for agents: a *[news.News].
type News interface {
	Latest(ctx context.Context, guid string) (news.Notice, error)
	Record(list []mail.Mail, sign mail.Sign, at time.Time)
}

// Options are those of [New]. Records and News are required.
type Options struct {
	Records *presence.Records
	News    News
	// Unwoken is told of mail that wakes nobody, and why in a sentence about the session; nil for nothing. It does not block.
	Unwoken func(list []mail.Mail, why string)
	// HeldChanged is told when [Doorbell.Held] has changed for an agent, which may say nothing else than before; nil for
	// nothing. It does not block.
	HeldChanged func(guid string)
	// Bells are the ways to wake a vendor's sessions, the best first.
	Bells  map[string][]Bell
	Now    func() time.Time // time.Now by default
	Logger *slog.Logger
}

// The limits of bells.
const (
	ringTime = 15 * time.Second // for all the ways of one bell
	newsTime = 5 * time.Second
	maxRings = 16 // sessions that are woken at once

	lookPause    = 100 * time.Millisecond // between two looks at the sessions
	lookInterval = 15 * time.Second       // after which all are looked at again
	busyPause    = 2 * time.Second
	storeTime    = 2 * time.Second // in which mail that was sent is stored
	storePause   = 200 * time.Millisecond
	firstPause   = 30 * time.Second // after a bell that was not answered; it doubles
	maxPause     = 30 * time.Minute
	perMinute    = 4

	// A session that has said nothing in its turn for this long may have been interrupted, which Claude Code does not report.
	silentTurn = 30 * time.Second
)

// Doorbell wakes the sessions of a hub. It is safe for concurrent use.
type Doorbell struct {
	o    Options
	log  *slog.Logger
	kick chan struct{} // of capacity 1
	free chan struct{} // has a value for each ring that goes on

	run string // tells the bells of this hub from those of its last run

	mu     sync.Mutex
	states map[string]*state // by GUID
	number int               // of the last bell
}

// state is what the doorbell knows of one session.
type state struct {
	look    bool      // something may be new
	barred  bool      // it was not to be woken when it was looked at
	arrived time.Time // when mail was sent last; it may not be stored yet
	hooked  time.Time // the session's last report that was looked at
	ringing bool
	next    time.Time // no bell before
	pause   time.Duration
	rung    []string    // messages of the last bell
	final   []string    // messages for which the session's program let no bell in
	times   []time.Time // of the bells in the last minute
	since   time.Time   // of the last bell that no turn has answered
	bell    string      // its id, until a turn has begun with its text
	waiting []mail.Mail // of that bell
	held    []mail.Mail // whose bell waits for the session's user
	heldAt  time.Time   // since when
	over    string      // the last bell whose outcome has changed afterwards
}

// HeldMail is mail whose bell a session's program does not let in before its user agrees in the session's own window.
type HeldMail struct {
	Session presence.Session
	Since   time.Time
	Mail    []mail.Mail // without texts
}

// Held returns the mail that waits for the users of sessions. What was read meanwhile may be among it for up to a minute.
func (d *Doorbell) Held() (all []HeldMail) {
	sessions := d.o.Records.All()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range sessions {
		if st := d.states[s.GUID]; st != nil && len(st.held) > 0 {
			all = append(all, HeldMail{s, st.heldAt, st.held})
		}
	}
	return all
}

// setHeld notes which mail waits for a session's user.
func (d *Doorbell) setHeld(guid string, list []mail.Mail) {
	d.changeHeld(guid, func(*state) []mail.Mail { return list })
}

// changeHeld sets the mail that waits for a session's user to what change returns, which is called with mu held.
func (d *Doorbell) changeHeld(guid string, change func(st *state) []mail.Mail) {
	d.mu.Lock()
	st := d.state(guid)
	list := change(st)
	changed := len(st.held) != len(list)
	if len(st.held) == 0 {
		st.heldAt = d.o.Now()
	}
	st.held = list
	d.mu.Unlock()
	if changed && d.o.HeldChanged != nil {
		d.o.HeldChanged(guid)
	}
}

// dropRead removes from the mail that waits for a session's user what is not new any more.
func (d *Doorbell) dropRead(guid string, n news.Notice) {
	still := ids(mailOf(n))
	d.changeHeld(guid, func(st *state) []mail.Mail {
		return slices.DeleteFunc(slices.Clone(st.held), func(m mail.Mail) bool { return !slices.Contains(still, m.ID) })
	})
}

// New returns a Doorbell, which wakes sessions while [Doorbell.Run] runs.
func New(o Options) *Doorbell {
	if o.Now == nil {
		o.Now = time.Now
	}
	log := cmp.Or(o.Logger, slog.New(slog.DiscardHandler)).With("component", "doorbell")
	return &Doorbell{o: o, log: log, kick: make(chan struct{}, 1), free: make(chan struct{}, maxRings), states: make(map[string]*state),
		run: uuid.NewString()[:4]}
}

// Arrived says that something may be new for an agent. It does not block.
func (d *Doorbell) Arrived(guid string) {
	d.mu.Lock()
	st := d.state(guid)
	st.look, st.arrived = true, d.o.Now()
	st.next, st.pause = time.Time{}, 0 // another message deserves another bell, within the bound of bells in a minute
	d.mu.Unlock()
	wait.Nudge(d.kick)
}

// state returns the state of an agent's session. mu is held.
func (d *Doorbell) state(guid string) *state {
	st := d.states[guid]
	if st == nil {
		st = &state{}
		d.states[guid] = st
	}
	return st
}

// Run wakes sessions until ctx ends. It blocks until no bell rings.
func (d *Doorbell) Run(ctx context.Context) {
	var rings sync.WaitGroup
	defer rings.Wait()
	interval := time.NewTicker(lookInterval)
	defer interval.Stop()
	all := true
	for {
		changed := d.o.Records.Changed()
		next := d.look(ctx, &rings, all)
		retry := time.NewTimer(next)
		all = false
		select {
		case <-changed:
		case <-d.kick:
		case <-retry.C:
		case <-interval.C:
			all = true
		case <-ctx.Done():
		}
		retry.Stop()
		if !wait.Pause(ctx, lookPause) {
			return
		}
	}
}

// look starts the bells that are due, and returns after which time another one may be.
func (d *Doorbell) look(ctx context.Context, rings *sync.WaitGroup, all bool) (next time.Duration) {
	sessions := d.o.Records.All()
	now := d.o.Now()
	next = lookInterval
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(sessions)
	for _, s := range sessions {
		if s.GUID == "" {
			continue
		}
		st := d.state(s.GUID)
		d.answered(st, s)
		barred := !Reachable(s)
		st.look = st.look || all || s.Hooked.After(st.hooked) || st.barred && !barred
		st.barred = barred
		if !st.look || st.ringing || s.Terminal == presence.TerminalClosed || !idle(s, now) {
			continue
		}
		if now.Before(st.next) {
			next = min(next, st.next.Sub(now))
			continue
		}
		select {
		case d.free <- struct{}{}:
		default:
			return busyPause
		}
		st.look, st.hooked, st.ringing = false, s.Hooked, true
		rings.Go(func() {
			defer func() { <-d.free }()
			d.ring(ctx, s)
		})
	}
	return next
}

// forget removes the states of sessions that are gone. mu is held.
func (d *Doorbell) forget(open []presence.Session) {
	if len(d.states) <= 2*len(open)+maxRings {
		return
	}
	maps.DeleteFunc(d.states, func(guid string, st *state) bool {
		return !st.ringing && !slices.ContainsFunc(open, func(s presence.Session) bool { return s.GUID == guid })
	})
}

// answered records that a session has begun a turn. It was woken if its hook has reported the bell's text: the turn may be its user's.
// mu is held.
func (d *Doorbell) answered(st *state, s presence.Session) {
	if st.bell != "" && s.Bell == st.bell {
		d.o.News.Record(st.waiting, mail.Woken, s.Belled)
		st.bell, st.waiting = "", nil
	}
	if !st.since.IsZero() && s.Turned.After(st.since) {
		st.since, st.next, st.pause = time.Time{}, time.Time{}, 0
	}
}

// Reachable reports whether a session may be woken at all: somebody sees it, and does not want to be left alone.
func Reachable(s presence.Session) bool { return unreachable(s) == "" }

// unreachable says why a session may not be woken at all; "" if it may.
func unreachable(s presence.Session) string {
	switch {
	case s.Quiet:
		return "is not to be disturbed"
	case s.Terminal == presence.NoTerminal:
		return "has no terminal"
	case s.Terminal == presence.TerminalClosed:
		return "has no open terminal"
	}
	return ""
}

// unwoken says that a session is not woken for what is new.
func (d *Doorbell) unwoken(s presence.Session, n news.Notice, why string) {
	if d.o.Unwoken != nil {
		d.o.Unwoken(mailOf(n), "the session "+why+": it is told at its next turn")
	}
}

// idle reports whether a session waits for its user's next words, as far as its hooks have said.
func idle(s presence.Session, now time.Time) bool {
	return s.State == presence.Idle || s.State == "" || s.State == presence.InTurn && now.Sub(s.Hooked) > silentTurn
}

// ring wakes one session if something is new for it.
func (d *Doorbell) ring(ctx context.Context, s presence.Session) {
	again := d.tryRing(ctx, s)
	d.mu.Lock()
	st := d.state(s.GUID)
	st.ringing = false
	st.look = st.look || again
	again = st.look
	d.mu.Unlock()
	if again {
		wait.Nudge(d.kick)
	}
}

// tryRing reports whether the session is to be looked at again, not before its next.
func (d *Doorbell) tryRing(ctx context.Context, s presence.Session) (again bool) {
	n, err := d.latest(ctx, s.GUID)
	if err != nil {
		d.log.Debug("it is not known what is new for a session", "agent", s.Name, "error", err)
		d.after(s.GUID, busyPause)
		return ctx.Err() == nil
	}
	d.dropRead(s.GUID, n)
	if why := unreachable(s); why != "" && n.ID != "" {
		d.unwoken(s, n, why)
		return false
	}
	bell, ok := d.due(s.GUID, n)
	if !ok {
		return false
	}
	began := d.o.Now() // a turn may begin before the bell's way returns
	outcome, err := d.ringOne(ctx, s, n, bell)
	if ctx.Err() != nil {
		return false
	}
	if outcome == Unable {
		d.unwoken(s, n, "cannot be woken")
	}
	d.log.Info("bell", "agent", s.Name, "vendor", s.Vendor, "outcome", outcome.String(), "error", err)
	return d.settle(s.GUID, n, bell, outcome, began)
}

func (d *Doorbell) latest(ctx context.Context, guid string) (news.Notice, error) {
	ctx, cancel := context.WithTimeout(ctx, newsTime)
	defer cancel()
	return d.o.News.Latest(ctx, guid)
}

// due returns the id of a bell for a notice, unless the session has had enough bells.
func (d *Doorbell) due(guid string, n news.Notice) (bell string, ok bool) {
	now := d.o.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.state(guid)
	if n.ID == "" {
		st.rung, st.final, st.pause = nil, nil, 0
		if now.Sub(st.arrived) < storeTime {
			st.look, st.next = true, now.Add(storePause)
		}
		return "", false
	}
	if !slices.ContainsFunc(n.Items, func(x news.Item) bool { return !slices.Contains(st.final, x.ID) }) {
		return "", false
	}
	st.times = slices.DeleteFunc(st.times, func(at time.Time) bool { return now.Sub(at) >= time.Minute })
	if len(st.times) >= perMinute {
		st.look, st.next = true, st.times[0].Add(time.Minute)
		return "", false
	}
	d.number++
	return fmt.Sprintf("%s-%d", d.run, d.number), true
}

// ringOne tries the vendor's ways.
func (d *Doorbell) ringOne(ctx context.Context, s presence.Session, n news.Notice, id string) (outcome Outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, ringTime)
	defer cancel()
	var reasons []string
	for _, bell := range d.o.Bells[s.Vendor] {
		outcome, err = bell.Ring(ctx, s, news.BellText(id), func(o Outcome) { d.later(s.GUID, n, id, o) })
		if outcome != Unable {
			return outcome, err
		}
		if err != nil {
			reasons = append(reasons, err.Error())
		}
	}
	if len(reasons) == 0 {
		return Unable, fmt.Errorf("sessions of %s cannot be woken", s.Vendor)
	}
	return Unable, fmt.Errorf("the session cannot be woken: %s", strings.Join(reasons, "; "))
}

// settle notes what became of a bell that began to ring at a time, and reports whether another one may be due.
func (d *Doorbell) settle(guid string, n news.Notice, bell string, outcome Outcome, began time.Time) (again bool) {
	now := d.o.Now()
	list := mailOf(n)
	switch outcome {
	case Held:
		d.o.News.Record(list, mail.Held, d.o.Now())
		d.changeHeld(guid, func(st *state) []mail.Mail {
			if st.over == bell { // the user was faster
				return nil
			}
			return list
		})
	case Refused:
		d.o.News.Record(list, mail.Refused, d.o.Now())
		d.setHeld(guid, nil)
	case Rung:
		d.setHeld(guid, nil)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.state(guid)
	switch outcome {
	case Busy:
		st.next = now.Add(busyPause)
		return true
	case Held, Refused:
		if st.over != bell {
			st.final = ids(list)
		}
	case Rung:
		st.since, st.bell, st.waiting = began, bell, list
	}
	st.times = append(st.times, now)
	if outcome == Rung && !slices.Equal(st.rung, ids(list)) {
		st.pause = 0
	}
	st.rung = ids(list)
	st.pause = min(max(2*st.pause, firstPause), maxPause)
	st.next = now.Add(st.pause)
	return outcome == Rung || outcome == Unable
}

// later notes that the outcome of a bell has changed.
func (d *Doorbell) later(guid string, n news.Notice, bell string, outcome Outcome) {
	list := mailOf(n)
	d.changeHeld(guid, func(st *state) []mail.Mail {
		st.over = bell
		switch outcome {
		case Refused:
			st.final = ids(list)
		case Rung:
			st.final, st.since, st.bell, st.waiting = nil, d.o.Now(), bell, list
		}
		return nil
	})
	if outcome == Refused {
		d.o.News.Record(list, mail.Refused, d.o.Now())
	}
}

// after lets no bell ring for a session for a time.
func (d *Doorbell) after(guid string, pause time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state(guid).next = d.o.Now().Add(pause)
}

func mailOf(n news.Notice) (list []mail.Mail) {
	for _, x := range n.Items {
		list = append(list, x.Mail)
	}
	return list
}

func ids(list []mail.Mail) (all []string) {
	for _, m := range list {
		all = append(all, m.ID)
	}
	return all
}
