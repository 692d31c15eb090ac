package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
)

// network checks the agents' network, if the project is in it.
func (p Patient) network(ctx context.Context) []Finding {
	if p.Project == nil || !p.Project.Networked() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	state, b, err := p.inspect(ctx, busfinder.ForNetwork(p.Project))
	findings := []Finding{p.describeNetwork(b, state, err)}
	if p.Project.CrossComputer.Enabled {
		findings = append(findings, p.withoutLink(ctx, err == nil))
	}
	return findings
}

// inspect reads the state of a network. The bus is closed when it returns.
func (p Patient) inspect(ctx context.Context, where busfinder.Config) (agentnet.Inspection, *bus.Bus, error) {
	b, err := p.dial(ctx, where)
	if err != nil {
		return agentnet.Inspection{}, nil, err
	}
	defer b.Close(ctx) //nolint:errcheck // nothing was written
	state, err := agentnet.Inspect(ctx, b, p.Project.CrossComputer.RegistryBucket)
	return state, b, err
}

// withoutLink describes how this computer's agents work while the cluster cannot be reached, and
// what waits on the hub's bus for the cluster.
func (p Patient) withoutLink(ctx context.Context, linked bool) Finding {
	const check = "network link"
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	state, _, err := p.inspect(ctx, busfinder.Config{Config: bus.Config{Name: "doctor"}, Access: bus.AccessNetwork})
	switch {
	case err != nil && linked:
		return good(check, "no hub is running: this computer's agents cannot work together while the cluster is unreachable")
	case err != nil:
		return failure(check, "the cluster cannot be reached, and this computer's agents have no hub to work together", "start one with: "+p.Program+" start")
	case linked && state.Mail == 0:
		return good(check, "while the cluster is unreachable, this computer's agents work together on the hub's bus")
	case linked:
		return warning(check, fmt.Sprintf("%s for the cluster on the hub's bus, to be sent", text.Count(state.Mail, "message")),
			"they are forwarded when an agent of this computer runs, or "+p.Program+" network agents --watch")
	}
	return warning(check, fmt.Sprintf("the link is down: this computer's agents work together on the hub's bus; %s and %s to send later", text.Count(state.Mail, "message"), text.Count(state.Work, "work item")),
		"restore the connection to the cluster")
}

// busError describes why a bus cannot be used. If autostart is set, a hub that is not running is no problem.
func (p Patient) busError(check string, err error, autostart bool) Finding {
	e, ok := errors.AsType[*bus.Error](err)
	switch {
	case !ok:
		return failure(check, err.Error(), "see: "+p.Program+" config show mcp")
	case autostart && p.Project.Autostart && e.Code == bus.CodeNotRunning:
		return good(check, "no hub is running; the first agent's MCP server starts it")
	}
	return failure(check, e.Message, e.Remedy)
}

func (p Patient) describeNetwork(b *bus.Bus, state agentnet.Inspection, err error) Finding {
	cross := p.Project.CrossComputer
	if err != nil {
		return p.busError("network", err, !cross.Enabled)
	}
	where := "the hub's bus"
	if cross.Enabled {
		where = "the NATS server at " + b.Info().URL
		if cross.ThroughHub {
			where = "the cluster behind the hub's link"
		}
	}
	f := good("network", "%s answers; the network is not used yet", where)
	if state.Used {
		f.Message = fmt.Sprintf("%s answers: %s live, %d offline", where, text.Count(state.Live, "agent"), state.Offline)
	}
	var remedies []string
	warn := func(message, remedy string) {
		f.Level = Warning
		f.Message += "; " + message
		remedies = append(remedies, remedy)
	}
	if state.Dead > 0 {
		warn(fmt.Sprintf("%s in the dead letters", text.Count(state.Dead, "work item")), "see: "+p.Program+" network dead-letters")
	}
	if cross.Enabled && !cross.ThroughHub && !cross.TLSRequired {
		warn("without TLS anyone on the network path can read and change everything", "enable TLS in the server and set crossComputer.tlsRequired")
	}
	if cross.Enabled && !cross.ThroughHub && cross.InsecureSkipVerify {
		warn("the servers' certificates are not verified", "set their certificate authority in natsTls.ca and unset crossComputer.insecureSkipVerify")
	}
	f.Remedy = strings.Join(remedies, "; ")
	return f
}
