package mail

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// inboxBuffer bounds the notifications of new mail that wait, of all boxes of a Service.
const inboxBuffer = 4096

// watcher notifies the boxes of a Service of new mail, in one goroutine for all.
type watcher struct {
	begin sync.Once
	news  chan *nats.Msg

	mu    sync.Mutex
	boxes map[string][]*Box // by the subject of the inbox: a person may have several in one process
}

// watch has a box notified of new mail, and after each connection, until ignore is called.
func (s *Service) watch(b *bus.Bus, x *Box) (ignore func()) {
	w, subject := &s.watcher, store.InboxSubject+x.agent.GUID()
	w.begin.Do(func() {
		w.news, w.boxes = make(chan *nats.Msg, inboxBuffer), map[string][]*Box{}
		s.reg.Go(func(ctx context.Context) { w.run(ctx, b) })
	})
	w.mu.Lock()
	w.boxes[subject] = append(w.boxes[subject], x)
	w.mu.Unlock()
	sub, err := b.Conn().ChanSubscribe(subject, w.news)
	if err != nil {
		x.agent.Log().Error("the subscription to the inbox failed; mail is only found by polling", "error", err)
	}
	return func() {
		if err == nil {
			_ = sub.Unsubscribe() // it fails if the connection has ended, and the subscription with it
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.boxes[subject] = slices.DeleteFunc(slices.Clone(w.boxes[subject]), func(other *Box) bool { return other == x })
		if len(w.boxes[subject]) == 0 {
			delete(w.boxes, subject)
		}
	}
}

// run notifies boxes until ctx ends.
func (w *watcher) run(ctx context.Context, b *bus.Bus) {
	changes := b.Conn().StatusChanged(nats.CONNECTED)
	defer b.Conn().RemoveStatusListener(changes)
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-w.news:
			w.mu.Lock()
			boxes := slices.Clone(w.boxes[m.Subject])
			w.mu.Unlock()
			for _, x := range boxes {
				x.arrived.Send()
			}
		case <-changes:
			w.mu.Lock()
			all := slices.Concat(slices.Collect(maps.Values(w.boxes))...)
			w.mu.Unlock()
			for _, x := range all {
				x.check()
			}
		}
	}
}
