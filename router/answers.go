package router

import (
	"slices"
	"sync"

	"github.com/parleyhub/parley/envelope"
)

// maxExpected bounds the proposals that may be answered against the tier rules.
const maxExpected = 10_000

// answers remembers the justified task-proposals whose recipients may not address the proposer, so that they can answer.
// When it is full, the proposer with the most loses its oldest, so that nobody displaces the proposals of others. The
// zero value is ready. It is safe for concurrent use.
type answers struct {
	mu         sync.Mutex
	ids        map[question]bool
	threads    map[pair]int
	byProposer map[string][]question // in order of sending
}

// pair is a proposer and an agent that it asks.
type pair struct{ proposer, asked string }

// question is a thread with a proposal.
type question struct {
	pair
	thread string
}

// expect adds the thread of a proposal.
func (a *answers) expect(q question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ids[q] {
		return
	}
	if a.ids == nil {
		a.ids, a.threads, a.byProposer = map[question]bool{}, map[pair]int{}, map[string][]question{}
	}
	if len(a.ids) == maxExpected {
		a.forgetOne()
	}
	a.ids[q] = true
	a.threads[q.pair]++
	a.byProposer[q.proposer] = append(a.byProposer[q.proposer], q)
}

// forgetOne removes the oldest thread of the proposer that has the most. The lock is held.
func (a *answers) forgetOne() {
	most := ""
	for proposer, questions := range a.byProposer {
		if len(questions) > len(a.byProposer[most]) {
			most = proposer
		}
	}
	q := a.byProposer[most][0]
	if a.byProposer[most] = a.byProposer[most][1:]; len(a.byProposer[most]) == 0 {
		delete(a.byProposer, most)
	}
	delete(a.ids, q)
	if a.threads[q.pair]--; a.threads[q.pair] == 0 {
		delete(a.threads, q.pair)
	}
}

// answerTypes are the types of the messages with which a proposal is answered.
var answerTypes = []envelope.Type{envelope.TaskAccept, envelope.TaskReject, envelope.Response, envelope.ErrorMessage}

// expected reports whether an envelope answers a proposal of agent to, in its thread.
func (a *answers) expected(e *envelope.Envelope, to string) bool {
	if e.CorrelationID == "" || !slices.Contains(answerTypes, e.Type) {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ids[question{pair{proposer: to, asked: e.Sender}, e.CorrelationID}]
}

// open reports whether agent from may answer a proposal of agent to.
func (a *answers) open(from, to string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.threads[pair{proposer: to, asked: from}] > 0
}
