package hub_test

import (
	"errors"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/hub"
)

// diagram is the specification's state diagram, written independently of the code.
const diagram = `
submitted working
submitted canceled
submitted rejected
submitted failed
working completed
working failed
working canceled
working input-required
working auth-required
input-required working
auth-required working
`

var stateByName = map[string]a2a.TaskState{
	"submitted": a2a.TaskStateSubmitted, "working": a2a.TaskStateWorking, "completed": a2a.TaskStateCompleted,
	"failed": a2a.TaskStateFailed, "canceled": a2a.TaskStateCanceled, "rejected": a2a.TaskStateRejected,
	"input-required": a2a.TaskStateInputRequired, "auth-required": a2a.TaskStateAuthRequired, "unknown": a2a.TaskStateUnspecified,
}

func arrows() map[[2]a2a.TaskState]bool {
	legal := map[[2]a2a.TaskState]bool{}
	var words []string
	word := ""
	for _, r := range diagram {
		if r == ' ' || r == '\n' {
			if word != "" {
				words = append(words, word)
			}
			word = ""
			continue
		}
		word += string(r)
	}
	for i := 0; i+1 < len(words); i += 2 {
		legal[[2]a2a.TaskState{stateByName[words[i]], stateByName[words[i+1]]}] = true
	}
	return legal
}

// HUB-TYPE-TRANSITIONS.
func TestTransitionsAreThoseOfTheSpecification(t *testing.T) {
	legal := arrows()
	if len(legal) != 11 {
		t.Fatalf("the diagram has %d transitions", len(legal))
	}
	for _, from := range stateByName {
		for _, to := range stateByName {
			err := hub.CheckTransition(from, to)
			if want := legal[[2]a2a.TaskState{from, to}]; (err == nil) != want {
				t.Errorf("%s to %s: %v, legal is %v", from, to, err, want)
			}
			if te, ok := errors.AsType[*hub.TransitionError](err); err != nil && (!ok || te.From != from || te.To != to) {
				t.Errorf("%s to %s: error %#v", from, to, err)
			}
		}
	}
}

func TestTerminalStatesHaveNoTransitions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.SampledFrom([]a2a.TaskState{a2a.TaskStateCompleted, a2a.TaskStateFailed, a2a.TaskStateCanceled, a2a.TaskStateRejected}).Draw(t, "from")
		to := a2a.TaskState(rapid.OneOf(rapid.SampledFrom([]string{"TASK_STATE_WORKING", "TASK_STATE_SUBMITTED", string(from)}), rapid.String()).Draw(t, "to"))
		if hub.CheckTransition(from, to) == nil {
			t.Fatalf("%s to %s is allowed", from, to)
		}
	})
}
