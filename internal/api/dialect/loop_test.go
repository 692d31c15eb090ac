package dialect_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/ralph"
)

func TestLoopStepsAreLogged(t *testing.T) {
	var logged []string
	s := newService(&fakeHub{}, func(c *dialect.Config) {
		c.LoopStep = func(list string, s ralph.Step) (bool, error) {
			if s.Item == "full" {
				return false, errors.New("the disk is full")
			}
			logged = append(logged, list+" "+string(s.Kind)+" "+s.Item)
			return true, nil
		}
	})
	run := func(params string) string {
		answer, _ := call(t, s, method(dialect.MethodLoopStep, params))
		return answer
	}
	if got := read[dialect.LoopStepResult](t, run(`{"list":"TODO.md","step":{"kind":"dispatched","item":"a"}}`)); !got.Logged {
		t.Errorf("%+v", got)
	}
	if len(logged) != 1 || logged[0] != "TODO.md dispatched a" {
		t.Errorf("%q", logged)
	}
	for params, field := range map[string]string{
		`{"step":{"kind":"began"}}`:             "list",
		`{"list":"x","step":{"kind":"dances"}}`: "step.kind",
		`{"list":"x","step":{"kind":"began","detail":"` + strings.Repeat("x", 20<<10) + `"}}`: "step",
		`{"list":3}`: "params",
	} {
		wantError(t, run(params), jsonrpc.CodeInvalidParams, "INVALID_PARAMS", field)
	}
	if answer := run(`{"list":"x","step":{"kind":"began","item":"full"}}`); !strings.Contains(answer, `"error"`) || len(logged) != 1 {
		t.Errorf("%s %q", answer, logged)
	}
	answer, _ := call(t, newService(&fakeHub{}), method(dialect.MethodLoopStep, `{"list":"x","step":{"kind":"began"}}`))
	if !strings.Contains(answer, "-32601") {
		t.Errorf("without LoopStep: %s", answer)
	}
}
