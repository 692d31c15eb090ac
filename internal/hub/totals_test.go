package hub

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub/runner"
)

func TestTotalsGroupTasks(t *testing.T) {
	day := func(d int) int64 { return time.Date(2026, 1, d, 12, 0, 0, 0, time.Local).UnixNano() }
	h := &Hub{index: newIndex()}
	for i, x := range []head{
		{Agent: "a", State: a2a.TaskStateCompleted, Created: day(1), Spent: spent{project: "/p", ms: 1000, input: 5, output: 2, cached: 1, cost: 0.5}},
		{Agent: "a", State: a2a.TaskStateFailed, Created: day(2), Spent: spent{project: "/p", ms: 500, cost: 0.25}},
		{Agent: "b", State: a2a.TaskStateRejected, Created: day(2)},
		{Agent: "b", State: a2a.TaskStateCanceled, Created: day(2)},
		{Agent: "b", State: a2a.TaskStateWorking, Created: day(2), Spent: spent{project: "/q"}},
	} {
		x.ID, x.Context, x.Updated = a2a.TaskID(rune('0'+i)), "c", x.Created+int64(i)
		h.index.add(x)
	}
	for name, tt := range map[string]struct {
		query TotalsQuery
		want  []Total
	}{
		"all together": {TotalsQuery{}, []Total{{Tasks: 5, Completed: 1, Failed: 2, Canceled: 1, Duration: 1500 * time.Millisecond,
			Usage: runner.Usage{InputTokens: 5, OutputTokens: 2, CachedTokens: 1, CostUSD: 0.75}}}},
		"by agent since the second": {TotalsQuery{ByAgent: true, Since: time.Unix(0, day(2))}, []Total{
			{Agent: "a", Tasks: 1, Failed: 1, Duration: 500 * time.Millisecond, Usage: runner.Usage{CostUSD: 0.25}},
			{Agent: "b", Tasks: 3, Failed: 1, Canceled: 1}}},
		"by day of an agent": {TotalsQuery{ByDay: true, AgentID: "a"}, []Total{
			{Day: "2026-01-02", Tasks: 1, Failed: 1, Duration: 500 * time.Millisecond, Usage: runner.Usage{CostUSD: 0.25}},
			{Day: "2026-01-01", Tasks: 1, Completed: 1, Duration: time.Second,
				Usage: runner.Usage{InputTokens: 5, OutputTokens: 2, CachedTokens: 1, CostUSD: 0.5}}}},
		"by project of another": {TotalsQuery{ByProject: true, Project: "/q"}, []Total{{Project: "/q", Tasks: 1}}},
		"of nobody":             {TotalsQuery{AgentID: "x"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got, more := h.Totals(tt.query); !reflect.DeepEqual(got, tt.want) || more {
				t.Errorf("got %+v (more: %v)\nwant %+v", got, more, tt.want)
			}
		})
	}
}

// A task counts on the day of its creation in the hub's time zone, wherever a client is and however long it took.
func TestTheDayOfATotalIsThatOfTheHub(t *testing.T) {
	created := time.Date(2026, 3, 1, 23, 30, 0, 0, time.UTC)
	h := &Hub{index: newIndex()}
	for i := range 3 {
		x := head{ID: a2a.TaskID(rune('0' + i)), Agent: "removed", Context: "c", State: a2a.TaskStateCompleted, Created: created.UnixNano()}
		x.Updated, x.Spent = created.Add(26*time.Hour).UnixNano()+int64(i), spent{ms: 26 * 3600 * 1000, cost: 0.1}
		h.index.add(x)
	}
	for zone, want := range map[*time.Location]string{time.UTC: "2026-03-01", time.FixedZone("east", 3600): "2026-03-02", time.FixedZone("west", -24*3600+1): "2026-02-28"} {
		got, _ := h.Totals(TotalsQuery{zone: zone, ByDay: true, ByAgent: true, Since: created.In(time.FixedZone("client", 9*3600))})
		if len(got) != 1 || got[0].Day != want || got[0].Agent != "removed" || got[0].Tasks != 3 || got[0].Duration != 3*26*time.Hour || got[0].Usage.CostUSD != 0.3 {
			t.Errorf("%s: %+v", zone, got)
		}
	}
	if got, _ := h.Totals(TotalsQuery{Since: created.Add(time.Nanosecond)}); got != nil {
		t.Errorf("tasks before: %+v", got)
	}
}

func TestTotalsAreBounded(t *testing.T) {
	h := &Hub{index: newIndex()}
	for i := range MaxTotals + 1 {
		id := a2a.NewTaskID()
		h.index.add(head{ID: id, Agent: string(id), Context: "c", State: a2a.TaskStateCompleted, Updated: int64(i + 1)})
	}
	if got, more := h.Totals(TotalsQuery{ByAgent: true}); len(got) != MaxTotals || !more {
		t.Errorf("%d totals, more: %v", len(got), more)
	}
}

// TestWhatATaskTookSurvivesARestart stores what tasks took with their heads, on the bus and in memory.
func TestWhatATaskTookSurvivesARestart(t *testing.T) {
	big := spent{project: "/a b/ü", ms: math.MaxUint32, input: 1, output: 2, cached: 3, cost: 0.1}
	for _, s := range []spent{{}, big, {project: "/p"}, {ms: 5, cost: 0.25}} {
		got, err := decodeSpent(s.encode())
		if err != nil || got != s {
			t.Errorf("%+v became %+v, %v", s, got, err)
		}
	}
	if saturated(-1) != 0 || saturated(math.MaxInt64) != math.MaxUint32 {
		t.Error("numbers are not bounded")
	}
}

func FuzzDecodeSpent(f *testing.F) {
	for _, s := range []string{"", "1 2 3 4 0.5 L3A", "1 2 3 4 0.5", "1 2 3 4 NaN L3A", "1 2 3 4 1e400 L3A", "-1 2 3 4 0 ", "1 2 3 4 0 !", "1 2 3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := decodeSpent(s)
		if err != nil {
			if got != (spent{}) {
				t.Errorf("%q: %+v with %v", s, got, err)
			}
			return
		}
		again, err := decodeSpent(got.encode())
		if err != nil || again != got {
			t.Errorf("%q: %+v became %+v, %v", s, got, again, err)
		}
	})
}

func TestMetersCountTurns(t *testing.T) {
	var h Hub
	h.meters.turnEnded("a", 300*time.Millisecond, runner.Usage{InputTokens: 3, CostUSD: 0.5})
	h.meters.turnEnded("a", time.Hour+time.Second, runner.Usage{InputTokens: 4})
	h.meters.taskEnded("a", a2a.TaskStateCompleted)
	for range 2 * maxMeters {
		h.meters.taskEnded(string(a2a.NewTaskID()), a2a.TaskStateFailed)
	}
	all := h.Meters()
	if len(all) != maxMeters+1 {
		t.Fatalf("%d meters", len(all))
	}
	for _, m := range all {
		switch m.Agent {
		case "a":
			if m.Turns != 2 || m.Tasks["completed"] != 1 || m.Classes[0.1] != 0 || m.Classes[0.5] != 1 || m.Classes[3600] != 1 ||
				m.Usage != (runner.Usage{InputTokens: 7, CostUSD: 0.5}) || m.Seconds < 3601.2 || m.Seconds > 3601.4 {
				t.Errorf("%+v", m)
			}
		case otherAgents:
			if m.Tasks["failed"] != maxMeters+1 {
				t.Errorf("%+v", m)
			}
		}
	}
}
