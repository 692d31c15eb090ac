// Package acp drives agents that speak the Agent Client Protocol, version 1, on
// standard input and output.
package acp

import (
	"log/slog"
	"slices"

	sdk "github.com/coder/acp-go-sdk"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// Open makes an agent of a completed definition. It is a runner.Driver.
func Open(def runner.Definition, opts runner.Options) (runner.Agent, error) {
	return duplex.NewAgent(def, opts, &dialect{def: def}), nil
}

// dialect implements duplex.Dialect.
type dialect struct{ def runner.Definition }

func (d *dialect) Args(string) []string {
	return slices.Concat(d.def.Args, d.def.ModelArguments())
}

func (d *dialect) Connect(conn duplex.Conn) duplex.Peer {
	p := &peer{workDir: conn.WorkDir, gate: newGate(conn)}
	p.conn = sdk.NewConnection(p.handle, p.gate, p.gate)
	// The connection's log lines hold what agents say, secrets and all.
	p.conn.SetLogger(slog.New(slog.DiscardHandler))
	return p
}
