package hub

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// NewInMemory starts a hub with a store in memory, for synctest: it starts no goroutine
// outside the bubble.
func NewInMemory(ctx context.Context, cfg Config) (*Hub, error) { return New(ctx, cfg) }

// Seed stores completed tasks directly, which is faster than to run them.
func Seed(ctx context.Context, b *bus.Bus, tasks, contexts int) error {
	s, err := openJetStream(ctx, b, "local", 0)
	if err != nil {
		return err
	}
	batch := b.NewBatch()
	begin := time.Now().Add(-time.Hour)
	for i := range tasks {
		at := begin.Add(time.Duration(i) * time.Millisecond)
		msg := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("what is the time?"))
		ans := a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart("it is noon"))
		t := &a2a.Task{
			ID: a2a.NewTaskID(), ContextID: fmt.Sprintf("context-%d", i%contexts), History: []*a2a.Message{msg, ans},
			Status: a2a.TaskStatus{State: a2a.TaskStateCompleted, Message: ans, Timestamp: &at},
		}
		body, err := encodeRecord(record{Task: t, Turns: 1})
		if err != nil {
			return err
		}
		h := head{ID: t.ID, Agent: "echo", Context: t.ContextID, State: t.Status.State, Created: at.UnixNano(), Updated: at.UnixNano()}
		m := &nats.Msg{Subject: s.prefix + "task." + string(t.ID), Header: nats.Header{taskHeader: []string{encodeHead(h, 0, 0)}}, Data: body}
		if err := batch.Add(ctx, m); err != nil {
			return err
		}
		if i%1000 == 999 {
			if _, err := batch.Wait(ctx); err != nil {
				return err
			}
			batch = b.NewBatch()
		}
	}
	_, err = batch.Wait(ctx)
	return err
}

// AwaitOutput blocks until output of a running task is in the store.
func AwaitOutput(ctx context.Context, b *bus.Bus, id a2a.TaskID) error {
	s, err := openJetStream(ctx, b, "local", 0)
	if err != nil {
		return err
	}
	c, err := s.output.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{s.prefix + "output." + string(id)}})
	if err != nil {
		return err
	}
	_, err = c.Next(jetstream.FetchContext(ctx))
	return err
}

// AwaitTrace blocks until a trace of a task of the hub name is in the store.
func AwaitTrace(ctx context.Context, b *bus.Bus, name string, id a2a.TaskID) error {
	stream, err := b.JetStream().Stream(ctx, "PARLEY_HUB_"+name+"_TRACES")
	if err != nil {
		return err
	}
	c, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{"parley.hub." + name + ".trace." + string(id) + ".*"}})
	if err != nil {
		return err
	}
	_, err = c.Next(jetstream.FetchContext(ctx))
	return err
}

// StoreRaw stores a message as a hub of another version might have.
func StoreRaw(b *bus.Bus, subject, header, data string) error {
	ctx := context.Background()
	if _, err := openJetStream(ctx, b, "local", 0); err != nil {
		return err
	}
	_, err := b.Publish(ctx, &nats.Msg{Subject: "parley.hub.local." + subject, Header: nats.Header{taskHeader: []string{header}}, Data: []byte(data)})
	return err
}

// Clear empties the store.
func Clear(b *bus.Bus) error {
	s, err := openJetStream(context.Background(), b, "local", 0)
	if err != nil {
		return err
	}
	return s.state.Purge(context.Background())
}

// ExpireNow expires a context at once.
func ExpireNow(h *Hub, id string) error {
	return h.expireContext(context.Background(), id, time.Now().UTC())
}

// Trim does what upkeep does about traces and old tasks, at once.
func Trim(ctx context.Context, h *Hub) {
	h.removeOldTasks(ctx)
	h.trimTraces(ctx)
}

// TraceStream returns the stream of the traces of the hub name.
func TraceStream(ctx context.Context, b *bus.Bus, name string) (*jetstream.StreamInfo, error) {
	stream, err := b.JetStream().Stream(ctx, "PARLEY_HUB_"+name+"_TRACES")
	if err != nil {
		return nil, err
	}
	return stream.Info(ctx, jetstream.WithSubjectFilter(">"))
}

// SetFreeSpace makes a hub that has no message yet find this much space on its disk, in bytes.
func SetFreeSpace(h *Hub, space uint64) {
	h.freeSpace = func(string) (uint64, error) { return space, nil }
}

// NewWatched starts a hub whose store in memory can be watched.
func NewWatched(ctx context.Context) (*Hub, *WatchedStore, error) {
	cfg, err := Config{}.withDefaults()
	if err != nil {
		return nil, nil, err
	}
	s := &WatchedStore{store: &Memory{}}
	h, err := newHub(ctx, cfg, s)
	return h, s, err
}

// WatchedStore calls a function when a task was read. While it Hangs, no task is read, which Asked counts.
type WatchedStore struct {
	store
	f     atomic.Pointer[func()]
	Hangs atomic.Bool
	Asked atomic.Int32
}

// Next sets the function that is called once, after the next task was read.
func (s *WatchedStore) Next(f func()) { s.f.Store(&f) }

func (s *WatchedStore) task(ctx context.Context, id a2a.TaskID) ([]byte, error) {
	if s.Hangs.Load() {
		s.Asked.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	body, err := s.store.task(ctx, id)
	if f := s.f.Swap(nil); f != nil {
		(*f)()
	}
	return body, err
}
