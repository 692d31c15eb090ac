package terminal

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/base/text"
)

// gantt is a chart of attempts over time.
type gantt struct{ spans []span }

// span is an attempt. Its end is zero while it lasts.
type span struct {
	id, who, state string
	from, to       time.Time
}

// maxSpans bounds the lines of a chart; the latest attempts are shown.
const maxSpans = 60

// begin begins an attempt, unless one with the same id lasts: it then gets another agent.
func (g *gantt) begin(id, who string, at time.Time) {
	if s := g.open(id); s != nil {
		if s.who == who || who == "" {
			return
		}
		s.to, s.state = at, "failed"
	}
	g.spans = append(g.spans, span{id: id, who: who, from: at, state: "running"})
}

func (g *gantt) end(id, state string, at time.Time) {
	if s := g.open(id); s != nil {
		s.to, s.state = at, state
		if state == "pending" { // it is to be tried again
			s.state = "failed"
		}
	}
}

func (g *gantt) open(id string) *span {
	for i := len(g.spans) - 1; i >= 0; i-- {
		if s := &g.spans[i]; s.id == id && s.to.IsZero() {
			return s
		}
	}
	return nil
}

// chartWidth is the width of a chart's bars. With the names it fits into 80 columns.
const chartWidth = 40

// lines draws the chart, nothing if there are no attempts.
func (g *gantt) lines(name string, now time.Time) []line {
	spans := g.spans[max(len(g.spans)-maxSpans, 0):]
	if len(spans) == 0 {
		return nil
	}
	first, last := spans[0].from, spans[0].from
	for i := range spans {
		if spans[i].to.IsZero() {
			last = now
		} else if spans[i].to.After(last) {
			last = spans[i].to
		}
	}
	whole := max(last.Sub(first), time.Second)
	column := func(t time.Time) int {
		return min(max(int(int64(t.Sub(first))*chartWidth/int64(whole)), 0), chartWidth)
	}
	var out lines
	out.section(name)
	out.add(dim, "%s%s %*s", strings.Repeat(" ", 29), clock(first), chartWidth-9, clock(last))
	for _, s := range spans {
		to := s.to
		if to.IsZero() {
			to = now
		}
		from := min(column(s.from), chartWidth-1)
		bar := strings.Repeat("·", from) + strings.Repeat("█", max(column(to)-from, 1))
		label := display.Pad(mark(s.state)+" "+clean(s.id), 16) + " " + display.Pad(clean(s.who), 11)
		out.add(roleOf(s.state), "%s %s %s", label, display.Pad(bar, chartWidth), display.Duration(to.Sub(s.from)))
	}
	return out
}

// sparks draws values as a line of small bars.
func sparks(values []float64) string {
	most := 0.0
	for _, v := range values {
		most = max(most, v)
	}
	var b strings.Builder
	for _, v := range values {
		switch {
		case v <= 0 || most <= 0:
			b.WriteRune('·')
		default:
			b.WriteRune([]rune("▁▂▃▄▅▆▇█")[min(int(v/most*8), 7)])
		}
	}
	return b.String()
}

// days returns one value for each of the last n days up to now.
func days(now time.Time, n int, value func(day string) float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = value(now.AddDate(0, 0, i-n+1).Format(time.DateOnly))
	}
	return out
}

// money names a sum of a group.
func money(tasks, failed int, usd float64) string {
	sum := text.Count(tasks, "task")
	if failed > 0 {
		sum += fmt.Sprintf(", %d failed", failed)
	}
	return sum + ", " + cmp.Or(dollars(usd), "no cost reported")
}
