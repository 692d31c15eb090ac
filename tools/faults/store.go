package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// storeSize is how much a store has.
type storeSize struct{ tasks, messages, documents int }

func (s storeSize) String() string {
	return fmt.Sprintf("%d tasks, %d messages, %d documents", s.tasks, s.messages, s.documents)
}

// storeSizes are the stores that can be made, by name.
var storeSizes = map[string]storeSize{
	"empty": {},
	"small": {tasks: 1000, messages: 10_000, documents: 10},
	"big":   {tasks: 100_000, messages: 1_000_000, documents: 100},
}

const (
	storeFile = "stored" // says what the directory's store has
	// seedBatch is how many records are written with one wait.
	seedBatch = 2000
	seedBytes = 2 << 30 // of the stream of a channel
)

// makeStore stores a task, a message and the documents through the hub, and copies of task and message below it, unless the
// directory has them from a former run.
func makeStore(ctx context.Context, out io.Writer, h *hub, size storeSize) error {
	if size == (storeSize{}) || isMade(h, size) {
		return os.MkdirAll(h.project(), 0o700)
	}
	began := time.Now()
	if err := os.Mkdir(h.project(), 0o700); err != nil {
		return err
	}
	if err := h.start(ctx); err != nil {
		return err
	}
	if err := storeOriginals(ctx, h, size.documents); err != nil {
		return err
	}
	if err := h.stop(); err != nil {
		return err
	}
	b, err := bus.Open(ctx, bus.Config{DataDir: filepath.Join(h.home, "data"), Durability: bus.DurabilityFast})
	if err != nil {
		return err
	}
	err = errors.Join(copyTasks(ctx, b, size.tasks), copyMessages(ctx, b, size.messages))
	if err = errors.Join(err, b.Close(ctx)); err != nil {
		return err
	}
	fmt.Fprintf(out, "stored %v in %v\n", size, time.Since(began).Round(time.Second))
	return os.WriteFile(filepath.Join(h.dir, storeFile), []byte(size.String()), 0o600)
}

func storeOriginals(ctx context.Context, h *hub, documents int) error {
	if err := sendTask(ctx, h, "stored", "a task"); err != nil {
		return err
	}
	a, err := join(ctx, h, "writer")
	if err != nil {
		return err
	}
	defer a.leave()
	for i := range documents {
		edits := []any{map[string]any{"op": "insert", "path": []string{list}, "values": []string{"an entry"}}}
		if err := a.tool(ctx, "edit_document", map[string]any{"name": name(document, i), "edits": edits}, nil); err != nil {
			return err
		}
	}
	return a.tool(ctx, "send_message", map[string]any{"channel": channel, "message": "a message"}, nil)
}

// copyTasks copies the newest task, each copy with an id of its own.
func copyTasks(ctx context.Context, b *bus.Bus, n int) error {
	const subject = "parley.hub.local.task."
	stream, err := b.JetStream().StreamNameBySubject(ctx, subject+"*")
	if err != nil {
		return err
	}
	tasks, err := b.JetStream().Stream(ctx, stream)
	if err != nil {
		return err
	}
	original, err := tasks.GetLastMsgForSubject(ctx, subject+"*")
	if err != nil {
		return err
	}
	id := strings.TrimPrefix(original.Subject, subject)
	return copyRecord(ctx, b, n, func() *nats.Msg {
		to := strings.NewReplacer(id, uuid.NewString())
		msg := &nats.Msg{Subject: to.Replace(original.Subject), Header: nats.Header{}, Data: []byte(to.Replace(string(original.Data)))}
		for key, values := range original.Header {
			if !strings.HasPrefix(key, "Nats-") { // those are for the server
				msg.Header.Set(key, to.Replace(values[0]))
			}
		}
		return msg
	})
}

// copyMessages copies a message of the first project's channel.
func copyMessages(ctx context.Context, b *bus.Bus, n int) error {
	streams, err := b.ProjectStreams(ctx, 8)
	if err != nil {
		return err
	}
	for _, s := range streams {
		if strings.HasSuffix(strings.ToLower(s.Name), channel) && s.Messages > 0 {
			return copyChannel(ctx, b, s, n)
		}
	}
	return errors.New("the channel is not there")
}

func copyChannel(ctx context.Context, b *bus.Bus, s bus.ProjectStream, n int) error {
	project, err := bus.Join(ctx, bus.Config{Durability: bus.DurabilityFast}, func(ctx context.Context) (bus.Grant, error) {
		return b.Grant(ctx, bus.GrantRequest{Namespace: s.Namespace})
	})
	if err != nil {
		return err
	}
	stream, err := project.JetStream().Stream(ctx, s.Name)
	if err == nil {
		err = widen(ctx, project.JetStream(), stream, int64(n))
	}
	var original *jetstream.RawStreamMsg
	if err == nil {
		original, err = stream.GetMsg(ctx, stream.CachedInfo().State.FirstSeq)
	}
	if err == nil {
		err = copyRecord(ctx, project, n, func() *nats.Msg { return &nats.Msg{Subject: original.Subject, Data: original.Data} })
	}
	return errors.Join(err, project.Close(ctx))
}

// widen lets a stream keep more messages besides those that it has.
func widen(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, more int64) error {
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgs, cfg.MaxBytes = more+int64(stream.CachedInfo().State.Msgs), seedBytes
	_, err := js.UpdateStream(ctx, cfg)
	return err
}

// copyRecord stores what next returns n times.
func copyRecord(ctx context.Context, b *bus.Bus, n int, next func() *nats.Msg) error {
	batch := b.NewBatch()
	for i := range n {
		if err := batch.Add(ctx, next()); err != nil {
			return err
		}
		if i%seedBatch == seedBatch-1 || i == n-1 {
			if _, err := batch.Wait(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
