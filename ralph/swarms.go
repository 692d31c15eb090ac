package ralph

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/swarm"
)

// Coordinator is what Swarms needs of a [swarm.Coordinator].
type Coordinator interface {
	Create(ctx context.Context, p swarm.Plan) (swarm.Session, error)
	Wait(ctx context.Context, id string) (swarm.Session, error)
}

// Swarms is a Dispatcher that gives each job to a swarm, and the Reporter of these swarms:
//
//	s := ralph.NewSwarms(nil, 1, nil)
//	s.Use(swarm.NewCoordinator(r, n, swarm.CoordinatorOptions{Reporter: s}))
//
// It is safe for concurrent use.
type Swarms struct {
	plan   func(Job) (swarm.Plan, error)
	rounds int
	record func(Step) error

	mu      sync.Mutex
	c       Coordinator
	granted map[string]int // further rounds, by swarm and sub-task
}

var (
	_ swarm.Reporter = (*Swarms)(nil)
	_ Dispatcher     = (*Swarms)(nil)
)

// NewSwarms returns a dispatcher. plan makes a job's plan; nil gives the job to each
// agent with the item's capabilities. rounds is how many further rounds of attempts an
// escalated sub-task gets. record is called with escalations; nil records nothing.
func NewSwarms(plan func(Job) (swarm.Plan, error), rounds int, record func(Step) error) *Swarms {
	if plan == nil {
		plan = func(j Job) (swarm.Plan, error) {
			return swarm.Plan{TaskDescription: j.Prompt(), RequiredCapabilities: append([]string{}, j.Item.Capabilities...)}, nil
		}
	}
	if record == nil {
		record = func(Step) error { return nil }
	}
	return &Swarms{plan: plan, rounds: rounds, record: record, granted: make(map[string]int)}
}

// Use sets the coordinator, before the first job.
func (s *Swarms) Use(c Coordinator) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.c = c
}

func (s *Swarms) coordinator() (Coordinator, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c == nil {
		return nil, wrap(CodeUnavailable, nil, "there is no coordinator")
	}
	return s.c, nil
}

// Dispatch implements [Dispatcher]. The reference is the swarm's id.
func (s *Swarms) Dispatch(ctx context.Context, j Job, begins func(string) error) (Outcome, error) {
	id := uuid.NewString()
	if err := begins(id); err != nil {
		return Outcome{}, err
	}
	return s.Resume(ctx, j, id)
}

// Resume implements [Dispatcher]: creating the same swarm again does nothing.
func (s *Swarms) Resume(ctx context.Context, j Job, id string) (Outcome, error) {
	c, err := s.coordinator()
	if err != nil {
		return Outcome{}, err
	}
	plan, err := s.plan(j)
	if err != nil {
		return Outcome{}, err
	}
	plan.ID = id
	if _, err := c.Create(ctx, plan); err != nil {
		return Outcome{}, swarmError(err)
	}
	session, err := c.Wait(ctx, id)
	if err != nil {
		return Outcome{}, swarmError(err)
	}
	return Outcome{Text: string(session.Outcome)}, nil
}

// swarmError converts a swarm's error.
func swarmError(err error) error {
	switch swarm.CodeOf(err) {
	case swarm.CodeNotFound:
		return wrap(CodeLost, err, "the swarm is not known")
	case swarm.CodeClosed, swarm.CodeFull, swarm.CodeJournal:
		return wrap(CodeUnavailable, err, "no swarm can be led now")
	}
	return err
}

// Escalate implements [swarm.Reporter].
func (s *Swarms) Escalate(_ context.Context, session swarm.Session, t swarm.SubTask) (again bool) {
	key := session.ID + " " + t.ID
	s.mu.Lock()
	again = s.granted[key] < s.rounds
	if again {
		s.granted[key]++
	}
	s.mu.Unlock()
	detail := "sub-task " + t.ID + " is given up: " + t.Error
	if again {
		detail = "sub-task " + t.ID + " gets another round: " + t.Error
	}
	if err := s.record(Step{Kind: Escalated, Ref: session.ID, Detail: detail}); err != nil {
		return false // no round without a record
	}
	return again
}

// Finished implements [swarm.Reporter]. Resume returns the outcome.
func (s *Swarms) Finished(_ context.Context, session swarm.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range session.SubTasks {
		delete(s.granted, session.ID+" "+t.ID)
	}
}
