package push

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// key identifies one configuration.
type key struct {
	task a2a.TaskID
	id   string
}

// store keeps records. put and delete return when the change is durable.
type store interface {
	load(ctx context.Context, visit func(key, record)) error
	put(ctx context.Context, k key, r record) error
	delete(ctx context.Context, k key) error
}

// noStore is the store of a service without a bus: it stores nothing.
type noStore struct{}

func (noStore) load(context.Context, func(key, record)) error { return nil }
func (noStore) put(context.Context, key, record) error        { return nil }
func (noStore) delete(context.Context, key) error             { return nil }

// kvStore keeps each record under its own key in a bucket.
type kvStore struct {
	bus *bus.Bus
	kv  jetstream.KeyValue
}

// retention is how long a configuration is kept after its last change. It is long for a
// task, and removes forgotten configurations.
const retention = 30 * 24 * time.Hour

func openStore(ctx context.Context, b *bus.Bus, name string) (*kvStore, error) {
	kv, err := b.EnsureKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket:       "parley-push-" + name,
		Description:  "A2A push notification configurations",
		History:      1,
		TTL:          retention,
		MaxValueSize: 32 << 10,
		Storage:      jetstream.FileStorage,
	})
	return &kvStore{bus: b, kv: kv}, err
}

func (s *kvStore) load(ctx context.Context, visit func(key, record)) error {
	watcher, err := s.kv.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return err
	}
	for entry := range watcher.Updates() {
		if entry == nil { // the end of the stored entries
			return watcher.Stop()
		}
		k, ok := decodeKey(entry.Key())
		var r record
		if !ok || json.Unmarshal(entry.Value(), &r) != nil {
			continue // written by another version of the hub; it expires
		}
		visit(k, r)
	}
	return errors.Join(errors.New("the bucket could not be read to its end"), ctx.Err())
}

func (s *kvStore) put(ctx context.Context, k key, r record) error {
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := s.kv.Put(ctx, encodeKey(k), value); err != nil {
		return err
	}
	return s.bus.Commit(ctx)
}

func (s *kvStore) delete(ctx context.Context, k key) error {
	err := s.kv.Delete(ctx, encodeKey(k))
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return err
	}
	return s.bus.Commit(ctx)
}

// encodeKey returns a key for the bucket: ids may hold characters that are illegal there.
func encodeKey(k key) string {
	e := base64.RawURLEncoding
	return e.EncodeToString([]byte(k.task)) + "." + e.EncodeToString([]byte(k.id))
}

func decodeKey(s string) (key, bool) {
	task, id, ok := strings.Cut(s, ".")
	t, err1 := base64.RawURLEncoding.DecodeString(task)
	i, err2 := base64.RawURLEncoding.DecodeString(id)
	return key{a2a.TaskID(t), string(i)}, ok && err1 == nil && err2 == nil
}
