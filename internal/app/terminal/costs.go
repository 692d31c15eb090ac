package terminal

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/hub/events"
)

// chartDays is how many days the small charts have.
const chartDays = 14

func costsScreen(now func() time.Time) *screen {
	by := []string{"day", "agent", "project"}
	return &screen{
		kinds: []string{"turn.ended", "task.state"},
		next:  func() { by = append(by[1:], by[0]) },
		load: func(ctx context.Context, h Hub, _ []events.Event) (table, error) {
			group := by[0]
			totals, err := h.Totals(ctx, dialect.TotalsParams{By: []string{group}})
			if err != nil {
				return table{}, err
			}
			daily := totals
			if group != "day" {
				if daily, err = h.Totals(ctx, dialect.TotalsParams{By: []string{"day"}}); err != nil {
					return table{}, err
				}
			}
			t := costTable(group, totals.Totals)
			t.above = append(costLines(now(), daily.Totals), t.above...)
			return t, nil
		},
	}
}

// costLines says what today has cost, and draws the last days.
func costLines(now time.Time, daily []dialect.Total) []line {
	byDay := map[string]dialect.Total{}
	for _, t := range daily {
		byDay[t.Day] = t
	}
	// The hub's days begin at midnight where it runs.
	today := byDay[now.Local().Format(time.DateOnly)]
	chart := sparks(days(now.Local(), chartDays, func(day string) float64 { return weight(byDay[day]) }))
	return []line{
		{role: bold, text: " Today: " + money(today.Tasks, today.Failed, today.CostUSD)},
		{role: busy, text: fmt.Sprintf(" %s the last %d days", chart, chartDays)},
	}
}

// weight is what charts show of a sum: the cost; among those without any, the tasks.
func weight(t dialect.Total) float64 { return cmp.Or(t.CostUSD, float64(t.Tasks)/1e9) }

func costTable(group string, totals []dialect.Total) table {
	t := table{columns: []column{{strings.ToUpper(group), 20}, {"TASKS", 6}, {"FAILED", 6}, {"TIME", 6}, {"TOKENS", 8}, {"COST", 8}, {"", 0}}}
	var most float64
	var sum dialect.Total
	for _, s := range totals {
		most = max(most, weight(s))
		sum.CostUSD += s.CostUSD
		sum.Tasks += s.Tasks
		sum.Failed += s.Failed
	}
	if group != "day" {
		slices.SortStableFunc(totals, func(a, b dialect.Total) int { return cmp.Compare(weight(b), weight(a)) })
	}
	t.above = []line{{role: dim, text: fmt.Sprintf(" By %s (g: another way), in all %s", group, money(sum.Tasks, sum.Failed, sum.CostUSD))}}
	for _, s := range totals {
		name := clean(cmp.Or(s.Day, s.Agent, s.Project, "conversations without one"))
		r := row{key: name, subject: subject{agent: s.Agent}, cells: []string{
			name, fmt.Sprint(s.Tasks), fmt.Sprint(s.Failed), display.Duration(time.Duration(s.DurationMS) * time.Millisecond), fmt.Sprint(s.InputTokens + s.OutputTokens),
			dollars(s.CostUSD), bar(weight(s), most, 10),
		}}
		t.rows = append(t.rows, r.found())
	}
	return t
}
