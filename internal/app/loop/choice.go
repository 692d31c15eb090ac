package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/swarm"
)

// Rule says which items a [Choice] gives to its swarm.
type Rule string

// The rules.
const (
	RuleAuto   Rule = "auto"   // those that suit a swarm
	RuleAlways Rule = "always" // all
	RuleNever  Rule = "never"  // none
)

// Valid reports whether r is one of the rules.
func (r Rule) Valid() bool { return r == RuleAuto || r == RuleAlways || r == RuleNever }

// suits reports whether an item is for a swarm, and why. With RuleAuto a mark at the begin of its text decides; without
// one an item suits a swarm if it has two or more points, which can be worked on at the same time.
func (r Rule) suits(item ralph.Item) (bool, string) {
	switch r {
	case RuleAlways:
		return true, "every item is for the swarm"
	case RuleNever:
		return false, "no item is for the swarm"
	}
	if m, _ := cutMark(item.Text); m != "" {
		return m == swarmMark, "it is marked " + m
	}
	switch n := len(points(item.Text)); n {
	case 0:
		return false, "it has no points"
	case 1:
		return false, "it has only one point"
	default:
		return true, fmt.Sprintf("it has %d points", n)
	}
}

// The marks with which an item's text may begin.
const (
	swarmMark = "[swarm]"
	agentMark = "[agent]"
)

// cutMark returns the mark of an item's text, "" without one, and the rest.
func cutMark(s string) (mark, rest string) {
	for _, m := range []string{swarmMark, agentMark} {
		if len(s) > len(m) && strings.EqualFold(s[:len(m)], m) {
			return m, strings.TrimSpace(s[len(m):])
		}
	}
	return "", s
}

var pointPattern = text.Pattern(`^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+(\S.*)$`)

// points returns the texts of the list points in an item, after its first line.
func points(s string) (found []string) {
	_, rest, _ := strings.Cut(s, "\n")
	for line := range strings.Lines(rest) {
		if m := pointPattern().FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			found = append(found, m[1])
		}
	}
	return found
}

// wholeItem is the plan of a job that is not split: one agent does it, and one that fails is replaced.
func wholeItem(j ralph.Job) []swarm.SubTaskPlan {
	return []swarm.SubTaskPlan{{ID: "item", Description: j.Prompt()}}
}

// maxPart bounds the text of a point, which each of its agents gets twice: in the item and by itself.
const maxPart = 4 << 10

// itemPoints is the plan of a job with a sub-task for each point, or that of the whole item if there are not several or
// the description would be too long.
func itemPoints(j ralph.Job) []swarm.SubTaskPlan {
	found, whole := points(j.Item.Text), j.Prompt()
	if len(found) < 2 || len(whole)+2*maxPart > swarm.MaxText {
		return wholeItem(j)
	}
	parts := make([]swarm.SubTaskPlan, len(found))
	for i, point := range found {
		parts[i] = swarm.SubTaskPlan{
			ID:          fmt.Sprintf("point-%d", i+1),
			Description: fmt.Sprintf("%s\n\nOther agents do the other points. Do only point %d: %s", whole, i+1, text.Clip(point, maxPart)),
		}
	}
	return parts
}

// Choice is a [ralph.Dispatcher] that gives each item to an agent or to a swarm. It records what it chose and why, and
// the swarms that cannot go on: the loop decides then whether there is another attempt.
type Choice struct {
	Agent  ralph.Dispatcher // nil: the swarm gets every item
	Swarm  ralph.Dispatcher
	Rule   Rule
	Record func(ralph.Step) error // see [ralph.Options]
}

// swarmSuffix ends the references of swarms that were chosen, so that Resume finds the same one again, whatever has
// become of the item.
const swarmSuffix = "-swarm"

// Dispatch implements [ralph.Dispatcher].
func (c *Choice) Dispatch(ctx context.Context, j ralph.Job, begins func(string) error) (ralph.Outcome, error) {
	bySwarm, why := true, ""
	if c.Agent != nil {
		bySwarm, why = c.Rule.suits(j.Item)
		who := "the agent: "
		if bySwarm {
			who = "the swarm: "
		}
		if err := c.step(ralph.Chosen, j, "", who+why); err != nil {
			return ralph.Outcome{}, err
		}
	}
	j = unmarked(j)
	if !bySwarm {
		return c.Agent.Dispatch(ctx, j, begins)
	}
	ref := ""
	o, err := c.Swarm.Dispatch(ctx, j, func(id string) error {
		ref = id
		return begins(id)
	})
	return o, c.escalated(j, ref, err)
}

// Resume implements [ralph.Dispatcher].
func (c *Choice) Resume(ctx context.Context, j ralph.Job, ref string) (ralph.Outcome, error) {
	j = unmarked(j)
	if c.Agent != nil && !strings.HasSuffix(ref, swarmSuffix) {
		return c.Agent.Resume(ctx, j, ref)
	}
	o, err := c.Swarm.Resume(ctx, j, ref)
	return o, c.escalated(j, ref, err)
}

func unmarked(j ralph.Job) ralph.Job {
	_, j.Item.Text = cutMark(j.Item.Text)
	return j
}

// escalated records that a swarm could not go on. It returns err, or why that cannot be recorded.
func (c *Choice) escalated(j ralph.Job, ref string, err error) error {
	if !errors.Is(err, errSwarmFailed) || errors.Is(err, errStopped) {
		return err
	}
	if failed := c.step(ralph.Escalated, j, ref, err.Error()); failed != nil {
		return failed
	}
	return err
}

func (c *Choice) step(kind ralph.Kind, j ralph.Job, ref, detail string) error {
	line, _, _ := strings.Cut(j.Item.Text, "\n")
	s := ralph.Step{Kind: kind, Item: j.Item.ID, Text: text.Clip(line, 200), Attempt: j.Attempt, Ref: ref, Detail: text.Clip(detail, 1000), Time: time.Now().UTC()}
	if err := c.Record(s); err != nil {
		return &ralph.Error{Code: ralph.CodeRecord, Message: "a step of the loop cannot be logged", Err: err}
	}
	return nil
}
