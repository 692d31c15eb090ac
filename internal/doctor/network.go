package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/busfinder"
	"github.com/parleyhub/parley/internal/mesh"
)

// network examines the agents' network, where the project takes part in it.
func (p Patient) network(ctx context.Context) []Finding {
	if p.Project == nil || !p.Project.Networked() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, busPatience)
	defer cancel()
	b, err := p.dial(ctx, busfinder.ForNetwork(p.Project))
	if err != nil {
		return []Finding{p.describeNetworkError(err)}
	}
	defer b.Close(ctx) //nolint:errcheck // nothing was written
	state, err := mesh.Inspect(ctx, b, p.Project.CrossComputer.RegistryBucket)
	if err != nil {
		return []Finding{p.describeNetworkError(err)}
	}
	return []Finding{p.describeNetwork(b, state)}
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

func (p Patient) describeNetwork(b *bus.Bus, state mesh.Inspection) Finding {
	cross := p.Project.CrossComputer
	where := "the hub's bus"
	if cross.Enabled {
		where = "the NATS server at " + b.Info().URL
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
	if cross.Enabled && !cross.TLSRequired {
		warn("without TLS others on the way can read and change everything", "give the server TLS and set crossComputer.tlsRequired")
	}
	if cross.Enabled && cross.InsecureSkipVerify {
		warn("the servers' certificates are not verified", "name their authority in natsTls.ca and unset crossComputer.insecureSkipVerify")
	}
	f.Remedy = strings.Join(remedies, "; ")
	return f
}
