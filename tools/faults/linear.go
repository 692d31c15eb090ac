package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// searchTime bounds the search for an order of the calls in a window of one item or file.
const searchTime = 10 * time.Second

// checkOrders searches, for each item of work and each file, an order of the calls that explains their answers: each call happens
// at a moment between its begin and its end, one whose outcome is unknown at any moment since its begin, or never. A long history is judged in
// windows. It also returns how many of them were judged, and for how many the time was too short.
func checkOrders(all *history) (broken []string, judged, undecided int) {
	judge := func(what, key string, m porcupine.Model, ops []porcupine.Operation) {
		judged++
		switch porcupine.CheckOperationsTimeout(m, ops, searchTime) {
		case porcupine.Illegal:
			broken = append(broken, fmt.Sprintf("%s: no order of the %d calls about %s explains their answers", what, len(ops), key))
		case porcupine.Unknown:
			undecided++
		case porcupine.Ok:
		}
	}
	for key, ops := range callsOfItems(all.of(opClaim, opExtend, opComplete, opReject)) {
		judge("lease", key, itemModel(), ops)
	}
	for key, ops := range callsOfFiles(all.of(opJoin, opLeave, opLock, opUnlock, opList)) {
		holders := []any{""} // nobody holds it in the beginning
		for _, window := range windows(ops, windowCalls) {
			judge("claim", key, fileModel(holders), window)
			holders = holdersIn(ops)
		}
	}
	slices.Sort(broken)
	return broken, judged, undecided
}

// windowCalls is the least number of calls of a window: what the search remembers grows with its square.
const windowCalls = 2000

// windows cuts a history at moments at which no call is under way. So that each window can be judged alone, it has to begin in any state that the
// former one may have left.
func windows(ops []porcupine.Operation, least int) (all [][]porcupine.Operation) {
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	first, end := 0, int64(0)
	for i, op := range ops {
		if i-first >= least && op.Call > end {
			all, first = append(all, ops[first:i]), i
		}
		end = max(end, op.Return)
	}
	return append(all, ops[first:])
}

// holdersIn returns who may hold a file at any moment of its history.
func holdersIn(ops []porcupine.Operation) (holders []any) {
	holders = []any{""}
	for _, op := range ops {
		if client := op.Input.(event).Client; !slices.Contains(holders, any(client)) {
			holders = append(holders, client)
		}
	}
	return holders
}

// operationOf returns the call of an event for porcupine. Clients are numbered; one whose call has an unknown outcome goes on as another one.
func operationOf(e event, client int) porcupine.Operation {
	end := int64(e.End)
	if e.Outcome == unknown {
		end = math.MaxInt64
	}
	return porcupine.Operation{ClientId: client, Input: e, Call: int64(e.Begin), Return: end}
}

func callsOfItems(events []event) map[string][]porcupine.Operation {
	calls := map[string][]porcupine.Operation{}
	for i, e := range events {
		if e.Outcome == refused || e.Op == opExtend && e.Outcome == unknown {
			continue // says nothing, and changes nothing: its lease may have ended
		}
		calls[e.Key] = append(calls[e.Key], operationOf(e, i))
	}
	return calls
}

// itemState is an item of work: who has the highest token, and whether it is done.
type itemState struct {
	token          int
	returned, done bool
}

// itemModel says what the hub may answer about an item. The end of a lease is not part of it: a holder keeps its token until the
// next one is given.
func itemModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return itemState{} },
		Step: func(state, input, _ any) (bool, any) {
			s, e := state.(itemState), input.(event)
			mine := !s.done && !s.returned && e.Token == s.token
			switch {
			case e.Op == opClaim:
				return !s.done && e.Token > s.token, itemState{token: e.Token}
			case e.Op == opExtend:
				return mine, s
			case !mine:
				return e.Outcome == unknown, s
			}
			s.done, s.returned = e.Op == opComplete, e.Op == opReject
			return true, s
		},
	}
}

// callsOfFiles returns the calls about each file. The end of an agent's process is a call that ends its claims, until it has registered
// again.
func callsOfFiles(events []event) map[string][]porcupine.Operation {
	calls := map[string][]porcupine.Operation{}
	for i, e := range events {
		if e.Op == opLeave {
			e.Outcome = unknown
		}
		end := operationOf(e, i).Return
		switch {
		case e.Op == opLeave:
			end = nextJoin(events[i+1:], e.Client)
		case e.Outcome == unknown:
			end = nextChange(events[i+1:], e.Client)
		}
		for _, file := range files {
			one := e
			if e.Op == opList && e.Outcome == done {
				one.Value = holderOf(e.Value, file)
			}
			empty := e.Op == opList && e.Outcome != done // says nothing, and changes nothing
			if e.Op != opJoin && !empty && (e.Key == "" || e.Key == file) {
				calls[file] = append(calls[file], porcupine.Operation{ClientId: i, Input: one, Call: int64(e.Begin), Return: end})
			}
		}
	}
	return calls
}

// nextChange returns when a client knows that the claims were changed for it, or has registered again. What it has tried before does not
// happen any more: each change replaces all claims of a repository as they were read.
func nextChange(events []event, client string) int64 {
	i := slices.IndexFunc(events, func(e event) bool {
		return e.Client == client && (e.Op == opJoin || e.Outcome == done && (e.Op == opLock || e.Op == opUnlock))
	})
	if i < 0 {
		return math.MaxInt64
	}
	return int64(events[i].End)
}

// nextJoin returns when a client has registered again: what its former registration claims does not count any more.
func nextJoin(events []event, client string) int64 {
	i := slices.IndexFunc(events, func(e event) bool { return e.Client == client && e.Op == opJoin })
	if i < 0 {
		return math.MaxInt64
	}
	return int64(events[i].End)
}

func holderOf(list, file string) string {
	holders := map[string]string{}
	_ = json.Unmarshal([]byte(list), &holders) // the campaign has written it
	return holders[file]
}

// fileModel says what the hub may answer about a file, whose state is its holder, one of those in the beginning. A call with an unknown outcome
// may also have done nothing.
func fileModel(holders []any) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return holders },
		Step: func(state, input, _ any) []any {
			holder, e := state.(string), input.(event)
			next, ok := stepOfFile(holder, e)
			switch {
			case !ok:
				return nil
			case e.Outcome == unknown && e.Op != opLeave && next != holder:
				return []any{holder, next}
			}
			return []any{next}
		},
	}
	return m.ToModel()
}

// stepOfFile returns who holds a file after a call, and whether the call may be answered so.
func stepOfFile(holder string, e event) (next string, ok bool) {
	free := holder == "" || holder == e.Client
	switch {
	case e.Op == opList:
		return holder, e.Value == holder
	case e.Op == opLock && e.Outcome == refused:
		return holder, !free
	case e.Op == opLock && e.Outcome == unknown && !free:
		return holder, true
	case e.Op == opLock:
		return e.Client, free
	case holder == e.Client: // it releases all, or has left
		return "", e.Outcome != refused
	}
	return holder, true
}
