// Package codexappserver drives codex through its app-server: JSON-RPC on
// standard input and output, with threads that live on disk, streamed answers,
// approvals and interrupts.
package codexappserver

import (
	"slices"
	"strings"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// How codex asks and what its sandbox allows, unless the definition's arguments
// say otherwise. "untrusted" asks before every command that is not known to only
// read; with permissions that are granted anyway codex asks only to leave its
// sandbox.
const (
	policyAsk     = "untrusted"
	policyGranted = "on-request"
	sandbox       = "workspace-write"
)

// Open makes an agent of a completed definition. It is a runner.Driver.
func Open(def runner.Definition, opts runner.Options) (runner.Agent, error) {
	return duplex.NewAgent(def, opts, &dialect{def: def}), nil
}

// dialect implements duplex.Dialect.
type dialect struct{ def runner.Definition }

// client is who codex is told that it speaks with; the version is that of this
// client's use of the protocol.
var client = clientInfo{Name: "parley", Title: "Parley", Version: "1"}

func (d *dialect) Args(string) []string {
	args := slices.Clone(d.def.Args)
	if !slices.Contains(args, "app-server") {
		args = append([]string{"app-server"}, args...)
	}
	return args
}

func (d *dialect) Connect(conn duplex.Conn) duplex.Peer {
	p := &peer{dialect: d, conn: conn}
	p.rpc = newRPC(conn.Stdin)
	p.rpc.start(conn, p)
	return p
}

// thread are the settings of a thread. What the definition's arguments configure
// (-c approval_policy=…) is not overridden.
func (d *dialect) thread(workDir string) threadParams {
	params := threadParams{Cwd: workDir, Model: d.def.Model}
	if !d.configures("approval_policy") {
		params.ApprovalPolicy = policyAsk
		if d.def.Permissions == runner.PermissionsAllow {
			params.ApprovalPolicy = policyGranted
		}
	}
	if !d.configures("sandbox_mode") {
		params.Sandbox = sandbox
	}
	return params
}

func (d *dialect) configures(key string) bool {
	return slices.ContainsFunc(d.def.Args, func(a string) bool { return strings.HasPrefix(a, key+"=") })
}
