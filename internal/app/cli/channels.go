package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

const channelsLong = `See and use the channels of the current directory's project as a person: the messages
that the project's agents exchange. See docs/mcp.md.`

func (a *app) channelsCommand() *cobra.Command {
	return a.mayStart(group("channels", "Read the project's channels, and post in them", channelsLong,
		a.channelsListCommand(), a.channelsReadCommand(), a.channelsPostCommand()))
}

// channelsTimeout bounds how long a command waits for the channels' bus.
const channelsTimeout = 15 * time.Second

// projectChannels are the channels of the current project.
type projectChannels struct {
	namespace string
	channels  []chat.Channel
	replicas  int // of a stream that a command creates; 0 for the default
	dial      func(context.Context) (*bus.Bus, error)
	log       *slog.Logger
}

// onChannels returns the run function of a command that uses the channels of the current directory's project: do gets
// a context that the first signal ends.
func (a *app) onChannels(do func(ctx context.Context, p *projectChannels, args []string) error) runE {
	return func(cmd *cobra.Command, args []string) error {
		ctx, cancel := a.reading(cmd.Context())
		defer cancel()
		cfg, err := mcpconfig.Load(mcpconfig.Sources{})
		if err != nil {
			return err
		}
		channels, err := mcpserver.ChannelsOf(cfg)
		if err != nil {
			return err
		}
		log := slog.New(slog.DiscardHandler)
		if a.verbose {
			log = mcpserver.NewLogger(a.stderr, mcpconfig.Logging{Level: "DEBUG", Format: "text"}, string(cfg.Credentials.Password))
		}
		p := &projectChannels{namespace: cfg.Namespace, channels: channels, replicas: int(cfg.CrossComputer.Replicas), dial: a.finder(busfinder.ForProject(cfg), log).Dial, log: log}
		return channelsFailure(do(ctx, p, args))
	}
}

// open connects to the channels. The caller closes the Space with closeSpace.
func (p *projectChannels) open(ctx context.Context) (*chat.Space, error) {
	first, err := p.dial(ctx) // once: a command does not wait for a bus that cannot be reached
	if err != nil {
		return nil, err
	}
	space := chat.Open(chat.Config{Namespace: p.namespace, Channels: p.channels, Replicas: p.replicas, Logger: p.log,
		Dial: func(context.Context) (*bus.Bus, error) { return first, nil }})
	<-space.Tried()
	return space, nil
}

// closeSpace closes the connection; a message that was not stored is an error.
func closeSpace(s *chat.Space) error {
	ctx, cancel := context.WithTimeout(context.Background(), channelsTimeout)
	defer cancel()
	lost, err := s.Close(ctx)
	if lost > 0 {
		return &failure{Exit: exitFailure, Kind: "channels", Message: "the message was not stored: the bus cannot be reached", Remedy: "post it again"}
	}
	return err
}

// channelsFailure converts the channels' errors to failures.
func channelsFailure(err error) error {
	e, ok := errors.AsType[*chat.Error](err)
	if !ok {
		return err
	}
	f := &failure{Exit: exitFailure, Kind: "channels", Message: strings.TrimSuffix(e.Message, "."), Remedy: strings.TrimSuffix(e.Remedy, ".")}
	switch e.Code {
	case chat.ValidationError:
		f.Exit, f.Kind = exitUsage, "usage"
	case chat.NotFoundError:
		f.Exit, f.Remedy = exitNotFound, local.Program()+" channels list shows the project's channels"
	}
	return f
}

// channelItem is a channel in the output.
type channelItem struct {
	Name        string     `json:"name"`
	Description string     `json:"description,omitempty"`
	Messages    uint64     `json:"messages"`
	Newest      *time.Time `json:"newest,omitempty"`
	Problem     string     `json:"problem,omitempty"`
}

func (a *app) channelsListCommand() *cobra.Command {
	return command("list", "List the project's channels", a.onChannels(func(ctx context.Context, p *projectChannels, _ []string) error {
		b, err := p.dial(ctx)
		if err != nil {
			return err
		}
		items := []channelItem{}
		for _, c := range chat.Inspect(ctx, b, p.namespace, p.channels) {
			items = append(items, itemOf(c))
		}
		listing[channelItem]{
			none:    "The project has no channels.",
			columns: []column{{heading: "CHANNEL"}, {heading: "MESSAGES"}, {heading: "NEWEST"}, {heading: "DESCRIPTION", weight: 1}},
			row: func(c channelItem) []string {
				newest := ""
				if c.Newest != nil {
					newest = ago(time.Now(), *c.Newest)
				}
				if c.Problem != "" {
					return []string{c.Name, "", newest, c.Problem}
				}
				return []string{c.Name, fmt.Sprint(c.Messages), newest, c.Description}
			},
			paint: a.paintFirst,
		}.print(a, a.stdout, items)
		return b.Close(context.WithoutCancel(ctx))
	}))
}

func itemOf(c chat.ChannelState) channelItem {
	item := channelItem{Name: c.Channel.Name, Description: c.Channel.Description, Messages: c.Messages}
	if !c.Newest.IsZero() {
		item.Newest = &c.Newest
	}
	if c.Err != nil {
		item.Problem = c.Err.Error()
	}
	return item
}

func (a *app) channelsReadCommand() *cobra.Command {
	var follow bool
	var limit int
	cmd := command("read CHANNEL", "Read the latest messages of a channel", a.onChannels(func(ctx context.Context, p *projectChannels, args []string) error {
		space, err := p.open(ctx)
		if err != nil {
			return err
		}
		return errors.Join(a.readChannel(ctx, space, args[0], limit, follow), closeSpace(space))
	}))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if limit < 1 || limit > chat.MaxLimit {
			return usage("--limit %d is not from 1 to %d", limit, chat.MaxLimit)
		}
		return nil
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for further messages until Ctrl-C")
	cmd.Flags().IntVarP(&limit, "limit", "n", 20, "how many messages")
	cmd.ValidArgsFunction = channelNames
	return cmd
}

func (a *app) readChannel(ctx context.Context, space *chat.Space, channel string, limit int, follow bool) error {
	history, err := space.Read(ctx, local.PersonHandle(), channel, limit)
	if err != nil {
		return err
	}
	a.printMessages(channel, history.Messages)
	if len(history.Messages) == 0 && !follow {
		a.note("The channel %s is empty.", channel)
	}
	for cursor := (chat.Cursor{channel: history.Last}); follow; {
		news, err := space.Wait(ctx, cursor)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		cursor = news.Cursor
		a.printMessages(channel, news.Messages[channel])
	}
	return nil
}

// channelMessage is a message in the output.
type channelMessage struct {
	Channel   string    `json:"channel"`
	Handle    string    `json:"handle"`
	Message   string    `json:"message"`
	Timestamp time.Time `json:"timestamp"`
	Sequence  uint64    `json:"sequence"`
}

func (a *app) printMessages(channel string, messages []chat.Message) {
	for _, m := range messages {
		if a.json() {
			writeJSON(a.stdout, channelMessage{channel, m.Handle, m.Text, m.Timestamp, m.Sequence})
			continue
		}
		fmt.Fprintf(a.stdout, "%s  %s\n", a.style.dim(m.Timestamp.Local().Format(time.DateTime)), a.style.bold(oneLine(m.Handle)))
		for line := range strings.Lines(m.Text) {
			fmt.Fprintf(a.stdout, "    %s\n", plain(strings.TrimRight(line, "\r\n")))
		}
	}
}

// channelPosted is the output of channels post.
type channelPosted struct {
	Channel   string    `json:"channel"`
	Handle    string    `json:"handle"`
	Timestamp time.Time `json:"timestamp"`
	Sequence  uint64    `json:"sequence"`
}

func (a *app) channelsPostCommand() *cobra.Command {
	cmd := command("post CHANNEL MESSAGE", "Post a message in a channel",
		a.onChannels(func(ctx context.Context, p *projectChannels, args []string) error {
			text, err := a.messageText(args[1])
			if err != nil {
				return err
			}
			space, err := p.open(ctx)
			if err != nil {
				return err
			}
			sent, err := space.Send(ctx, local.PersonHandle(), args[0], text)
			if err = errors.Join(err, closeSpace(space)); err != nil {
				return err
			}
			return a.print(channelPosted{args[0], local.PersonHandle(), sent.Timestamp, sent.Sequence}, func() {
				fmt.Fprintf(a.stdout, "Posted in %s as %s.\n", args[0], local.PersonHandle())
			})
		}))
	cmd.Long = "Post a message in a channel of the current directory's project; \"-\" reads it from standard\n" +
		"input. The agents see it under the name of your user account, in lowercase letters, digits\n" +
		"and hyphens."
	cmd.ValidArgsFunction = channelNames
	return cmd
}

// messageText returns a message's text; "-" stands for the standard input.
func (a *app) messageText(argument string) (string, error) {
	if argument != "-" {
		return argument, nil
	}
	data, err := io.ReadAll(io.LimitReader(a.stdin, chat.MaxMessage+1)) // what is longer is refused
	if err != nil {
		return "", fmt.Errorf("read the message from standard input: %w", err)
	}
	return strings.TrimRight(string(data), "\n"), nil
}

// channelNames completes the names of the project's channels.
func channelNames(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	cfg, err := mcpconfig.Load(mcpconfig.Sources{})
	if len(args) > 0 || err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]string, len(cfg.Channels))
	for i, c := range cfg.Channels {
		names[i] = c.Name + "\t" + oneLine(c.Description)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
