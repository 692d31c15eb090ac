package bus

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// ProjectStream is a stream of a project on an embedded bus, as its server sees it.
type ProjectStream struct {
	Namespace string
	Name      string
	Metadata  map[string]string
	Messages  uint64
	Newest    time.Time // of its messages; zero without one
	Readers   []StreamReader
}

// StreamReader is a durable consumer of a stream.
type StreamReader struct {
	Name     string
	Sequence uint64    // of the last message that it got
	At       time.Time // when; zero if it got none, or was only told its position
}

// maxListedStreams bounds the streams of one namespace that are listed.
const maxListedStreams = 256

// ProjectStreams returns the streams of the projects that were used last, at most so many projects. On a bus that is not
// embedded there are none to see. It opens the projects' part of the bus, as a process does that joins it.
func (b *Bus) ProjectStreams(ctx context.Context, projects int) (all []ProjectStream, err error) {
	if b.embedded == nil {
		return nil, nil
	}
	if err := b.begin(); err != nil {
		return nil, err
	}
	defer b.inFlight.Done()
	for _, namespace := range lastUsed(filepath.Join(b.dir, "jetstream"), projects) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		acc, failed := b.embedded.accounts.open("ns-"+namespace, projectLimits)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		all = append(all, b.embedded.streamsOf(acc.Name, namespace)...)
	}
	if len(all) > 0 {
		err = nil // those that there are can be shown
	}
	return all, err
}

// lastUsed returns the namespaces with streams on the disk, those first whose streams changed last.
func lastUsed(dir string, most int) (namespaces []string) {
	type stored struct {
		namespace string
		at        time.Time
	}
	entries, _ := os.ReadDir(dir) // there is none before the first stream
	var found []stored
	for _, e := range entries {
		namespace, ok := strings.CutPrefix(e.Name(), "ns-")
		if !ok || CheckNamespace(namespace) != nil {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, e.Name(), "streams")); err == nil {
			found = append(found, stored{namespace, info.ModTime()})
		}
	}
	slices.SortFunc(found, func(a, b stored) int { return cmp.Or(b.at.Compare(a.at), strings.Compare(a.namespace, b.namespace)) })
	for _, s := range found[:min(len(found), most)] {
		namespaces = append(namespaces, s.namespace)
	}
	return namespaces
}

// streamsOf asks the server for the streams of an account, without a connection.
func (e *embedded) streamsOf(account, namespace string) (all []ProjectStream) {
	info, err := e.server.Jsz(&server.JSzOptions{Account: account, Accounts: true, Streams: true, Config: true, Consumer: true, Limit: maxListedStreams})
	if err != nil {
		return nil // JetStream is being started anew
	}
	for _, acc := range info.AccountDetails {
		for _, s := range acc.Streams {
			if s.Config == nil || acc.Name != account {
				continue
			}
			stream := ProjectStream{Namespace: namespace, Name: s.Name, Metadata: s.Config.Metadata, Messages: s.State.Msgs}
			if s.State.Msgs > 0 {
				stream.Newest = s.State.LastTime
			}
			for _, c := range s.Consumer {
				reader := StreamReader{Name: c.Name, Sequence: c.Delivered.Stream}
				if c.Delivered.Last != nil {
					reader.At = *c.Delivered.Last
				}
				stream.Readers = append(stream.Readers, reader)
			}
			all = append(all, stream)
		}
	}
	return all
}
