// Package drivers speaks the protocols of coding agents whose process stays open between turns: claude's stdio
// protocol, codex's app-server and the Agent Client Protocol. Package duplex keeps the processes and the turns; each
// [Dialect] here translates one protocol.
package drivers

import (
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// clientVersion is reported to agents. It versions Parley's use of their protocols, not Parley.
const clientVersion = "1"

// All returns the drivers by the names that definitions use, for
// runner.Options.Drivers. Package runner has the drivers exec and echo itself.
func All() map[string]runner.Driver {
	open := func(def runner.Definition, opts runner.Options) (runner.Agent, error) {
		return duplex.NewAgent(def, opts, Dialect(def)), nil
	}
	return map[string]runner.Driver{
		runner.DriverClaudeStdio:    open,
		runner.DriverCodexAppServer: open,
		runner.DriverACP:            open,
	}
}

// Dialect returns the protocol of a completed definition's driver, which must be one of [All].
func Dialect(def runner.Definition) duplex.Dialect {
	switch def.Driver {
	case runner.DriverClaudeStdio:
		return claudeDialect{def}
	case runner.DriverCodexAppServer:
		return codexDialect{def}
	default:
		return acpDialect{def}
	}
}
