package router

import (
	"container/list"
	"slices"
	"sync"

	"github.com/parleyhub/parley/envelope"
)

// maxExpected bounds the proposals that may be answered against the tier rules; beyond it the oldest is forgotten.
const maxExpected = 10_000

// answers remembers the justified task-proposals whose recipients may not address the proposer, so that they can answer.
// The zero value is ready. It is safe for concurrent use.
type answers struct {
	mu      sync.Mutex
	ids     map[question]*list.Element
	threads map[pair]int
	oldest  list.List // of question
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
	if a.ids[q] != nil {
		return
	}
	if a.ids == nil {
		a.ids, a.threads = map[question]*list.Element{}, map[pair]int{}
	}
	if a.oldest.Len() == maxExpected {
		a.forgetOldest()
	}
	a.ids[q] = a.oldest.PushBack(q)
	a.threads[q.pair]++
}

// forgetOldest removes the oldest thread. The lock is held.
func (a *answers) forgetOldest() {
	q := a.oldest.Remove(a.oldest.Front()).(question)
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
	return a.ids[question{pair{proposer: to, asked: e.Sender}, e.CorrelationID}] != nil
}

// open reports whether agent from may answer a proposal of agent to.
func (a *answers) open(from, to string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.threads[pair{proposer: to, asked: from}] > 0
}
