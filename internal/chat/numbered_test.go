package chat_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
)

// hubBus is the bus of a hub in this process.
type hubBus struct{ *bus.Bus }

func startHubBus(t *testing.T, mode bus.Durability) hubBus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{DataDir: t.TempDir(), Durability: mode, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return hubBus{b}
}

// member is a Space that has joined a hub.
type member struct {
	*chat.Space
	bus  *bus.Bus
	user atomic.Value // of the last grant
}

func (h hubBus) join(ctx context.Context, namespace string, user *atomic.Value) (*bus.Bus, error) {
	return bus.Join(ctx, bus.Config{NoEcho: true, Logger: slog.New(slog.DiscardHandler)}, func(ctx context.Context) (bus.Grant, error) {
		g, err := h.Grant(ctx, bus.GrantRequest{Namespace: namespace})
		user.Store(g.User)
		return g, err
	})
}

// open returns a new member. close closes it.
func (h hubBus) open(t testing.TB, namespace string) (m *member, end func()) {
	t.Helper()
	m = &member{}
	m.Space = chat.Open(chat.Config{Namespace: namespace, Channels: channels(), Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (*bus.Bus, error) {
			b, err := h.join(ctx, namespace, &m.user)
			m.bus = b
			return b, err
		}})
	<-m.Tried()
	if !m.Status().Connected {
		t.Fatal(m.Status().Problem)
	}
	return m, func() {
		if _, err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// member returns a new member until the end of the test.
func (h hubBus) member(t *testing.T, namespace string) *member {
	t.Helper()
	m, end := h.open(t, namespace)
	t.Cleanup(end)
	return m
}

// requests returns how many messages the member has published, which are its requests unless it sends.
func (m *member) requests() uint64 { return m.bus.Conn().Stats().OutMsgs }

func TestAWaitingReaderHasItsMessagesWithoutRequests(t *testing.T) {
	for _, mode := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityFast, bus.DurabilityAlways} {
		t.Run(string(mode), func(t *testing.T) {
			const messages = 100
			hub := startHubBus(t, mode)
			sender, reader := hub.member(t, "p"), hub.member(t, "p")
			cursor := chat.Cursor{"roadmap": 0, "parallel-work": 0}
			unasked := 0
			for i := range messages {
				before := reader.requests()
				sent := make(chan error, 1)
				go func() {
					_, err := sender.Send(t.Context(), "a", "roadmap", fmt.Sprint(i))
					sent <- err
				}()
				news, err := reader.Wait(t.Context(), cursor)
				if err := <-sent; err != nil {
					t.Fatal(err)
				}
				if got := news.Messages["roadmap"]; err != nil || len(got) != 1 || got[0].Text != fmt.Sprint(i) || got[0].Sequence != uint64(i+1) || got[0].ID == "" {
					t.Fatalf("message %d: %+v, %v", i, news, err)
				}
				cursor = news.Cursor
				if reader.requests() == before {
					unasked++
				}
			}
			if unasked == 0 { // on a slow machine some acknowledgements are late
				t.Errorf("each of %d messages took a request", messages)
			}
		})
	}
}

// A stream that acknowledges nothing, as another program may have set it.
func TestAMessageWithoutItsAcknowledgementIsRead(t *testing.T) {
	hub := startHubBus(t, bus.DurabilityFast)
	sender, reader := hub.member(t, "p"), hub.member(t, "p")
	send(t, sender.Space, "a", "roadmap", "1")
	stream, err := sender.JetStream().Stream(t.Context(), "p_ROADMAP")
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.NoAck = true
	if _, err := sender.JetStream().UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	cursor := chat.Cursor{}
	for i := range 5 {
		news, err := reader.Wait(t.Context(), chat.Cursor{"roadmap": cursor["roadmap"]})
		if err != nil || len(news.Messages["roadmap"]) != 1 || news.Cursor["roadmap"] != uint64(i+1) {
			t.Fatalf("%+v, %v", news, err)
		}
		cursor = news.Cursor
		data, err := chat.Encode("a", "next", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		m := &nats.Msg{Subject: "p.roadmap", Reply: "$PARLEY.acked.nobody.1", Data: data, Header: nats.Header{jetstream.MsgIDHeader: {fmt.Sprint("id-", i)}}}
		if err := sender.bus.Conn().PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
}

// What a stream of former messages has had is no longer read after it was deleted and created again, also if the new one grows beyond it.
func TestAReaderOfNumberedMessagesNoticesANewStream(t *testing.T) {
	hub := startHubBus(t, bus.DurabilityFast)
	sender, reader := hub.member(t, "p"), hub.member(t, "p")
	cursor := chat.Cursor{"roadmap": 0}
	read := func(text string, seq uint64) {
		t.Helper()
		news, err := reader.Wait(t.Context(), cursor)
		if got := news.Messages["roadmap"]; err != nil || len(got) != 1 || got[0].Text != text || got[0].Sequence != seq {
			t.Fatalf("%s: %+v, %v", text, news, err)
		}
		cursor = news.Cursor
	}
	for round := range 2 {
		for i := range round + 3 {
			text := fmt.Sprint(round, "-", i)
			send(t, sender.Space, "a", "roadmap", text)
			read(text, uint64(i+1))
		}
		if err := sender.JetStream().DeleteStream(t.Context(), "p_ROADMAP"); err != nil {
			t.Fatal(err)
		}
	}
}

// Messages that are deleted before a slow reader asks make a gap, and no stop.
func TestAReaderPassesDeletedMessages(t *testing.T) {
	hub := startHubBus(t, bus.DurabilityFast)
	sender, reader := hub.member(t, "p"), hub.member(t, "p")
	cursor := chat.Cursor{"roadmap": 0}
	for round := range 4 {
		send(t, sender.Space, "a", "roadmap", "gone")
		stream, err := sender.JetStream().Stream(t.Context(), "p_ROADMAP")
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		last := fmt.Sprint("last-", round)
		send(t, sender.Space, "a", "roadmap", last)
		for {
			news, err := reader.Wait(t.Context(), cursor)
			if err != nil || len(news.Messages["roadmap"]) == 0 {
				t.Fatalf("%+v, %v", news, err)
			}
			cursor = news.Cursor
			if got := news.Messages["roadmap"]; got[len(got)-1].Text == last {
				break
			}
		}
	}
}

// line is what a reader sees of a message.
type line struct {
	Sequence     uint64
	Handle, Text string
}

// follower reads two channels as they grow.
type follower struct {
	space *member
	seen  map[string][]line
}

// follow reads until each channel has had its last message. pause is called between reads.
func (f *follower) follow(ctx context.Context, cursor chat.Cursor, pause func()) error {
	for last := map[string]bool{}; len(last) < len(cursor); pause() {
		news, err := f.space.Wait(ctx, cursor)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("after %+v nothing comes", cursor)
		}
		for channel, messages := range news.Messages {
			for _, m := range messages {
				f.seen[channel] = append(f.seen[channel], line{m.Sequence, m.Handle, m.Text})
				if m.Text == theLast {
					last[channel] = true
				}
			}
		}
		cursor = news.Cursor
	}
	return nil
}

const theLast = "the last one"

// storedLines returns what a channel's stream has, by requests.
func storedLines(t *testing.T, m *member, channel string) (lines []line) {
	t.Helper()
	h, err := m.Read(t.Context(), "checker", channel, chat.MaxLimit)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range h.Messages {
		lines = append(lines, line{x.Sequence, x.Handle, x.Text})
	}
	return lines
}

// Readers that wait, and those that come later, see what the stream has: each message once, in its order, whoever has sent it in whatever
// way, through repetitions, lost connections and subscriptions that began anew.
func TestWaitingReadersSeeWhatTheStreamHas(t *testing.T) {
	hub := startHubBus(t, bus.DurabilityCommit)
	seed := cmp.Or(*killSeed, rand.Uint64())
	t.Logf("-chat.seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range max(20, *sends/50) {
		p := newProject(t, hub, fmt.Sprint("p-", round))
		for i := range 40 {
			p.step(t, random, i)
		}
		p.end(t)
	}
}

// A project has a sender, the process of two readers, a third process, and a program that is none of them.
type project struct {
	hub                   hubBus
	namespace             string
	channels              []string
	sender, reader, third *member
	foreign               *bus.Bus
	followers             [2]follower // of the reader's process; the second one is slow
	failures              [2]error
	reading               sync.WaitGroup
	pauses                chan struct{}
	close                 []func()
}

func newProject(t *testing.T, hub hubBus, namespace string) *project {
	t.Helper()
	p := &project{hub: hub, namespace: namespace, channels: []string{"roadmap", "parallel-work"}, pauses: make(chan struct{})}
	for _, m := range []**member{&p.sender, &p.reader, &p.third} {
		var end func()
		*m, end = hub.open(t, namespace)
		p.close = append(p.close, end)
	}
	var err error
	if p.foreign, err = hub.join(t.Context(), namespace, new(atomic.Value)); err != nil {
		t.Fatal(err)
	}
	p.close = append(p.close, func() { _ = p.foreign.Close(context.Background()) }) // it only publishes
	for _, channel := range p.channels {                                            // creates the streams
		send(t, p.sender.Space, "a", channel, "the first one")
	}
	for i := range p.followers {
		f := &p.followers[i]
		f.space, f.seen = p.reader, map[string][]line{}
		p.reading.Go(func() {
			p.failures[i] = f.follow(t.Context(), chat.Cursor{p.channels[0]: 0, p.channels[1]: 0}, func() {
				if i == 1 {
					<-p.pauses
				}
			})
		})
	}
	return p
}

// step sends something in a random way, or disturbs the readers.
func (p *project) step(t *testing.T, random *rand.Rand, i int) {
	t.Helper()
	channel, text := p.channels[random.IntN(2)], fmt.Sprint(i)
	say := func(m *member) { send(t, m.Space, "a", channel, text) }
	data, err := chat.Encode("b", text, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	switch random.IntN(16) {
	case 0, 1: // of the readers' process
		say(p.reader)
	case 2, 3:
		var all sync.WaitGroup
		for _, m := range []*member{p.sender, p.reader, p.third, p.sender, p.third} {
			all.Go(func() {
				if _, err := m.Send(t.Context(), "a", channel, text); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	case 4:
		p.publishOnce(t, channel, text, data)
		p.publishOnce(t, channel, text, data) // is not stored again
	case 5: // without an id, and with an acknowledgement that others do not see
		if _, err := p.foreign.Publish(t.Context(), &nats.Msg{Subject: p.namespace + "." + channel, Data: data}); err != nil {
			t.Fatal(err)
		}
	case 6:
		p.publishOnce(t, channel, text, []byte("{"))
	case 7:
		p.reader.UnwatchIdle()
	case 8, 9:
		select {
		case p.pauses <- struct{}{}:
		default:
		}
	case 10:
		if random.IntN(24) > 0 { // a request that was on its way takes seconds to fail
			return
		}
		if err := p.hub.Revoke(p.reader.user.Load().(string)); err != nil {
			t.Fatal(err)
		}
	default:
		say(p.sender)
	}
}

func (p *project) publishOnce(t *testing.T, channel, id string, data []byte) {
	t.Helper()
	stream := p.namespace + "_" + strings.ToUpper(strings.ReplaceAll(channel, "-", "_"))
	if _, err := p.foreign.PublishOnce(t.Context(), &nats.Msg{Subject: p.namespace + "." + channel, Data: data}, id, stream); err != nil {
		t.Fatal(err)
	}
}

// end compares what the readers have seen with what is stored.
func (p *project) end(t *testing.T) {
	t.Helper()
	for _, m := range []*member{p.sender, p.reader, p.third} { // what they have queued comes before the last one
		stored(t, m.Space)
	}
	for _, channel := range p.channels {
		send(t, p.sender.Space, "a", channel, theLast)
	}
	close(p.pauses)
	p.reading.Wait()
	for i, f := range p.followers {
		for _, channel := range p.channels {
			if diff := gocmp.Diff(storedLines(t, p.sender, channel), f.seen[channel]); diff != "" || p.failures[i] != nil {
				t.Fatalf("reader %d of #%s (-stored +seen): %v\n%s", i, channel, p.failures[i], diff)
			}
		}
	}
	for _, end := range p.close {
		end()
	}
}
