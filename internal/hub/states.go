package hub

import (
	"fmt"
	"slices"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// transitions is the specification's diagram of the task states, and the only
// place that says which changes are legal. A state without a row is an end.
var transitions = map[a2a.TaskState][]a2a.TaskState{
	a2a.TaskStateSubmitted: {
		a2a.TaskStateWorking, a2a.TaskStateCanceled, a2a.TaskStateRejected, a2a.TaskStateFailed,
	},
	a2a.TaskStateWorking: {
		a2a.TaskStateCompleted, a2a.TaskStateFailed, a2a.TaskStateCanceled,
		a2a.TaskStateInputRequired, a2a.TaskStateAuthRequired,
	},
	a2a.TaskStateInputRequired: {a2a.TaskStateWorking},
	a2a.TaskStateAuthRequired:  {a2a.TaskStateWorking},
}

// TransitionError says that a task cannot go from one state to another.
type TransitionError struct {
	From, To a2a.TaskState
}

// Error names both states.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("a task cannot go from %s to %s", e.From, e.To)
}

// CheckTransition returns a *[TransitionError] where the specification's
// diagram has no arrow from one state to the other.
func CheckTransition(from, to a2a.TaskState) error {
	if slices.Contains(transitions[from], to) {
		return nil
	}
	return &TransitionError{From: from, To: to}
}

// Interrupted tells whether a task waits for its user: for input or for
// credentials.
func Interrupted(s a2a.TaskState) bool {
	return s == a2a.TaskStateInputRequired || s == a2a.TaskStateAuthRequired
}

// settled tells whether nothing more happens to a task by itself.
func settled(s a2a.TaskState) bool { return s.Terminal() || Interrupted(s) }

// path returns the states a task passes on its way to an end or an
// interruption, the last one included. The diagram has no arrow from an
// interruption to an end, nor from submitted to completed: such a task resumes
// work first.
func path(from, to a2a.TaskState) ([]a2a.TaskState, error) {
	if CheckTransition(from, to) == nil {
		return []a2a.TaskState{to}, nil
	}
	if CheckTransition(from, a2a.TaskStateWorking) == nil && CheckTransition(a2a.TaskStateWorking, to) == nil {
		return []a2a.TaskState{a2a.TaskStateWorking, to}, nil
	}
	return nil, &TransitionError{From: from, To: to}
}
