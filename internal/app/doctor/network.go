package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/bus"
)

// network examines the agents' network, where the project takes part in it.
func (p Patient) network(ctx context.Context) []Finding {
	if p.Project == nil || !p.Project.Networked() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, busPatience)
	defer cancel()
	state, b, err := p.inspect(ctx, busfinder.ForNetwork(p.Project))
	var found []Finding
	if err == nil {
		found = append(found, p.describeNetwork(b, state))
	} else {
		found = append(found, p.describeNetworkError(err))
	}
	if p.Project.CrossComputer.Enabled {
		found = append(found, p.withoutLink(ctx, err == nil))
	}
	return found
}

// inspect looks at a network. The bus is closed when it returns.
func (p Patient) inspect(ctx context.Context, where busfinder.Config) (agentnet.Inspection, *bus.Bus, error) {
	b, err := p.dial(ctx, where)
	if err != nil {
		return agentnet.Inspection{}, nil, err
	}
	defer b.Close(ctx) //nolint:errcheck // nothing was written
	state, err := agentnet.Inspect(ctx, b, p.Project.CrossComputer.RegistryBucket)
	return state, b, err
}

// withoutLink says what the agents of this computer have to go on with while the
// cluster cannot be reached, and what waits there for it.
func (p Patient) withoutLink(ctx context.Context, linked bool) Finding {
	ctx, cancel := context.WithTimeout(ctx, busPatience)
	defer cancel()
	state, _, err := p.inspect(ctx, busfinder.Config{Access: bus.AccessNetwork, Name: "doctor"})
	switch {
	case err != nil && linked:
		return good("network link", "no hub runs: without the cluster this computer's agents cannot work together")
	case err != nil:
		return Finding{Check: "network link", Level: Failure, Message: "the cluster cannot be reached, and there is no hub for this computer's agents to go on with",
			Remedy: "start one with: " + p.Program + " start"}
	case linked && state.Mail == 0:
		return good("network link", "without the cluster this computer's agents go on among themselves, on the hub's bus")
	}
	f := Finding{Check: "network link", Level: Warning, Remedy: "restore the connection to the cluster",
		Message: fmt.Sprintf("the link is down: this computer's agents go on among themselves on the hub's bus; %d messages and %d items of work wait there", state.Mail, state.Work)}
	if linked {
		f.Message = fmt.Sprintf("%d messages wait on the hub's bus for the cluster", state.Mail)
		f.Remedy = "they are forwarded as soon as an agent of this computer, or " + p.Program + " network agents --watch, runs"
	}
	return f
}

// describeNetworkError says why the network cannot be used. That no hub runs is
// well where the first agent starts one.
func (p Patient) describeNetworkError(err error) Finding {
	f := Finding{Check: "network", Level: Failure, Message: err.Error(), Remedy: "see: " + p.Program + " config show mcp"}
	if e, ok := errors.AsType[*bus.Error](err); ok {
		if !p.Project.CrossComputer.Enabled && p.Project.Autostart && e.Code == bus.CodeNotRunning {
			return good("network", "no hub runs; the first agent's MCP server starts it")
		}
		f.Message, f.Remedy = e.Message, e.Remedy
	}
	return f
}

func (p Patient) describeNetwork(b *bus.Bus, state agentnet.Inspection) Finding {
	cross := p.Project.CrossComputer
	where := "the hub's bus"
	if cross.Enabled {
		where = "the NATS server at " + b.Info().URL
		if cross.ThroughHub {
			where = "the cluster behind the hub's link"
		}
	}
	f := good("network", "%s answers, and nobody has used it yet", where)
	if state.Used {
		f.Message = fmt.Sprintf("%s answers: %d agents are live and %d offline", where, state.Live, state.Offline)
	}
	var remedies []string
	warn := func(message, remedy string) {
		f.Level = Warning
		f.Message += "; " + message
		remedies = append(remedies, remedy)
	}
	if state.Dead > 0 {
		warn(fmt.Sprintf("%d items of work are in the dead letters", state.Dead), "see: "+p.Program+" network dead-letters")
	}
	if cross.Enabled && !cross.ThroughHub && !cross.TLSRequired {
		warn("without TLS others on the way can read and change everything", "give the server TLS and set crossComputer.tlsRequired")
	}
	if cross.Enabled && !cross.ThroughHub && cross.InsecureSkipVerify {
		warn("the servers' certificates are not verified", "name their authority in natsTls.ca and unset crossComputer.insecureSkipVerify")
	}
	f.Remedy = strings.Join(remedies, "; ")
	return f
}
