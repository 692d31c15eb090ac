// Package swarm lets agents form groups around a task that is too large for one
//
// A [Coordinator] recruits agents that have the capabilities, splits the task's
// sub-tasks among them by capability and load, collects their results and reports
// the outcome. A [Participant] is the other side: it accepts proposals and works on
// what it is given.
//
//	c, err := swarm.NewCoordinator(r, "sun", swarm.CoordinatorOptions{Reporter: loop})
//	s, err := c.Create(ctx, swarm.Plan{…})
//	s, err = c.Wait(ctx, s.ID)
//
// # No single orchestrator
//
// All that a coordinator decides is in a [Journal] before anybody is told, in one
// order that holds for everybody. Coordinators that share a journal watch it: when
// one falls silent, another takes its swarms over, at the point where the journal
// ends. A coordinator that was only slow finds that the journal has gone on without
// it and steps down. So a finished sub-task is neither lost nor done again, and its
// result counts once.
//
// # Shared state
//
// What a swarm shares is a document of package crdt, which the coordinator writes in
// the journal's order and package replica takes to the participants that follow it
// ([Participant.State], [Participant.Watch]). Whoever else wants a change asks for it
// ([Participant.SetState]). Every participant sees the same states in the same order.
//
// # Failures
//
// A participant tells that it is alive while it works. One that is silent for
// longer than the lease, that leaves, or that fails a sub-task loses it to another
// capable agent. After Plan.MaxAttempts the sub-task is escalated to the
// [Reporter], the Ralph loop say, which may give it another round or give up.
// Participants keep a result until a coordinator has confirmed that it is stored.
package swarm
