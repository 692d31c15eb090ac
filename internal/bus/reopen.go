package bus

import (
	"context"
	"errors"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// spareFiles is how many descriptors must be free before the store is opened: the server leaves out what it cannot open.
const spareFiles = 96

// checkFiles returns an error if the process cannot open the files that a recovery of the store needs.
func checkFiles(dir string) (err error) {
	open := make([]*os.File, 0, spareFiles)
	for range spareFiles {
		f, openErr := os.Open(dir)
		if err = openErr; err != nil {
			break
		}
		open = append(open, f)
	}
	for _, f := range open {
		err = errors.Join(err, f.Close())
	}
	return err
}

// reopen stops JetStream, checks the store, and starts JetStream again, because a stream that could not write stores
// nothing more. Connections, users and accounts stay. It reports false if it has to be tried again.
func (b *Bus) reopen(ctx context.Context) bool {
	begun := time.Now()
	e := b.embedded
	e.accounts.store.Lock()
	defer e.accounts.store.Unlock()
	reason := e.log.write.Swap(nil)
	e.log.unread.Store(nil)
	err := e.server.ShutdownJetStream()
	if err == nil {
		err = e.forgetAPI()
	}
	if err == nil {
		err = errors.Join(b.damage.Check(ctx).Unkept, e.accounts.checkOpen())
	}
	if err == nil {
		err = e.server.EnableJetStream(&server.JetStreamConfig{MaxMemory: maxMemoryStore, MaxStore: e.maxStore, StoreDir: b.dir})
	}
	err = errors.Join(err, e.accounts.reopen())
	if text := e.log.unread.Load(); err == nil && text != nil {
		err = errors.New(*text)
	}
	if err != nil {
		b.log.Error("the store cannot be opened again; trying again", "error", err)
		e.log.write.CompareAndSwap(nil, reason)
		return false
	}
	b.checkLater(ctx)
	b.log.Warn("the store was opened again after a failed write", "took", time.Since(begun), "write", *reason)
	return true
}

// apiSubjects are those of JetStream's API in the system account.
const apiSubjects = "$JS.API.>"

// forgetAPI removes the subscription to JetStream's API, which the server keeps when JetStream is stopped. With the one of
// the next start it would execute each request twice, and a second purge removes what was stored after the first.
//
// The server has no function for it, and the field is not exported; a test fails if another version does not have it.
func (e *embedded) forgetAPI() error {
	field := reflect.ValueOf(e.server.SystemAccount()).Elem().FieldByName("sl")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*server.Sublist]() {
		return errors.New("this version of the NATS server cannot be restarted within a process")
	}
	subscriptions := (*server.Sublist)(field.UnsafePointer())
	return removeAll(subscriptions.All, subscriptions.Remove)
}

// removeAll removes the subscriptions to the API. S is the server's type of a pointer to a subscription, which has no exported name.
func removeAll[S any](all func(*[]S), remove func(S) error) (err error) {
	var found []S
	all(&found)
	for _, s := range found {
		subject := reflect.ValueOf(s).Elem().FieldByName("subject")
		if subject.IsValid() && string(subject.Bytes()) == apiSubjects {
			err = errors.Join(err, remove(s))
		}
	}
	return err
}

// noFiles is what the system says when no descriptor is left.
const noFiles = "too many open files"

// isUnread reports whether a warning of the server means that it has left something out that it could not open for want of descriptors.
func isUnread(warning string) bool { return strings.Contains(warning, noFiles) }
