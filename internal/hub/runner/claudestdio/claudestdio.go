// Package claudestdio drives claude over its stdio protocol: prompts and control
// messages as JSON lines in, the event stream and permission requests out, one
// process for many turns.
package claudestdio

import (
	"slices"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// protocolArgs switch the protocol on. The tool AskUserQuestion is taken away:
// it wants an answer in a form that a permission request has no place for, and
// without it claude asks in its answer.
var protocolArgs = []string{
	"-p",
	"--input-format", "stream-json",
	"--output-format", "stream-json",
	"--verbose",
	"--include-partial-messages",
	"--replay-user-messages",
	"--permission-prompt-tool", "stdio",
	"--disallowedTools=AskUserQuestion",
}

// Open makes an agent of a completed definition. It is a runner.Driver.
//
// The permission tool that is called stdio is not in claude's help: the
// definition's Probe.MinVersion keeps older programs away.
func Open(def runner.Definition, opts runner.Options) (runner.Agent, error) {
	return duplex.NewAgent(def, opts, &dialect{def: def}), nil
}

// dialect implements duplex.Dialect.
type dialect struct{ def runner.Definition }

func (d *dialect) Args(resume string) []string {
	args := slices.Concat(protocolArgs, d.def.Args, d.def.ModelArguments())
	if resume != "" {
		args = append(args, "--resume", resume)
	}
	return args
}

func (d *dialect) Connect(conn duplex.Conn) duplex.Peer {
	p := &peer{
		conn:  conn,
		out:   duplex.NewOutbox(conn.Stdin),
		done:  make(chan struct{}),
		calls: make(map[string]chan controlLine),
	}
	go p.read()
	return p
}
