package drivers_test

import (
	"testing"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/drivers"
)

// Every built-in agent, and so every driver that it names, can be opened.
func TestEveryBuiltinAgentOpens(t *testing.T) {
	for id, def := range runner.Builtin() {
		if _, err := runner.Open(def, runner.Options{Drivers: drivers.All()}); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	def := runner.Builtin()["gemini"]
	def.Driver = runner.DriverACP
	if _, err := runner.Open(def, runner.Options{Drivers: drivers.All()}); err != nil {
		t.Errorf("gemini with ACP: %v", err)
	}
}
