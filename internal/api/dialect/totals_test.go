package dialect_test

import (
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/hub"
)

func TestTotals(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for params, want := range map[string]hub.TotalsQuery{
		`{}`:        {ByAgent: true, ByProject: true, ByDay: true},
		`{"by":[]}`: {},
		`{"by":["day"],"agentId":"a","project":"/p","since":"2026-01-02T03:04:05Z"}`: {AgentID: "a", Project: "/p", Since: since, ByDay: true},
	} {
		f := &fakeHub{}
		answer, _ := call(t, newService(f), method(dialect.MethodTotals, params))
		got := read[dialect.Totals](t, answer)
		if len(got.Totals) != 1 || got.Totals[0] != (dialect.Total{Agent: "echo", Day: "2026-01-31", Tasks: 2, Completed: 1, Failed: 1, DurationMS: 1500}) || !got.Truncated {
			t.Errorf("%s: %+v", params, got)
		}
		if f.totals != want {
			t.Errorf("%s: %+v, want %+v", params, f.totals, want)
		}
	}
	for params, field := range map[string]string{`{"by":["week"]}`: "by", `{"since":"yesterday"}`: "since", `{"by":"day"}`: "by"} {
		answer, _ := call(t, newService(&fakeHub{}), method(dialect.MethodTotals, params))
		wantError(t, answer, jsonrpc.CodeInvalidParams, "INVALID_PARAMS", field)
	}
}
