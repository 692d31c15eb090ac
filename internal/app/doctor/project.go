package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
	"github.com/parleyhub/parley/internal/config"
)

const (
	// busPatience bounds reaching the bus of the channels.
	busPatience = 15 * time.Second
	// farAway is a round trip above which reading and sending feel slow.
	farAway = 50 * time.Millisecond
	// nearlyFull is the part of its store in use, in percent, that is worth a word.
	nearlyFull = 90
)

// project examines what an MCP server in this project would meet: its
// configuration, the bus that it would use, and the channels there.
func (p Patient) project(ctx context.Context) []Finding {
	if p.ProjectErr != nil {
		return []Finding{{Check: "project", Level: Failure, Message: p.ProjectErr.Error(), Remedy: fmt.Sprintf("mend it, then check with: %s config validate mcp", p.Program)}}
	}
	if p.Project == nil {
		return nil
	}
	findings := []Finding{p.describeProject()}
	ctx, cancel := context.WithTimeout(ctx, busPatience)
	defer cancel()
	b, err := p.dial(ctx, busfinder.ForProject(p.Project))
	if err != nil {
		return append(findings, p.describeBusError(err))
	}
	defer b.Close(ctx) //nolint:errcheck // nothing was written
	return append(findings, p.describeChannelBus(ctx, b), p.channels(ctx, b))
}

// dial reaches a bus that an MCP server would use, without starting a hub.
func (p Patient) dial(ctx context.Context, finder busfinder.Config) (*bus.Bus, error) {
	finder.Autostart = false
	finder.Logger = slog.New(slog.DiscardHandler)
	finder.Hub = func() (*config.Loaded, error) { return p.Config, p.Err }
	return busfinder.New(finder).Dial(ctx)
}

func (p Patient) describeProject() Finding {
	c := p.Project
	where := "default channels"
	if c.File != "" {
		where = "channels of " + c.File
	}
	return good("project", "%s, namespace %s (%s), %s", c.ProjectPath, c.Namespace, c.Origin("namespace").Layer, where)
}

// describeBusError says why the bus cannot be used. That no hub runs is well
// where the first agent starts one.
func (p Patient) describeBusError(err error) Finding {
	f := Finding{Check: "channel-bus", Level: Failure, Message: err.Error(), Remedy: "see: " + p.Program + " config show mcp"}
	e, ok := errors.AsType[*bus.Error](err)
	if !ok {
		return f
	}
	if p.Project.NATSURL == "" && p.Project.Autostart && e.Code == bus.CodeNotRunning {
		return good("channel-bus", "no hub runs; the first agent's MCP server starts it")
	}
	f.Message, f.Remedy = e.Message, e.Remedy
	if p.Project.NATSURL != "" {
		f.Message += fmt.Sprintf("; the server is named by %s", p.Project.Origin("natsUrl"))
	}
	return f
}

// describeChannelBus says where the bus is, how far, and how full.
func (p Patient) describeChannelBus(ctx context.Context, b *bus.Bus) Finding {
	info := b.Info()
	where := fmt.Sprintf("the NATS server at %s, named by %s,", info.URL, p.Project.Origin("natsUrl"))
	if info.Kind != bus.KindExternal {
		where = "the hub's bus"
	}
	f := good("channel-bus", "%s answers, with JetStream", where)
	if rtt, err := b.Conn().RTT(); err == nil {
		f.Message += fmt.Sprintf(", in %s", rtt.Round(10*time.Microsecond))
		if rtt > farAway {
			f.Level, f.Remedy = Warning, "use a NATS server that is nearer, or the hub's"
		}
	}
	usage, err := b.Usage(ctx)
	if err == nil && usage.StoreLimit > 0 && usage.StoreBytes/uint64(nearlyFull) >= uint64(usage.StoreLimit)/100 {
		f.Level = Warning
		f.Message += fmt.Sprintf("; %d of %d MiB of its store are in use", usage.StoreBytes>>20, usage.StoreLimit>>20)
		f.Remedy = "lower maxBytes or maxAge of the channels, or give the server more storage"
	}
	return f
}

// channels looks at the streams of the project's channels.
func (p Patient) channels(ctx context.Context, b *bus.Bus) Finding {
	list := make([]chat.Channel, len(p.Project.Channels))
	for i, c := range p.Project.Channels {
		list[i].Name = c.Name
	}
	states := chat.Inspect(ctx, b, p.Project.Namespace, list)
	made, messages, bytes := 0, uint64(0), uint64(0)
	for _, s := range states {
		if e, ok := errors.AsType[*chat.Error](s.Err); ok {
			return Finding{Check: "channels", Level: Failure, Message: fmt.Sprintf("channel %s: %s", s.Channel.Name, e.Message), Remedy: e.Remedy}
		}
		if s.Exists {
			made++
			messages += s.Messages
			bytes += s.Bytes
		}
	}
	return good("channels", "%d of %d channels are in use, with %d messages in %d KiB", made, len(states), messages, (bytes+1023)>>10)
}
