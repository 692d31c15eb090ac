// Package ralph is a loop that works through a task list, one item after the other,
// until nothing is left to do: it picks the next item, dispatches it to an agent or a
// swarm, validates what came of it, retries with the failure in the prompt, and
// completes the item or gives it up after a number of attempts.
//
//	loop, err := ralph.New(ralph.Options{
//		List: list, Dispatcher: agents, Validator: tests, StateFile: "loop.json",
//	})
//	summary, err := loop.Run(ctx)
//
// # Stopping and going on
//
// A loop can be stopped or killed at any moment and started again. What it is about
// to do is in its state file, on disk, before it does it; work that had begun is
// picked up by the reference that the [Dispatcher] gave, not begun a second time: the
// reference is stored before anything begins, and names one piece of work to whoever
// does it.
//
// # Trust
//
// A list's items and an agent's answers are data. Neither chooses what is run to
// validate an item: the [Validator] is the program's.
package ralph
