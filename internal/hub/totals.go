package hub

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// spent is what the ended turns of a task have taken. There is one for each stored task in memory, therefore it is
// small: numbers that are too large stay at their maximum.
type spent struct {
	project               string // see task.project
	ms                    uint32
	input, output, cached uint32 // tokens
	cost                  float32
}

// spent returns what the task's turns have taken. mu is held.
func (t *task) spent() spent {
	u := t.tally.Usage
	return spent{
		project: t.project, ms: saturated(t.tally.DurationMs),
		input: saturated(u.InputTokens), output: saturated(u.OutputTokens), cached: saturated(u.CachedTokens), cost: float32(u.CostUSD),
	}
}

func saturated(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

// project returns the directory that work in d is for: the repository of a worktree; "" for the directory of a
// conversation alone.
func (d WorkDir) project() string {
	if d.Policy == runner.WorkDirContext {
		return ""
	}
	return cmp.Or(d.Repository, d.Path)
}

// projectOf returns the project of a task, before its first turn the directory that its message requests.
func projectOf(t *a2a.Task) string {
	if _, ok := t.Metadata[MetaDir]; ok {
		return WorkDirIn(t.Metadata).project()
	}
	if len(t.History) == 0 {
		return ""
	}
	return requestedDir(t.History[0]).Path
}

// encode writes "ms input output cached cost project", without the project if there is none: the end of a header has no
// space.
func (s spent) encode() string {
	b := make([]byte, 0, 64)
	for _, n := range []uint32{s.ms, s.input, s.output, s.cached} {
		b = append(strconv.AppendUint(b, uint64(n), 10), ' ')
	}
	b = strconv.AppendFloat(b, float64(s.cost), 'g', -1, 32)
	if s.project != "" {
		b = base64.RawURLEncoding.AppendEncode(append(b, ' '), []byte(s.project))
	}
	return string(b)
}

// decodeSpent reads what encode has written; "" of an older hub is the zero value.
func decodeSpent(text string) (spent, error) {
	if text == "" {
		return spent{}, nil
	}
	var f [6]string // the last is empty in old ones
	if fields := cut(text, f[:]); fields != 5 && fields != 6 {
		return spent{}, errors.New("a stored task's totals have the wrong number of fields")
	}
	var n [4]uint32
	var err error
	for i := range n {
		v, wrong := strconv.ParseUint(f[i], 10, 32)
		n[i], err = uint32(v), cmp.Or(err, wrong)
	}
	price, wrong := strconv.ParseFloat(f[4], 32)
	if math.IsNaN(price) || math.IsInf(price, 0) {
		wrong = errors.New("the cost is not a number")
	}
	project, wrong2 := base64.RawURLEncoding.DecodeString(f[5])
	if err := cmp.Or(err, wrong, wrong2); err != nil {
		return spent{}, fmt.Errorf("a stored task's totals cannot be read: %w", err)
	}
	return spent{project: string(project), ms: n[0], input: n[1], output: n[2], cached: n[3], cost: float32(price)}, nil
}

// TotalsQuery selects tasks and says how they are grouped.
type TotalsQuery struct {
	AgentID string // "" is any
	Project string // a directory; "" is any
	Since   time.Time
	// ByAgent, ByProject and ByDay make groups; none of them makes one total.
	ByAgent, ByProject, ByDay bool

	zone *time.Location // of the days; nil is the hub's
}

// Total sums up tasks, by the day of their creation in the hub's time zone.
type Total struct {
	Agent, Project, Day string // of the group; Day is 2006-01-02

	Tasks, Completed, Failed, Canceled int // Failed includes rejected ones; the others have not ended
	Duration                           time.Duration
	Usage                              runner.Usage
}

// MaxTotals bounds the groups of one answer.
const MaxTotals = 5000

// Totals sums up the tasks in the store: the latest day first, then by agent and project. Tasks that retention has
// removed do not count. more says that there are further groups.
func (h *Hub) Totals(q TotalsQuery) (totals []Total, more bool) {
	byGroup := map[[3]string]*Total{}
	for e := range h.index.snapshot() {
		if !q.selects(&e) {
			continue
		}
		key := q.group(&e)
		t := byGroup[key]
		if t == nil {
			t = &Total{Agent: key[0], Project: key[1], Day: key[2]}
			byGroup[key] = t
		}
		t.add(&e)
	}
	for _, t := range byGroup {
		t.Usage.CostUSD = math.Round(t.Usage.CostUSD*1e6) / 1e6 // without the digits that spent's precision adds
		totals = append(totals, *t)
	}
	slices.SortFunc(totals, func(a, b Total) int {
		return cmp.Or(cmp.Compare(b.Day, a.Day), cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Project, b.Project))
	})
	if len(totals) > MaxTotals {
		return totals[:MaxTotals], true
	}
	return totals, false
}

func (q *TotalsQuery) selects(e *entry) bool {
	return (q.AgentID == "" || e.agent == q.AgentID) && (q.Project == "" || e.spent.project == q.Project) &&
		(q.Since.IsZero() || e.created >= q.Since.UnixNano())
}

func (q *TotalsQuery) group(e *entry) (key [3]string) {
	if q.ByAgent {
		key[0] = e.agent
	}
	if q.ByProject {
		key[1] = e.spent.project
	}
	if q.ByDay {
		key[2] = time.Unix(0, e.created).In(cmp.Or(q.zone, time.Local)).Format(time.DateOnly)
	}
	return key
}

func (t *Total) add(e *entry) {
	t.Tasks++
	switch e.state {
	case a2a.TaskStateCompleted:
		t.Completed++
	case a2a.TaskStateFailed, a2a.TaskStateRejected:
		t.Failed++
	case a2a.TaskStateCanceled:
		t.Canceled++
	}
	t.Duration += time.Duration(e.spent.ms) * time.Millisecond
	t.Usage.InputTokens += int64(e.spent.input)
	t.Usage.OutputTokens += int64(e.spent.output)
	t.Usage.CachedTokens += int64(e.spent.cached)
	t.Usage.CostUSD += float64(e.spent.cost)
}
