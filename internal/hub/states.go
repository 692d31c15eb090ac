package hub

import (
	"fmt"
	"slices"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// transitions are the legal changes of a task's state, from the specification's diagram.
// A state without a row is terminal.
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

// TransitionError reports an illegal change of a task's state.
type TransitionError struct {
	From, To a2a.TaskState
}

// Error names both states.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("a task cannot change from %s to %s", e.From, e.To)
}

// CheckTransition returns a *[TransitionError] if the specification's diagram has no
// arrow from one state to the other.
func CheckTransition(from, to a2a.TaskState) error {
	if slices.Contains(transitions[from], to) {
		return nil
	}
	return &TransitionError{From: from, To: to}
}

// Interrupted reports whether a task waits for its user: for input or credentials.
func Interrupted(s a2a.TaskState) bool {
	return s == a2a.TaskStateInputRequired || s == a2a.TaskStateAuthRequired
}

// settled reports whether a task has ended or is interrupted.
func settled(s a2a.TaskState) bool { return s.Terminal() || Interrupted(s) }

// path returns the states through which a task reaches an end or an interruption, including it. The diagram has no
// arrow from an interruption to an end, nor from submitted to completed: such a task passes through working.
func path(from, to a2a.TaskState) ([]a2a.TaskState, error) {
	if CheckTransition(from, to) == nil {
		return []a2a.TaskState{to}, nil
	}
	if CheckTransition(from, a2a.TaskStateWorking) == nil && CheckTransition(a2a.TaskStateWorking, to) == nil {
		return []a2a.TaskState{a2a.TaskStateWorking, to}, nil
	}
	return nil, &TransitionError{From: from, To: to}
}
