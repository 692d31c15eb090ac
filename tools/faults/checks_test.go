package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// sequence returns a history with events that follow each other, a second apart.
func sequence(events ...event) *history {
	h := &history{}
	for i, e := range events {
		e.Begin, e.End = time.Duration(2*i)*time.Second/2, time.Duration(2*i+1)*time.Second/2
		e.At = time.Unix(0, 0).Add(e.End)
		if e.Outcome == "" {
			e.Outcome = done
		}
		h.events = append(h.events, e)
	}
	return h
}

func at(seconds float64) time.Time {
	return time.Unix(0, 0).Add(time.Duration(seconds * float64(time.Second)))
}

// Each history breaks the promise that is named; "" for none.
func TestBrokenPromisesAboutEventsAreFound(t *testing.T) {
	claim := func(client string, token int, until float64) event {
		return event{Client: client, Op: opClaim, Key: "w", Token: token, Until: at(until)}
	}
	call := func(client, op string, token int, o outcome) event {
		return event{Client: client, Op: op, Key: "w", Token: token, Until: at(100), Outcome: o}
	}
	lock := func(client string, o outcome) event {
		return event{Client: client, Op: opLock, Key: files[0], Outcome: o}
	}
	unlock := func(client string, o outcome) event { return event{Client: client, Op: opUnlock, Outcome: o} }
	status := func(value string, times ...string) event {
		return event{Client: "s", Op: opStatus, Key: "m", Value: value, Times: times}
	}
	got, read := event{Client: reader, Op: opGot, Key: "m"}, event{Client: reader, Op: opRead}
	leave := func(client string) event { return event{Client: client, Op: opLeave} }
	join := func(client, guid string) event { return event{Client: client, Op: opJoin, Value: guid} }
	jump := func(by time.Duration) event {
		return event{Client: "faults", Op: opFault, Text: jumpsOfTheClock, Shift: by}
	}
	one, two := "1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z"
	for what, c := range map[string]struct {
		broken string
		events []event
	}{
		"the same agent":             {"", []event{join("a", "1"), join("b", "2"), join("a", "1")}},
		"another agent":              {"identity:", []event{join("a", "1"), join("a", "2")}},
		"two agents in one":          {"identity:", []event{join("a", "1"), join("b", "1")}},
		"a true receipt":             {"", []event{status("stored", one, "", ""), read, got, status("read", one, two, two)}},
		"read by nobody":             {"receipt:", []event{status("read", one, two, two)}},
		"a receipt that goes back":   {"receipt:", []event{read, got, status("read", one, two, two), status("delivered", one, two, "")}},
		"a time that changes":        {"receipt:", []event{status("stored", one, "", ""), status("delivered", two, two, "")}},
		"times out of order":         {"receipt:", []event{status("delivered", two, one, "")}},
		"again after a kill":         {"", []event{read, got, leave(reader), read, got}},
		"again without a kill":       {"twice:", []event{read, got, read, read, got}},
		"a lease that ended":         {"", []event{claim("a", 1, 0.9), claim("b", 2, 9)}},
		"a lease that has not ended": {"held twice:", []event{claim("a", 1, 9), claim("b", 2, 9)}},
		"one token twice":            {"held twice:", []event{claim("a", 1, 0), claim("b", 1, 9)}},
		"returned":                   {"", []event{claim("a", 1, 9), call("a", opReject, 1, done), claim("b", 2, 9)}},
		"set forward":                {"", []event{claim("a", 1, 9), jump(time.Hour), claim("b", 2, 9)}},
		"set forward by less":        {"held twice:", []event{claim("a", 1, 9), jump(time.Second), claim("b", 2, 9)}},
		"set back":                   {"held twice:", []event{claim("a", 1, 9), jump(-time.Hour), claim("b", 2, 9)}},
		"set before":                 {"held twice:", []event{jump(time.Hour), claim("a", 1, 9), claim("b", 2, 9)}},
		"returned by a kill":         {"", []event{claim("a", 1, 9), leave("a"), claim("b", 2, 9)}},
		"completed once":             {"", []event{claim("a", 1, 9), call("a", opExtend, 1, done), call("a", opComplete, 1, done), call("a", opComplete, 1, refused)}},
		"completed twice":            {"lease:", []event{claim("a", 1, 9), call("a", opComplete, 1, done), call("a", opComplete, 1, done)}},
		"claimed after the end":      {"lease:", []event{claim("a", 1, 9), call("a", opComplete, 1, done), claim("a", 2, 9)}},
		"completed by a former one":  {"lease:", []event{claim("a", 1, 0), claim("b", 2, 9), call("a", opComplete, 1, done)}},
		"completed perhaps":          {"", []event{claim("a", 1, 0), call("a", opComplete, 1, unknown), claim("b", 2, 9), call("b", opComplete, 2, done)}},
		"claimed in turns":           {"", []event{lock("a", done), lock("b", refused), unlock("a", done), lock("b", done)}},
		"claimed by two":             {"claim:", []event{lock("a", done), lock("b", done)}},
		"refused without a holder":   {"claim:", []event{lock("a", done), unlock("a", done), lock("b", refused)}},
		"free after a kill":          {"", []event{lock("a", done), leave("a"), lock("b", refused), lock("b", done)}},
		"held by who came back":      {"claim:", []event{lock("a", done), leave("a"), join("a", "1"), lock("b", refused)}},
		"claimed perhaps":            {"", []event{lock("a", unknown), lock("b", refused)}},
		"a list":                     {"", []event{lock("a", done), {Client: "b", Op: opList, Value: `{"` + files[0] + `":"a"}`}}},
		"a list of the past":         {"claim:", []event{lock("a", done), unlock("a", done), {Client: "b", Op: opList, Value: `{"` + files[0] + `":"a"}`}}},
	} {
		h := sequence(c.events...)
		orders, _, _ := checkOrders(h)
		broken := slices.Concat(checkEvents(h), orders)
		if c.broken == "" && len(broken) > 0 {
			t.Errorf("%s: %q", what, broken)
		}
		if c.broken != "" && !slices.ContainsFunc(broken, func(b string) bool { return strings.HasPrefix(b, c.broken) }) {
			t.Errorf("%s: not found in %q", what, broken)
		}
	}
}

// A long history is judged in windows, of which each may begin with any holder, and what is wrong in any of them is found.
func TestLongHistoriesAreJudgedInWindows(t *testing.T) {
	var events []event
	for range windowCalls {
		events = append(events, event{Client: "a", Op: opLock, Key: files[0]}, event{Client: "b", Op: opLock, Key: files[0], Outcome: refused},
			event{Client: "c", Op: opLock, Key: files[0], Outcome: unknown}, event{Client: "c", Op: opUnlock}, event{Client: "a", Op: opUnlock})
	}
	broken, judged, undecided := checkOrders(sequence(events...))
	if len(broken) > 0 || undecided > 0 || judged < 5 {
		t.Errorf("%q, %d windows, %d undecided", broken, judged, undecided)
	}
	last := len(events) - 4
	events[last].Outcome = done // two hold it
	if broken, _, _ := checkOrders(sequence(events...)); len(broken) != 1 {
		t.Errorf("%q", broken)
	}
}

// A history is written as it is recorded.
func TestHistoriesAreWritten(t *testing.T) {
	var lines strings.Builder
	h := &history{lines: &lines}
	h.add(operation{"a", 1, true})
	h.note(event{Client: "b", Op: opClaim, Key: "x"})
	if n := strings.Count(lines.String(), "\n"); n != 2 || !strings.Contains(lines.String(), `"text":"a 1"`) || h.failed != nil {
		t.Errorf("%s, %v", lines.String(), h.failed)
	}
}
