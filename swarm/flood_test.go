package swarm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/swarm"
)

// ledger is a journal that counts records and bytes written.
type ledger struct {
	swarm.Journal
	records, bytes atomic.Int64
}

func (j *ledger) Append(ctx context.Context, id string, after uint64, data []byte) (uint64, error) {
	j.records.Add(1)
	j.bytes.Add(int64(len(data)))
	return j.Journal.Append(ctx, id, after, data)
}

// intruder is a participant that sends arbitrary messages.
type intruder struct {
	h       *hive
	id      string
	swarm   string
	replies atomic.Int64 // envelopes received
	bytes   atomic.Int64 // bytes of their payloads
	refused atomic.Int64
}

func (h *hive) intruder(id, swarmID string) *intruder {
	h.t.Helper()
	x := &intruder{h: h, id: id, swarm: swarmID}
	stop := h.r.OnReceive(id, func(_ context.Context, e *envelope.Envelope) {
		x.replies.Add(1)
		x.bytes.Add(int64(len(e.Payload)))
		if strings.Contains(string(e.Payload), `"refused"`) {
			x.refused.Add(1)
		}
	})
	h.t.Cleanup(stop)
	return x
}

// say sends a message with these fields and the swarm's id.
func (x *intruder) say(fields string) {
	x.h.t.Helper()
	e, err := envelope.New(x.id, "sun", envelope.Notification, json.RawMessage(fmt.Sprintf(`{"swarmId":%q,%s}`, x.swarm, fields)))
	must(x.h.t, err)
	e.CorrelationID = x.swarm
	_, err = x.h.r.Send(ctx, e)
	must(x.h.t, err)
}

// siege is a swarm with two well-behaved participants and an intruder.
type siege struct {
	*hive
	sun     *swarm.Coordinator
	good    *swarm.Participant
	bad     *intruder
	journal *ledger
	id      string
	end     chan struct{} // closed to end the sub-tasks
}

func newSiege(t *testing.T, o swarm.CoordinatorOptions) *siege {
	t.Helper()
	s := &siege{hive: newHive(t), journal: &ledger{Journal: new(swarm.MemoryJournal)}, end: make(chan struct{})}
	o.Journal = s.journal
	s.sun = s.coordinator("sun", o)
	s.good = s.participant("good", swarm.ParticipantOptions{}, workUntil(s.end), "a")
	s.participant("other", swarm.ParticipantOptions{}, workUntil(s.end), "a")
	s.participant("bad", swarm.ParticipantOptions{}, workUntil(s.end), "a")
	created, err := s.sun.Create(ctx, plan(6, "a"))
	must(t, err)
	synctest.Wait()
	s.id = created.ID
	s.bad = s.intruder("bad", s.id)
	return s
}

// finish ends the sub-tasks and requires that all are completed.
func (s *siege) finish() {
	s.t.Helper()
	close(s.end)
	done, err := s.sun.Wait(ctx, s.id)
	must(s.t, err)
	if len(outcome(s.t, done)) != 6 {
		s.t.Fatalf("%+v", done)
	}
}

func TestAFloodOfMessagesIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSiege(t, swarm.CoordinatorOptions{})
		const flood = 10_000
		for i := range flood {
			s.bad.say(`"beat":["t0","t1","t2","t3","t4","t5"]`) // each is answered, because the agent does not have all of them
			if i%500 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		if n := s.bad.replies.Load(); n == 0 || n > flood/5 {
			t.Errorf("%d of %d messages were answered", n, flood)
		}
		if n := s.bad.refused.Load(); n == 0 || n > 3 {
			t.Errorf("it received %d refusals", n)
		}
		must(t, s.good.SetState(s.id, "k", json.RawMessage(`1`)))
		got, err := s.good.State(ctx, s.id)
		must(t, err)
		if string(got.Values["k"]) != "1" {
			t.Errorf("the others see %s", got.Values)
		}
		time.Sleep(time.Minute) // its allowance is renewed
		before := s.bad.replies.Load()
		s.bad.say(`"beat":["t0","t1","t2","t3","t4","t5"]`)
		synctest.Wait()
		if s.bad.replies.Load() == before {
			t.Error("its messages are still ignored")
		}
		s.finish()
	})
}

// Repeated requests for the whole shared state are answered only a few times.
func TestStateRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSiege(t, swarm.CoordinatorOptions{})
		value, err := json.Marshal(strings.Repeat("x", swarm.MaxValue-2))
		must(t, err)
		const size = 16 * swarm.MaxValue // 1 MiB
		for i := range size / swarm.MaxValue {
			must(t, s.sun.SetState(ctx, s.id, fmt.Sprint("k-", i), value))
		}
		const times = 60
		for range times {
			s.bad.say(`"watch":true`)
			s.bad.say(`"watch":true`) // repeating it has no effect
			synctest.Wait()
			r, err := replica.New(replica.Options{Agent: "bad", State: "swarm/" + s.id, Epoch: 1})
			must(t, err)
			_, err = r.Attach(direct{s.hive, "bad", s.id}) // an empty replica requests the whole state
			must(t, err)
			synctest.Wait()
			must(t, r.Close())
		}
		if sent := s.bad.bytes.Load(); sent < size || sent > times*size/4 {
			t.Errorf("%d MiB were sent to it, of a state of %d", sent>>20, size>>20)
		}
		if s.bad.refused.Load() == 0 {
			t.Error("it received no refusal")
		}
		got, err := s.good.State(ctx, s.id)
		must(t, err)
		if len(got.Values) != size/swarm.MaxValue {
			t.Errorf("another sees %d values", len(got.Values))
		}
		s.finish()
	})
}

// The changes of one participant to the shared state are bounded, because the journal stores them; other
// participants are not affected.
func TestStateChangesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		journal := &ledger{Journal: new(swarm.MemoryJournal)}
		const budget = 1 << 20
		sun := h.coordinator("sun", swarm.CoordinatorOptions{Journal: journal, Successors: []string{"earth"}, MaxWritten: budget})
		earth := h.coordinator("earth", swarm.CoordinatorOptions{Journal: journal, Successors: []string{"sun"}, MaxWritten: budget})
		end := make(chan struct{})
		var refused []error
		bad := h.participant("bad", swarm.ParticipantOptions{Refused: func(why error) { refused = append(refused, why) }}, workUntil(end), "a")
		good := h.participant("good", swarm.ParticipantOptions{}, workUntil(end), "a")
		s, err := sun.Create(ctx, plan(2, "a"))
		must(t, err)
		synctest.Wait()
		value, err := json.Marshal(strings.Repeat("x", swarm.MaxValue-2))
		must(t, err)
		write := func(seconds int) {
			for range seconds {
				for range 16 {
					must(t, bad.SetState(s.ID, "mine", value))
				}
				time.Sleep(time.Second)
			}
		}
		write(5)
		if n := journal.bytes.Load(); n < budget/2 || n > budget*5/4 {
			t.Errorf("the journal has %d KiB", n>>10)
		}
		if len(refused) == 0 {
			t.Fatal("it received no refusal")
		}
		wantCode(t, refused[0], swarm.CodeFlood)
		must(t, sun.Close())
		time.Sleep(time.Minute) // earth takes over and knows the changes
		before := journal.bytes.Load()
		write(3)
		if n := journal.bytes.Load() - before; n > swarm.MaxValue {
			t.Errorf("the successor has stored %d KiB more", n>>10)
		}
		must(t, good.SetState(s.ID, "k", json.RawMessage(`1`)))
		must(t, earth.SetState(ctx, s.ID, "j", json.RawMessage(`1`)))
		synctest.Wait()
		got, err := good.State(ctx, s.ID)
		must(t, err)
		if string(got.Values["k"]) != "1" || string(got.Values["j"]) != "1" {
			t.Errorf("another sees %d values", len(got.Values))
		}
		close(end)
		_, err = earth.Wait(ctx, s.ID)
		must(t, err)
	})
}

// An agent that is repeatedly lost and back costs few records, and its sub-tasks lose no attempts.
func TestRepeatedLossOfAnAgentCostsLittle(t *testing.T) {
	for name, away := range map[string]string{"lost": `"lost":true`, "leave": `"leave":true`} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSiege(t, swarm.CoordinatorOptions{})
				before := s.journal.records.Load()
				for range 300 {
					s.bad.say(away)
					s.bad.say(`"beat":["t0"]`)
					synctest.Wait()
				}
				if n := s.journal.records.Load() - before; n == 0 || n > 60 {
					t.Errorf("%d records for 300 times", n)
				}
				if s.bad.refused.Load() == 0 {
					t.Error("it received no refusal")
				}
				s.finish()
			})
		})
	}
}

// A result counts even from an agent that may not rejoin.
func TestAResultOfAnExcludedAgentCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSiege(t, swarm.CoordinatorOptions{})
		now, err := s.sun.Session(ctx, s.id)
		must(t, err)
		had := ""
		for _, part := range now.SubTasks {
			if part.AssignedAgent == "bad" && part.Status == swarm.TaskRunning {
				had = part.ID
			}
		}
		for range 50 {
			s.bad.say(`"lost":true`)
			s.bad.say(`"beat":["t0"]`)
			synctest.Wait()
		}
		s.bad.say(fmt.Sprintf(`"result":{"subTask":%q,"attempt":1,"value":"late"}`, had))
		synctest.Wait()
		s.finish()
		now, err = s.sun.Session(ctx, s.id)
		must(t, err)
		if got := outcome(t, now)[had]; had == "" || got != "late" {
			t.Errorf("of %q, the result is %q", had, got)
		}
	})
}
