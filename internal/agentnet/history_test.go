package agentnet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// An event is one successful call of a worker for an item. All times are those of the one computer
// on which the workers run.
type event struct {
	Worker string `json:"worker"`
	GUID   string `json:"guid"`
	What   string `json:"what"` // claim, extend, complete or reject
	Task   string `json:"task,omitempty"`
	Token  int    `json:"token,omitempty"`
	// The call took effect between Begin and End.
	Begin time.Time `json:"begin"`
	End   time.Time `json:"end"`
	Lease time.Time `json:"lease"` // the end of the lease after a claim or an extension
}

// history is the events of all workers. It is valid if each item has one holder at a time and is
// completed at most once.
type history []event

// judge returns the contradictions. A lease may appear to end early by slack, because clocks of
// computers differ.
func (h history) judge(slack time.Duration) (wrong []string) {
	byTask := map[string][]event{}
	for _, e := range h {
		if e.Task != "" {
			byTask[e.Task] = append(byTask[e.Task], e)
		}
	}
	for task, events := range byTask {
		for _, w := range judgeTask(events, slack) {
			wrong = append(wrong, task+": "+w)
		}
	}
	slices.Sort(wrong)
	return wrong
}

func judgeTask(events []event, slack time.Duration) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	holder := map[int]string{}
	var completed *event
	for _, e := range events {
		switch e.What {
		case "claim":
			if other, twice := holder[e.Token]; twice {
				complain("%s and %s have claimed it with the token %d", other, e.Worker, e.Token)
			}
			holder[e.Token] = e.Worker
		case "complete":
			if completed != nil {
				complain("completed twice, with the tokens %d and %d", completed.Token, e.Token)
			}
			completed = &e
		}
	}
	for _, e := range events {
		for _, later := range events {
			if later.What != "claim" || later.Token <= e.Token {
				continue
			}
			switch {
			case e.What != "claim" && e.Begin.After(later.End):
				complain("%s by a former holder: with the token %d after %d was claimed", e.What, e.Token, later.Token)
			case e.What == "complete":
				complain("claimed with the token %d though it is completed with %d", later.Token, e.Token)
			case !e.Lease.IsZero() && later.Token == e.Token+1 && later.End.Before(e.Lease.Add(-slack)) && !released(events, e.Token):
				complain("claimed with the token %d while the lease of %d had %v to go", later.Token, e.Token, e.Lease.Sub(later.End))
			}
		}
	}
	return wrong
}

// released reports whether the holder of a token returned the item, or may have done so without
// getting the answer.
func released(events []event, token int) bool {
	return slices.ContainsFunc(events, func(e event) bool {
		return e.Token == token && (e.What == "reject" || e.What == "rejecting")
	})
}

func TestJudgeFindsInvalidHistories(t *testing.T) {
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	did := func(what string, token int, begin, end float64) event {
		e := event{Worker: fmt.Sprint("w", token), What: what, Task: "T", Token: token, Begin: at(begin), End: at(end)}
		if what == "claim" || what == "extend" {
			e.Lease = at(begin + 10)
		}
		return e
	}
	for _, c := range []struct {
		name string
		h    history
		want string
	}{
		{"claimed and completed", history{did("claim", 1, 0, 1), did("complete", 1, 2, 3)}, ""},
		{"claimed again when the lease was over", history{did("claim", 1, 0, 1), did("claim", 2, 11, 12), did("complete", 2, 13, 14)}, ""},
		{"given back and claimed", history{did("claim", 1, 0, 1), did("reject", 1, 2, 3), did("claim", 2, 3, 4)}, ""},
		{"extended while it was claimed", history{did("claim", 1, 0, 1), did("extend", 1, 1, 12), did("claim", 2, 11, 12)}, ""},
		{"two holders of a token", history{did("claim", 1, 0, 1), did("claim", 1, 0, 1)}, "have claimed it with the token 1"},
		{"claimed while another holds it", history{did("claim", 1, 0, 1), did("claim", 2, 2, 3)}, "had 7s to go"},
		{"an extension that did not count", history{did("claim", 1, 0, 1), did("extend", 1, 8, 9), did("claim", 2, 11, 12)}, "had 6s to go"},
		{"completed twice", history{did("complete", 1, 0, 1), did("complete", 2, 0, 1)}, "completed twice"},
		{"completed by a former holder", history{did("claim", 2, 11, 12), did("complete", 1, 13, 14)}, "complete by a former holder"},
		{"extended by a former holder", history{did("claim", 2, 11, 12), did("extend", 1, 13, 14)}, "extend by a former holder"},
		{"claimed after it was completed", history{did("complete", 1, 1, 2), did("claim", 2, 3, 4)}, "though it is completed"},
	} {
		got := strings.Join(c.h.judge(time.Second), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// itemStates waits until all items have ended, and counts their states.
func itemStates(t *testing.T, boss *agentnet.Agent, count int) map[work.ItemState]int {
	t.Helper()
	states := map[work.ItemState]int{}
	for i := range count {
		task := fmt.Sprint("T", i)
		for {
			s, err := boss.Item(t.Context(), task, true)
			if err == nil {
				states[s.State]++
				break
			}
			if nettest.CategoryOf(err) != store.ConnectionError {
				t.Fatal(task, err)
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-t.Context().Done():
				t.Fatal("the item does not end: ", task)
			}
		}
	}
	return states
}
