package main

import (
	"fmt"
	"slices"
)

// operation is one thing that a client has sent. Its sender sends the next one after it has ended.
type operation struct {
	sender       string
	number       int
	acknowledged bool // the hub has confirmed it; otherwise the outcome is not known
}

func (o operation) text() string { return fmt.Sprintf("%s %d", o.sender, o.number) }

func (h *history) counts() (acknowledged, unknown int) {
	for _, o := range h.ops {
		if o.acknowledged {
			acknowledged++
		} else {
			unknown++
		}
	}
	return acknowledged, unknown
}

// check returns the promises that the hub has broken. found has the texts of each sender, as the hub has them in the end.
func check(ops []operation, found map[string][]string) (broken []string) {
	count, where := map[string]int{}, map[string]int{}
	for _, texts := range found {
		for i, text := range slices.Backward(texts) {
			count[text]++
			where[text] = i // the first one
		}
	}
	for _, o := range ops {
		switch n := count[o.text()]; {
		case n == 0 && o.acknowledged:
			broken = append(broken, fmt.Sprintf("lost: %q was acknowledged", o.text()))
		case n > 1:
			broken = append(broken, fmt.Sprintf("twice: %q is there %d times", o.text(), n))
		}
	}
	last := map[string]int{} // where the sender's last acknowledged operation is
	for _, o := range ops {
		at, there := where[o.text()]
		if !there || !o.acknowledged {
			continue // the hub may still have worked on one without an answer when the next one came
		}
		if before, ok := last[o.sender]; ok && at < before {
			broken = append(broken, fmt.Sprintf("order: %q comes before what %s had sent earlier", o.text(), o.sender))
		}
		last[o.sender] = max(last[o.sender], at)
	}
	return broken
}

// mutate breaks what was found as a fault of the hub would. It reports false if it cannot.
func mutate(kind string, all *history, found *map[string][]string) bool {
	for i, o := range all.ops {
		texts := (*found)[o.sender]
		at := slices.Index(texts, o.text())
		if !o.acknowledged || at < 0 || i == 0 {
			continue
		}
		switch {
		case kind == "lost":
			(*found)[o.sender] = slices.Delete(texts, at, at+1)
		case kind == "twice":
			(*found)[o.sender] = append(texts, texts[at])
		case kind == "order" && at+1 < len(texts) && isAcknowledged(all.ops, texts[at+1]):
			texts[at], texts[at+1] = texts[at+1], texts[at]
		default:
			continue
		}
		return true
	}
	return false
}

func isAcknowledged(ops []operation, text string) bool {
	return slices.ContainsFunc(ops, func(o operation) bool { return o.acknowledged && o.text() == text })
}
