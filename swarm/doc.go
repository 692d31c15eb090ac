// Package swarm lets groups of agents work on a task that is too large for one.
//
// A [Coordinator] recruits agents that have the capabilities, assigns the task's
// sub-tasks to them by capability and load, collects the results and reports the
// outcome. A [Participant] is the other side: it accepts proposals and works on its
// sub-tasks.
//
//	c := swarm.NewCoordinator(r, negotiator, swarm.CoordinatorOptions{Reporter: loop})
//	s, err := c.Create(ctx, plan)
//	s, err = c.Wait(ctx, s.ID)
//
// # Several coordinators
//
// A coordinator writes each decision to a [Journal] before it acts on it. Coordinators
// that share a journal watch it: when one stops writing, another takes its swarms over,
// at the end of the journal. A coordinator that was only slow finds a conflicting record
// and steps down. So a finished sub-task is neither lost nor repeated.
//
// # Shared state
//
// The shared state of a swarm is a document of package crdt, which the coordinator
// writes in the journal's order and package replica copies to the participants that
// follow it ([Participant.State], [Participant.Watch]). Participants request changes
// with [Participant.SetState]. All see the same states in the same order.
//
// # Failures
//
// A participant sends heartbeats while it works. One that is silent for longer than the
// lease, leaves, or fails a sub-task loses it to another capable agent. After
// Plan.MaxAttempts the sub-task is escalated to the [Reporter], for instance the Ralph
// loop, which may grant another round. Participants keep a result until a coordinator
// confirms that it is stored.
package swarm
