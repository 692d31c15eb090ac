package main

import (
	"fmt"
	"slices"
	"time"
)

// checkEvents returns the promises about single agents, mails and items that were broken.
func checkEvents(all *history) (broken []string) {
	broken = append(broken, checkIdentities(all.of(opJoin))...)
	broken = append(broken, checkRepeats(all.of(opRead, opGot, opLeave))...)
	broken = append(broken, checkReceipts(all.of(opStatus), all.of(opGot))...)
	broken = append(broken, checkLeases(all.of(opClaim, opExtend, opComplete, opReject, opLeave, opFault))...)
	return broken
}

// checkIdentities finds agents that are another one after a crash.
func checkIdentities(joins []event) (broken []string) {
	guids, owners := map[string]string{}, map[string]string{}
	for _, e := range joins {
		if before, ok := guids[e.Client]; ok && before != e.Value {
			broken = append(broken, fmt.Sprintf("identity: %s was %s, and has come back as %s", e.Client, before, e.Value))
		}
		if owner, ok := owners[e.Value]; ok && owner != e.Client {
			broken = append(broken, fmt.Sprintf("identity: %s and %s are both %s", owner, e.Client, e.Value))
		}
		guids[e.Client], owners[e.Value] = e.Value, e.Client
	}
	return broken
}

// stages are the states of a mail, in their order.
var stages = []string{"stored", "delivered", "read", "handled"}

// checkReceipts finds receipts that go back, whose times change, that are not in order, or that say read of mail that nobody has read.
func checkReceipts(statuses, got []event) (broken []string) {
	read := map[string]time.Duration{}
	for _, e := range got {
		if _, ok := read[e.Key]; !ok {
			read[e.Key] = e.End // when the answer was there
		}
	}
	last := map[string]event{}
	for _, e := range statuses {
		if e.Outcome != done {
			continue
		}
		before, known := last[e.Key]
		last[e.Key] = e
		if at, ok := read[e.Key]; e.Value == "read" && (!ok || at > e.End) {
			broken = append(broken, fmt.Sprintf("receipt: the mail %s was shown as read before anybody had read it", e.Key))
		}
		if !slices.IsSortedFunc(present(e.Times), func(a, b time.Time) int { return a.Compare(b) }) {
			broken = append(broken, fmt.Sprintf("receipt: the times of the mail %s are not in order: %q", e.Key, e.Times))
		}
		if !known {
			continue
		}
		if slices.Index(stages, e.Value) < slices.Index(stages, before.Value) {
			broken = append(broken, fmt.Sprintf("receipt: the mail %s was %s, and is %s", e.Key, before.Value, e.Value))
		}
		for i, at := range before.Times {
			if at != "" && e.Times[i] != at {
				broken = append(broken, fmt.Sprintf("receipt: a time of the mail %s was %s, and is %q", e.Key, at, e.Times[i]))
			}
		}
	}
	return broken
}

// checkRepeats finds mail that comes again although its reader has made another call since. Mail that was read by a process that was killed
// before may come again, under the same id.
func checkRepeats(events []event) (broken []string) {
	var last []string // what the last answer had
	read := map[string]bool{}
	for _, e := range events {
		switch e.Op {
		case opGot:
			if read[e.Key] {
				broken = append(broken, fmt.Sprintf("twice: the mail %s was read again", e.Key))
			}
			last = append(last, e.Key)
		case opRead:
			if e.Outcome == done {
				for _, key := range last {
					read[key] = true
				}
				last = nil
			}
		case opLeave:
			if e.Client == reader {
				last = nil
			}
		}
	}
	return broken
}

// present returns the times that are there.
func present(times []string) (all []time.Time) {
	for _, text := range times {
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			all = append(all, at)
		}
	}
	return all
}

// leaseLeft returns what is left of a lease when the item's next claim was answered, as far as is known: a lease that was granted just when the clock
// was set says nothing.
func leaseLeft(grant, next event, jumps []event) time.Duration {
	left := grant.Until.Sub(grant.At) - (next.End - grant.End)
	for _, jump := range jumps {
		switch {
		case jump.End > grant.Begin && jump.Begin < grant.End:
			return 0
		case jump.Begin >= grant.End && jump.Begin < next.End:
			left -= max(jump.Shift, 0)
		}
	}
	return left
}

// leaseSlack is how much shorter than granted a lease may appear: the server's timer may deliver an item before its lease ends.
const leaseSlack = lease/10 + 500*time.Millisecond

// checkLeases finds items that were given to a worker while another one held them, and had not begun to return them. A clock that is set forward
// ends a lease earlier by that; one that is set back does not.
func checkLeases(events []event) (broken []string) {
	type holding struct {
		key   string
		token int
	}
	leases, ended, left := map[string][]event{}, map[holding]time.Duration{}, map[string][]event{}
	grants := map[holding]event{} // the last of each: a claim, or an extension
	var jumps []event
	for _, e := range events {
		h := holding{e.Key, e.Token}
		switch {
		case e.Op == opFault:
			if e.Text == jumpsOfTheClock {
				jumps = append(jumps, e)
			}
		case e.Op == opLeave:
			left[e.Client] = append(left[e.Client], e)
		case e.Op == opClaim:
			leases[e.Key], grants[h] = append(leases[e.Key], e), e
		case e.Op == opExtend && e.Outcome == done:
			grants[h] = e
		case e.Op != opExtend && e.Outcome != refused:
			if at, ok := ended[h]; !ok || e.Begin < at {
				ended[h] = e.Begin
			}
		}
	}
	for key, claims := range leases {
		slices.SortFunc(claims, func(a, b event) int { return a.Token - b.Token })
		for i, next := range claims[1:] {
			held := claims[i]
			h := holding{key, held.Token}
			end, over := ended[h]
			// The end of a session may end its leases.
			gone := slices.ContainsFunc(left[held.Client], func(e event) bool { return e.End > held.End && e.Begin < next.End })
			if !gone && !(over && end < next.End) && leaseLeft(grants[h], next, jumps) > leaseSlack {
				broken = append(broken, fmt.Sprintf("held twice: %s got %s with token %d at %s, while %s has a lease with token %d until %s",
					next.Client, key, next.Token, next.At.UTC().Format(time.RFC3339Nano), held.Client, held.Token, grants[h].Until.Format(time.RFC3339Nano)))
			}
			if next.Token == held.Token {
				broken = append(broken, fmt.Sprintf("held twice: %s and %s got %s with the same token %d", held.Client, next.Client, key, next.Token))
			}
		}
	}
	return broken
}
