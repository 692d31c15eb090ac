package bus

import (
	"errors"
	"log/slog"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Watcher sees what processes publish in the accounts of an embedded bus, besides the hub's own.
type Watcher struct {
	// Subjects returns the subjects to watch in a namespace; "" is the agents' network. It is called once for each
	// account, when the first process joins it.
	Subjects func(namespace string) []string
	// Message is called with each message, whether or not a stream stores it, by one goroutine for each subject. The
	// subject is the publisher's. It must not change the message.
	Message func(namespace string, m *nats.Msg)
}

// Bounds of the messages of one subject that wait for a Watcher. Beyond them messages are dropped.
const (
	watchPending      = 4096
	watchPendingBytes = 32 << 20
)

// watchPrefix begins the subjects on which the hub's account sees those of other accounts.
const watchPrefix = "parley.watch."

type watch struct {
	Watcher
	conn *nats.Conn
	log  *slog.Logger
}

// Watch sets the watcher of an embedded bus. Call it once, before the first Grant. Without an embedded bus it does
// nothing: nobody may see other accounts of an external server.
func (b *Bus) Watch(w Watcher) {
	if b.embedded == nil {
		return
	}
	as := b.embedded.accounts
	as.mu.Lock()
	defer as.mu.Unlock()
	as.watch = &watch{w, b.conn, b.log}
}

// open lets the hub's account see an account's subjects, and subscribes to them. After an error it is subscribed to
// none of them.
func (w *watch) open(own, acc *server.Account) (err error) {
	namespace, _ := strings.CutPrefix(acc.Name, "ns-")
	if acc.Name == networkAccount {
		namespace = ""
	}
	prefix := watchPrefix + acc.Name
	var subs []*nats.Subscription
	defer func() {
		if err == nil {
			return
		}
		for _, sub := range subs {
			_ = sub.Unsubscribe() // fails only without a connection, which has no subscriptions either
		}
	}()
	for _, subject := range w.Subjects(namespace) {
		if err := acc.AddStreamExport(subject, []*server.Account{own}); err != nil {
			return err
		}
		// An earlier attempt may have imported it.
		if err := own.AddStreamImport(acc, subject, prefix); err != nil && !errors.Is(err, server.ErrStreamImportDuplicate) {
			return err
		}
		sub, err := w.conn.Subscribe(prefix+"."+subject, func(m *nats.Msg) {
			m.Subject = strings.TrimPrefix(m.Subject, prefix+".")
			w.Message(namespace, m)
		})
		if err != nil {
			return err
		}
		subs = append(subs, sub)
		if err := sub.SetPendingLimits(watchPending, watchPendingBytes); err != nil {
			return err
		}
	}
	return w.conn.Flush()
}
