package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/testbed/simnet"
)

var (
	simulations    = flag.Int("simulations", shapes, "how many simulations of mail, work and claims run")
	simulationSeed = flag.Uint64("simulation-seed", 1, "the seed of the first one")
)

// How long a simulation lasts, in virtual time, and how long its end may take.
const (
	simulatedTime = 8 * time.Second
	simulatedEnd  = 10 * time.Minute
)

// The shapes of a simulation: a seed has one of them. With fewer agents, more of the faults are at those that matter, and a run takes less
// of the processor.
const (
	everything = iota // seven agents
	mailing           // a reader and two senders
	working           // two workers, and a sender of work
	claiming          // three that claim files
	shapes
)

// Agents on four computers send and read mail, do work and claim files, while links are cut and held back, clocks jump, and
// processes and the server are killed. The checkers are those of the campaign.
func TestSimulatedAgentsKeepThePromises(t *testing.T) {
	total, calls, faults := 0, 0, 0
	defer func() {
		fmt.Printf("simulated: %d operations acknowledged, %d other calls, %d faults\n", total, calls, faults)
		if *simulations >= shapes && total+calls < 10**simulations && !t.Failed() {
			t.Error("they did too little")
		}
	}()
	for i := range uint64(*simulations) {
		seed := *simulationSeed + i
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := simulate(t, seed)
			broken := append(check(s.all.ops, s.found), checkEvents(s.all)...)
			orders, _, undecided := checkOrders(s.all)
			for _, b := range append(broken, orders...) {
				t.Error(b)
			}
			if undecided > 0 {
				t.Errorf("%d orders were not decided", undecided)
			}
			acknowledged, _ := s.all.counts()
			total, calls, faults = total+acknowledged, calls+len(s.all.events), faults+len(s.all.of(opFault))
			if t.Failed() {
				t.Logf("repeat it with: go run ./tools/faults -simulations 1 -seed %d", seed)
			}
		})
	}
}

// simulation is the agents of a simulated network and what they have done.
type simulation struct {
	n     *simnet.Network
	seed  uint64
	all   *history
	found map[string][]string
	work  string // a directory

	reader  *simulated // nil without mail
	senders []*simulated
	workers []*simulated
	lockers []*simulated
	owed    *owed
}

func simulate(t *testing.T, seed uint64) *simulation {
	s := &simulation{seed: seed, all: &history{}, found: map[string][]string{}, work: t.TempDir(), owed: newOwed()}
	state := t.TempDir()
	simnet.Run(t, seed, func(t *testing.T, n *simnet.Network) {
		s.n = n
		enter := func(handle string, computer int) *simulated {
			return &simulated{s: s, handle: handle, computer: fmt.Sprint("computer-", computer), state: state}
		}
		if s.has(mailing) {
			s.reader = enter(reader, 0)
		}
		for i := range 2 {
			if s.has(mailing) || s.has(working) && i == 0 {
				s.senders = append(s.senders, enter(name("sender", i), 1+i))
			}
			if s.has(working) {
				s.workers = append(s.workers, enter(name("worker", i), 2+i))
			}
			if s.has(claiming) {
				s.lockers = append(s.lockers, enter(name("locker", i), 0))
			}
		}
		if s.shape() == claiming {
			s.lockers = append(s.lockers, enter(name("locker", 2), 0))
		}
		s.run(t.Context())
		s.end(t)
	})
	return s
}

func (s *simulation) shape() int { return int(s.seed % shapes) }

// has reports whether a shape is part of the simulation's.
func (s *simulation) has(shape int) bool { return s.shape() == everything || s.shape() == shape }

func (s *simulation) agents() (all []*simulated) {
	if s.reader != nil {
		all = append(all, s.reader)
	}
	return slices.Concat(all, s.senders, s.workers, s.lockers)
}

func (s *simulation) random(kind string, i int) *rand.Rand {
	return rand.New(rand.NewPCG(s.seed, uint64(kind[0])<<32|uint64(i)))
}

// run runs the agents with faults for simulatedTime.
func (s *simulation) run(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, simulatedTime)
	defer cancel()
	if s.seed/shapes%4 != 0 { // else all make the streams at once, which takes longer
		_ = s.agents()[0].join(ctx) // it tries again
	}
	var wait sync.WaitGroup
	for i, a := range s.senders {
		wait.Go(func() { s.send(ctx, a, i, s.random("sender", i)) })
	}
	for i, a := range s.workers {
		wait.Go(func() { s.labor(ctx, a, s.random("worker", i)) })
	}
	for i, a := range s.lockers {
		wait.Go(func() { s.lock(ctx, a, s.random("locker", i)) })
	}
	if s.reader != nil {
		wait.Go(func() {
			for ctx.Err() == nil {
				s.read(ctx)
				pause(ctx, 300*time.Millisecond)
			}
		})
	}
	s.faults(ctx, s.random("faults", 0))
	wait.Wait()
}

// faults makes faults until ctx ends, and heals them.
func (s *simulation) faults(ctx context.Context, random *rand.Rand) {
	all := s.agents()
	for pause(ctx, time.Duration(random.IntN(800))*time.Millisecond) {
		a := all[random.IntN(len(all))]
		c := s.n.Computer(a.computer)
		s.awaitCall(ctx, a, random)
		kind := random.IntN(7)
		length := time.Duration(50+random.IntN(1+random.IntN(4000))) * time.Millisecond // rather a short one
		switch kind {
		case 0:
			s.n.Kill()
			pause(ctx, length)
			s.n.Start()
		case 1:
			c.Cut()
			pause(ctx, length)
			c.Heal()
		case 2, 3:
			c.Hold(kind == 2, kind == 3)
			pause(ctx, length)
			if random.IntN(2) == 0 {
				c.Cut()
			}
			c.Heal()
		case 4:
			c.Jump(time.Duration(random.IntN(7200)-3600) * time.Second)
		default:
			a.kill()
		}
		s.all.note(event{Op: opFault, Value: fmt.Sprint(kind)})
	}
}

// awaitCall waits until an agent is in the middle of a call, or for two seconds: most of the time nothing is under way that a fault could break.
func (s *simulation) awaitCall(ctx context.Context, a *simulated, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	a.awaitWrite(ctx, 1+random.IntN(10))
	pause(ctx, time.Duration(random.IntN(10))*time.Millisecond)
}

// end waits until everything that was acknowledged has arrived, and collects it.
func (s *simulation) end(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), simulatedEnd)
	defer cancel()
	for s.reader != nil && (s.read(ctx) > 0 || s.owed.unread(s.all.of(opGot))) {
		if !pause(ctx, 300*time.Millisecond) {
			break
		}
	}
	for len(s.owed.undone()) > 0 && pause(ctx, 300*time.Millisecond) {
		for _, a := range s.workers {
			s.laborOnce(ctx, a, nil)
		}
		s.settle(ctx)
	}
	for i, a := range s.senders {
		for _, o := range s.all.ops {
			if id := s.owed.mailOf(o.text()); id != "" && o.sender == name("mail", i) {
				s.status(ctx, a, id)
			}
		}
	}
	for _, e := range firstOfEach(s.all.of(opGot)) {
		s.found[senderOf(e.Text)] = append(s.found[senderOf(e.Text)], e.Text)
	}
	maps.Copy(s.found, s.owed.completedOf(s.all.ops))
	for _, a := range s.agents() {
		a.leave()
	}
}

// settle asks for items that no worker knows to be completed.
func (s *simulation) settle(ctx context.Context) {
	for _, item := range s.owed.undone() {
		_ = s.workers[0].call(ctx, event{}, func(ctx context.Context, a *agentnet.Agent, _ *event) error {
			got, err := a.Item(ctx, item, false)
			if err == nil && got.State == work.Completed {
				s.owed.completed(item)
			}
			return err
		})
	}
}

// send sends a mail and an item of work in turn, as the shape has them, and asks what became of an earlier mail.
func (s *simulation) send(ctx context.Context, a *simulated, i int, random *rand.Rand) {
	var sent []string
	for number := 0; ctx.Err() == nil; number++ {
		if s.has(mailing) {
			if id := s.mail(ctx, a, i, number); id != "" {
				sent = append(sent, id)
			}
		}
		if s.has(working) {
			s.submit(ctx, a, i, number)
		}
		if len(sent) > 0 {
			s.status(ctx, a, sent[random.IntN(len(sent))])
		}
		pause(ctx, time.Duration(random.IntN(1000))*time.Millisecond)
	}
}

func (s *simulation) submit(ctx context.Context, a *simulated, i, number int) {
	s.attempt(name("work", i), number, func(text string) error {
		return a.call(ctx, event{}, func(ctx context.Context, agent *agentnet.Agent, _ *event) error {
			_, err := agent.Submit(ctx, work.Submission{Offer: mail.Offer{TaskID: itemOf(text), Description: text}, Capability: capability})
			if err == nil {
				s.owed.submitted(itemOf(text))
			}
			return err
		})
	})
}

func (s *simulation) attempt(sender string, number int, do func(text string) error) {
	o := operation{sender: sender, number: number}
	err := do(o.text())
	if errors.Is(err, errNotSent) {
		return
	}
	o.acknowledged = err == nil
	s.all.add(o)
}

func (s *simulation) mail(ctx context.Context, a *simulated, i, number int) (id string) {
	s.attempt(name("mail", i), number, func(text string) error {
		to := s.reader.known()
		if to == "" {
			return errNotSent
		}
		return a.call(ctx, event{}, func(ctx context.Context, agent *agentnet.Agent, _ *event) error {
			sent, err := agent.Send(ctx, mail.Message{Recipient: to, Text: text})
			if err == nil {
				id = sent.ID
				s.owed.mailed(text, id)
			}
			return err
		})
	})
	return id
}

func (s *simulation) status(ctx context.Context, a *simulated, id string) {
	_ = a.call(ctx, event{Op: opStatus, Key: id}, func(ctx context.Context, agent *agentnet.Agent, e *event) error {
		got, err := agent.MessageStatus(ctx, id)
		e.Value, e.Times = string(got.Status), []string{got.StoredAt, got.DeliveredAt, got.ReadAt}
		return err
	}) // it is recorded
}

// read reads what is there and returns how much it was.
func (s *simulation) read(ctx context.Context) int {
	var got []mail.Mail
	begin := s.all.now()
	err := s.reader.call(ctx, event{Op: opRead}, func(ctx context.Context, agent *agentnet.Agent, _ *event) (err error) {
		answer := &mail.Answer{}
		got, _, err = agent.Take(ctx, mail.Selection{Limit: 20}, answer)
		if err == nil {
			agent.Answered(answer, true)
		}
		return err
	})
	if err != nil {
		return 0
	}
	for _, m := range got {
		s.all.note(event{Client: reader, Op: opGot, Key: m.ID, Text: m.Text, Again: m.Repeated, Begin: begin, End: s.all.now(), Outcome: done})
	}
	return len(got)
}

// labor does the work of the queue until ctx ends.
func (s *simulation) labor(ctx context.Context, a *simulated, random *rand.Rand) {
	for ctx.Err() == nil {
		s.laborOnce(ctx, a, random)
		pause(ctx, time.Duration(random.IntN(500))*time.Millisecond)
	}
}

func (s *simulation) laborOnce(ctx context.Context, a *simulated, random *rand.Rand) {
	var item *work.Claim
	begin := s.all.now()
	if err := a.call(ctx, event{}, func(ctx context.Context, agent *agentnet.Agent, _ *event) (err error) {
		waiting, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		item, err = agent.Claim(waiting, nil)
		return err
	}); err != nil || item == nil {
		return
	}
	until, _ := time.Parse(time.RFC3339Nano, item.LeaseUntil)
	s.all.note(event{Client: a.handle, Op: opClaim, Key: item.TaskID, Text: item.Description, Token: item.Token, Until: until, Begin: begin, End: s.all.now(), Outcome: done})
	e := event{Key: item.TaskID, Token: item.Token}
	choice := 99
	if random != nil {
		choice = random.IntN(100)
	}
	switch {
	case choice < 12: // longer than the lease
		pause(ctx, lease+lease/2)
	case choice < 35:
		pause(ctx, lease/2)
	case choice < 50:
		e.Op = opExtend
		_ = a.call(ctx, e, func(ctx context.Context, agent *agentnet.Agent, e *event) error {
			until, err := agent.Extend(ctx, item.TaskID, item.Token)
			e.Until, _ = time.Parse(time.RFC3339Nano, until)
			return err
		}) // it is recorded
		pause(ctx, lease/2)
	case choice < 60:
		e.Op = opReject
		_ = a.call(ctx, e, func(ctx context.Context, agent *agentnet.Agent, _ *event) error {
			_, err := agent.Reject(ctx, item.TaskID, item.Token, "for somebody else", false)
			return err
		}) // it is recorded
		return
	}
	e.Op = opComplete
	if a.call(ctx, e, func(ctx context.Context, agent *agentnet.Agent, _ *event) error {
		return agent.Complete(ctx, item.TaskID, item.Token, work.Outcome{Success: true, Summary: item.Description})
	}) == nil {
		s.owed.completed(item.TaskID)
	}
}

// lock claims files and releases them again until ctx ends. A process that does not know what became of its call ends, so that
// the call has an end, too.
func (s *simulation) lock(ctx context.Context, a *simulated, random *rand.Rand) {
	for ctx.Err() == nil {
		file := files[random.IntN(len(files))]
		err := a.call(ctx, event{Op: opLock, Key: file}, func(ctx context.Context, agent *agentnet.Agent, _ *event) error {
			_, err := agent.ClaimFiles(ctx, claims.Request{Paths: []string{file}, Why: "a simulation"})
			return err
		})
		if random.IntN(4) == 0 {
			s.list(ctx, a)
		}
		pause(ctx, time.Duration(random.IntN(1000))*time.Millisecond)
		if err == nil {
			err = a.call(ctx, event{Op: opUnlock}, func(ctx context.Context, agent *agentnet.Agent, _ *event) error {
				_, err := agent.ReleaseFiles(ctx, func(claims.Claim) bool { return true })
				return err
			})
		}
		if err != nil && store.CodeOf(err) != store.ConflictError {
			a.leave()
		}
	}
}

func (s *simulation) list(ctx context.Context, a *simulated) {
	_ = a.call(ctx, event{Op: opList}, func(ctx context.Context, agent *agentnet.Agent, e *event) error {
		all, err := agent.FileClaims(ctx)
		holders := map[string]string{}
		for _, c := range all {
			for _, path := range c.Paths {
				holders[path] += c.HolderHandle
			}
		}
		value, _ := json.Marshal(holders) // of texts
		e.Value = string(value)
		return err
	}) // it is recorded
}
