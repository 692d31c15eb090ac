package main

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// searchTime bounds the search for an order of the calls about one item or file.
const searchTime = 20 * time.Second

// checkOrders searches, for each item of work and each file, an order of the calls that explains their answers: each call happens
// at a moment between its begin and its end, one whose outcome is unknown at any moment since its begin, or never. It also
// returns how many histories were judged, and for how many the time was too short.
func checkOrders(all *history) (broken []string, judged, undecided int) {
	judge := func(what string, m porcupine.Model, calls map[string][]porcupine.Operation) {
		for key, ops := range calls {
			judged++
			switch porcupine.CheckOperationsTimeout(m, ops, searchTime) {
			case porcupine.Illegal:
				broken = append(broken, fmt.Sprintf("%s: no order of the %d calls about %s explains their answers", what, len(ops), key))
			case porcupine.Unknown:
				undecided++
			case porcupine.Ok:
			}
		}
	}
	judge("lease", itemModel(), callsOfItems(all.of(opClaim, opExtend, opComplete, opReject)))
	judge("claim", fileModel(), callsOfFiles(all.of(opJoin, opLeave, opLock, opUnlock, opList)))
	slices.Sort(broken)
	return broken, judged, undecided
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
	events = firstOf(events, maxCalls)
	calls := map[string][]porcupine.Operation{}
	for i, e := range events {
		if e.Op == opLeave {
			e.Outcome = unknown
		}
		end := operationOf(e, i).Return
		if e.Op == opLeave || e.Outcome == unknown && leavesAfter(events[i+1:], e.Client) {
			end = nextJoin(events[i+1:], e.Client)
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

// maxCalls bounds the calls about files that are judged: the search takes more than twice as long for twice as many.
const maxCalls = 12000

// firstOf returns the first events, and those that began before the end of the last one as calls with an unknown outcome.
func firstOf(events []event, most int) []event {
	if len(events) <= most {
		return events
	}
	first, end := slices.Clone(events[:most]), events[most-1].End
	for _, e := range events[most:] {
		if e.Begin < end {
			e.Outcome = unknown
			first = append(first, e)
		}
	}
	return first
}

// leavesAfter reports whether the next event of a client is the end of its process.
func leavesAfter(events []event, client string) bool {
	i := slices.IndexFunc(events, func(e event) bool { return e.Client == client })
	return i >= 0 && events[i].Op == opLeave
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

// fileModel says what the hub may answer about a file, whose state is its holder.
func fileModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return "" },
		Step: func(state, input, _ any) (bool, any) {
			holder, e := state.(string), input.(event)
			free := holder == "" || holder == e.Client
			switch {
			case e.Op == opList:
				return e.Outcome != done || e.Value == holder, holder
			case e.Op == opLock && e.Outcome == refused:
				return !free, holder
			case e.Op == opLock && e.Outcome == unknown && !free:
				return true, holder
			case e.Op == opLock:
				return free, e.Client
			case holder == e.Client: // it releases all, or has left
				return e.Outcome != refused || holder == "", ""
			}
			return true, holder
		},
	}
}
