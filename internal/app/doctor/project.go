package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
	"github.com/parleyhub/parley/internal/config"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

const (
	// busTimeout bounds connecting to the bus of the channels.
	busTimeout = 15 * time.Second
	// slowRTT is a round trip above which reading and sending feel slow.
	slowRTT = 50 * time.Millisecond
	// nearlyFull is the use of the store, in percent, that is a warning.
	nearlyFull = 90
)

// project checks what an MCP server in this project needs: its configuration, its bus, and the channels there.
func (p Patient) project(ctx context.Context) []Finding {
	if p.ProjectErr != nil {
		return []Finding{failure("project", p.ProjectErr.Error(), "correct it, then check with: "+p.Program+" config validate mcp")}
	}
	if p.Project == nil {
		return nil
	}
	findings := []Finding{p.describeProject()}
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	b, err := p.dial(ctx, busfinder.ForProject(p.Project))
	if err != nil {
		f := p.busError("channel-bus", err, p.Project.NATSURL == "")
		if _, ok := errors.AsType[*bus.Error](err); ok && p.Project.NATSURL != "" {
			f.Message += fmt.Sprintf("; the server is set by %s", p.Project.Origin("natsUrl"))
		}
		return append(findings, f)
	}
	defer b.Close(ctx) //nolint:errcheck // nothing was written
	return append(findings, p.describeChannelBus(ctx, b), p.channels(ctx, b))
}

// dial connects to a bus as an MCP server does, but does not start a hub.
func (p Patient) dial(ctx context.Context, finder busfinder.Config) (*bus.Bus, error) {
	finder.Autostart = false
	finder.Logger = slog.New(slog.DiscardHandler)
	finder.Hub = func(context.Context) (*config.Loaded, error) { return p.Config, p.Err }
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

// describeChannelBus describes the bus, its round trip time and the use of its store.
func (p Patient) describeChannelBus(ctx context.Context, b *bus.Bus) Finding {
	info := b.Info()
	where := fmt.Sprintf("the NATS server at %s, set by %s,", info.URL, p.Project.Origin("natsUrl"))
	if info.Kind != bus.KindExternal {
		where = "the hub's bus"
	}
	f := good("channel-bus", "%s answers, with JetStream", where)
	if rtt, err := b.Conn().RTT(); err == nil {
		f.Message += fmt.Sprintf(", in %s", rtt.Round(10*time.Microsecond))
		if rtt > slowRTT {
			f.Level, f.Remedy = Warning, "use a NATS server with a faster connection, or the hub's bus"
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

// channels checks the streams of the project's channels.
func (p Patient) channels(ctx context.Context, b *bus.Bus) Finding {
	list, err := mcpserver.ChannelsOf(p.Project)
	if err != nil {
		return failure("channels", err.Error(), "correct .mcp-config.json, then check with: "+p.Program+" config validate mcp")
	}
	states := chat.Inspect(ctx, b, p.Project.Namespace, list)
	made, messages, bytes := 0, uint64(0), uint64(0)
	for _, s := range states {
		if e, ok := errors.AsType[*chat.Error](s.Err); ok {
			return failure("channels", fmt.Sprintf("channel %s: %s", s.Channel.Name, e.Message), e.Remedy)
		}
		if s.Exists {
			made++
			messages += s.Messages
			bytes += s.Bytes
		}
	}
	return good("channels", "%d of %s in use, with %s in %d KiB", made, text.Count(len(states), "channel"), text.Count(messages, "message"), (bytes+1023)>>10)
}
