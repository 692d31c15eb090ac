package bus

import (
	"context"
	"strconv"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Acknowledgements of a project's messages that the hub syncs: a joined process has the server acknowledge a message to
// ackSubject instead of to itself. The hub receives the acknowledgement, syncs the store once for all that it has received,
// and forwards them to ackedSubject, where the processes expect theirs. A sync by each process would wait for those of all
// others, and keep a thread of each.
//
// Both subjects end with the process and the number of its message. Within the hub's account the account of the project
// follows the prefix, which only the server sets: a project's acknowledgements stay in the project.
const (
	ackSubject   = "$PARLEY.ack."
	ackedSubject = "$PARLEY.acked."
)

// maxAcks bounds the acknowledgements that wait for the next sync. Beyond it they are dropped, and their senders repeat the
// messages.
const maxAcks = 8192

// notSynced begins what is forwarded instead of an acknowledgement if the disk has failed. No acknowledgement of the server
// begins with it.
const notSynced = "-"

// ackSyncer syncs the acknowledgements of all projects.
type ackSyncer struct {
	conn    *nats.Conn
	commits *committer
	own     *server.Account // the hub's
	acks    chan *nats.Msg
	stop    context.CancelFunc
	done    chan struct{}
}

func newAckSyncer(conn *nats.Conn, own *server.Account, commits *committer) (*ackSyncer, error) {
	s := &ackSyncer{conn: conn, commits: commits, own: own, acks: make(chan *nats.Msg, maxAcks), done: make(chan struct{})}
	if err := own.AddStreamExport(ackedSubject+"*.*.*", nil); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go s.run(ctx)
	return s, nil
}

// admit lets the processes of an account use the syncer. It is called once for an account.
func (s *ackSyncer) admit(acc *server.Account) error {
	if err := acc.AddStreamExport(ackSubject+"*.*", []*server.Account{s.own}); err != nil {
		return err
	}
	if err := s.own.AddMappedStreamImport(acc, ackSubject+"*.*", ackSubject+acc.Name+".$1.$2"); err != nil {
		return err
	}
	if err := acc.AddMappedStreamImport(s.own, ackedSubject+acc.Name+".*.*", ackedSubject+"$1.$2"); err != nil {
		return err
	}
	if _, err := s.conn.ChanSubscribe(ackSubject+acc.Name+".*.*", s.acks); err != nil {
		return err
	}
	return s.conn.Flush() // before the first process has its grant
}

// run syncs and forwards until ctx ends. While one sync runs, acknowledgements gather for the next.
func (s *ackSyncer) run(ctx context.Context) {
	defer close(s.done)
	var gathered []*nats.Msg
	for {
		select {
		case m := <-s.acks:
			gathered = append(gathered[:0], m)
		case <-ctx.Done():
			return
		}
		for n := len(s.acks); n > 0; n-- {
			gathered = append(gathered, <-s.acks)
		}
		err := s.commits.commit(ctx)
		if err != nil && ctx.Err() != nil {
			return // the hub ends, which says nothing about the disk: the senders repeat the messages
		}
		s.forward(gathered, err)
		clear(gathered)
	}
}

// forward forwards acknowledgements, or the error of the sync instead.
func (s *ackSyncer) forward(acks []*nats.Msg, failure error) {
	for _, m := range acks {
		data := m.Data
		if failure != nil {
			data = []byte(notSynced + failure.Error())
		}
		_ = s.conn.Publish(ackedSubject+m.Subject[len(ackSubject):], data) // fails only at the end of the hub; the sender's wait ends with the connection
	}
}

// close ends the syncer. Acknowledgements that wait are not forwarded.
func (s *ackSyncer) close() {
	s.stop()
	<-s.done
}

// ackNumber returns the number at the end of the subject of an acknowledgement.
func ackNumber(subject string) (uint64, bool) {
	for i := len(subject) - 1; i >= 0; i-- {
		if subject[i] == '.' {
			n, err := strconv.ParseUint(subject[i+1:], 36, 64)
			return n, err == nil
		}
	}
	return 0, false
}
