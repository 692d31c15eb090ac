// Package drivers knows every driver of agents, for runner.Options.Drivers.
package drivers

import (
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/acp"
	"github.com/parleyhub/parley/internal/hub/runner/claudestdio"
	"github.com/parleyhub/parley/internal/hub/runner/codexappserver"
)

// All are the drivers by the names that definitions use. The drivers exec and
// echo are the runner's own.
func All() map[string]runner.Driver {
	return map[string]runner.Driver{
		runner.DriverClaudeStdio:    claudestdio.Open,
		runner.DriverCodexAppServer: codexappserver.Open,
		runner.DriverACP:            acp.Open,
	}
}
