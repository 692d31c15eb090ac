package natslog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt/snapshots"
)

// openStore opens the streams of entries and snapshots and the bucket of heads, and creates those that are missing.
func openStore(ctx context.Context, js jetstream.JetStream, o *Options, writer string) (*snapshots.Store, error) {
	ns := o.Namespace
	s := &snapshots.Store{
		Writer:      writer,
		LogSubject:  o.subject,
		LogFilter:   func(document string) string { return fmt.Sprintf("%s.doclog.%s.*.log", ns, document) },
		PartSubject: func(object string) string { return ns + ".doclogsnap." + object },
		Put:         func(ctx context.Context, messages []*nats.Msg) error { return putAll(ctx, js, messages) },
		Commit:      func(context.Context) error { return nil }, // acknowledged data is durable as far as the server promises
	}
	config := jetstream.StreamConfig{Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, DenyDelete: true, Replicas: o.Replicas}
	entries, parts := config, config
	entries.Name, entries.Description, entries.Subjects, entries.Duplicates = ns+"_DOCLOG", "Changes of documents that replicas share", []string{ns + ".doclog.*.*.log"}, 10*time.Minute
	parts.Name, parts.Description, parts.Subjects = ns+"_DOCLOG_SNAP", "Snapshots of documents that replicas share", []string{ns + ".doclogsnap.>"}
	var err error
	if s.Log, err = ensureStream(ctx, js, entries); err == nil {
		s.Parts, err = ensureStream(ctx, js, parts)
	}
	if err == nil {
		s.Heads, err = ensureBucket(ctx, js, jetstream.KeyValueConfig{Bucket: ns + "_doclog_head", Description: "The newest snapshot of each document", Storage: jetstream.FileStorage, Replicas: o.Replicas})
	}
	if err != nil {
		return nil, failed(CodeStorage, err, "the log of the document %s cannot be opened", o.Document)
	}
	return s, nil
}

// ensureStream opens a stream, or creates it. The settings of an existing one are not changed.
func ensureStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig) (jetstream.Stream, error) {
	s, err := js.Stream(ctx, config.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return js.CreateOrUpdateStream(ctx, config)
	}
	return s, err
}

func ensureBucket(ctx context.Context, js jetstream.JetStream, config jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	kv, err := js.KeyValue(ctx, config.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return js.CreateOrUpdateKeyValue(ctx, config)
	}
	return kv, err
}

// putAll stores messages in order, with a bounded number in flight.
func putAll(ctx context.Context, js jetstream.JetStream, messages []*nats.Msg) error {
	const window = 16
	var futures []jetstream.PubAckFuture
	for i, m := range messages {
		f, err := js.PublishMsgAsync(m)
		if err != nil {
			return err
		}
		if futures = append(futures, f); len(futures) < window && i < len(messages)-1 {
			continue
		}
		for _, f := range futures {
			select {
			case <-f.Ok():
			case err := <-f.Err():
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		futures = futures[:0]
	}
	return nil
}

func (o *Options) subject(document string, epoch uint64) string {
	return fmt.Sprintf("%s.doclog.%s.%d.log", o.Namespace, document, epoch)
}

// askSubject returns the subject of questions to other replicas. They are not stored.
func (o *Options) askSubject() string {
	return fmt.Sprintf("%s.doclog.%s.ask", o.Namespace, o.Document)
}
