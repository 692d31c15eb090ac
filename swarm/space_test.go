package swarm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/swarm"
)

// heavy is a worker whose results have this many bytes.
func heavy(bytes int) swarm.Worker {
	return func(context.Context, swarm.Job) (json.RawMessage, error) {
		return json.Marshal(strings.Repeat("x", bytes))
	}
}

// Ended swarms are forgotten when running ones need their space, the oldest first.
func TestEndedSwarmsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{Journal: &swarm.MemoryJournal{MaxBytes: 1 << 20}})
		h.participant("agent", swarm.ParticipantOptions{}, heavy(25<<10), "a")
		var ids []string
		for range 20 { // 5 times the available space
			s := run(t, c, plan(5, "a"))
			ids = append(ids, s.ID)
			time.Sleep(2 * time.Minute) // enough time to fetch its outcome
		}
		list, err := c.Sessions(ctx)
		must(t, err)
		if len(list) == 0 || len(list) > 8 {
			t.Fatalf("%d swarms are known", len(list))
		}
		for _, s := range list {
			if !slices.Contains(ids[len(ids)-len(list):], s.ID) || s.Status != swarm.Completed {
				t.Errorf("%s, which is %s, is not one of the latest", s.ID, s.Status)
			}
		}
		_, err = c.Session(ctx, ids[0])
		wantCode(t, err, swarm.CodeNotFound)
	})
}

// forgetful is a journal whose Last fails every second time.
type forgetful struct {
	swarm.Journal
	calls atomic.Int64
}

func (j *forgetful) Last(ctx context.Context) (map[string]uint64, error) {
	if j.calls.Add(1)%2 == 0 {
		return nil, errors.New("the disk is slow")
	}
	return j.Journal.Last(ctx)
}

// A swarm does not fail because the journal cannot list what could be forgotten.
func TestAFailingListOfTheJournalStopsNoSwarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{Journal: &forgetful{Journal: &swarm.MemoryJournal{MaxBytes: 1 << 20}}})
		h.participant("agent", swarm.ParticipantOptions{}, heavy(25<<10), "a")
		for range 20 { // 5 times the available space
			run(t, c, plan(5, "a"))
			time.Sleep(2 * time.Minute)
		}
	})
}

// stalled is a journal that reports late that it is full.
type stalled struct {
	swarm.Journal
	full     atomic.Bool
	notified chan struct{}
}

func (j *stalled) Room(ctx context.Context) (free, total int64, err error) {
	if !j.full.Load() {
		return j.Journal.Room(ctx)
	}
	select {
	case <-j.notified:
		return 0, 1 << 20, nil
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// A coordinator whose append fails for lack of space does not end the swarm when another coordinator already leads
// it.
func TestAFullJournalDoesNotEndAnotherLeadersSwarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		shared := new(swarm.MemoryJournal)
		slow := &stalled{Journal: shared, notified: make(chan struct{})}
		sun := h.coordinator("sun", swarm.CoordinatorOptions{Journal: slow, Successors: []string{"earth"}})
		earth := h.coordinator("earth", swarm.CoordinatorOptions{Journal: shared, Successors: []string{"sun"}})
		end := make(chan struct{})
		h.participant("agent", swarm.ParticipantOptions{}, workUntil(end), "a")
		s, err := sun.Create(ctx, plan(2, "a"))
		must(t, err)
		synctest.Wait()
		slow.full.Store(true)
		time.Sleep(2 * time.Minute)
		s, err = earth.Session(ctx, s.ID)
		must(t, err)
		if s.Coordinator != "earth" || s.Status != swarm.Active {
			t.Fatalf("%s leads a swarm that is %s", s.Coordinator, s.Status)
		}
		close(slow.notified)
		synctest.Wait()
		wantCode(t, sun.SetState(ctx, s.ID, "k", json.RawMessage(`1`)), swarm.CodeNotFound) // it no longer leads the swarm
		close(end)
		_, err = earth.Wait(ctx, s.ID)
		must(t, err)
	})
}

// When nothing can be forgotten, new swarms and changes of the shared state are refused while running swarms still
// have space. A swarm that needs more than there is fails at once and says why, and the others continue.
func TestFullJournalsDoNotStopRunningSwarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		c := h.coordinator("sun", swarm.CoordinatorOptions{Journal: &swarm.MemoryJournal{MaxBytes: 2 << 20}})
		end := make(chan struct{})
		h.participant("waits", swarm.ParticipantOptions{}, workUntil(end), "wait")
		h.participant("fills", swarm.ParticipantOptions{}, func(ctx context.Context, j swarm.Job) (json.RawMessage, error) {
			if j.SubTaskID == "t13" { // 1.3 of 1.75 MiB are used
				select {
				case <-end:
				case <-ctx.Done():
				}
			}
			return heavy(50<<10)(ctx, j)
		}, "fill")
		patient, err := c.Create(ctx, plan(1, "wait"))
		must(t, err)
		greedy, err := c.Create(ctx, plan(50, "fill")) // each result is stored twice: for the sub-task and in the outcome
		must(t, err)
		time.Sleep(time.Second)
		for i := 0; err == nil; i++ {
			if i > 40 {
				t.Fatal("SetState was never refused")
			}
			value, _ := json.Marshal(strings.Repeat("x", 50<<10))
			err = c.SetState(ctx, patient.ID, fmt.Sprint(i), value)
		}
		wantCode(t, err, swarm.CodeNoRoom)
		_, err = c.Create(ctx, plan(1, "wait"))
		wantCode(t, err, swarm.CodeNoRoom)
		must(t, c.SetState(ctx, patient.ID, "0", nil)) // a deletion is always allowed
		began := time.Now()
		go func() {
			synctest.Wait() // the swarm below waits then
			close(end)
		}()
		greedy, err = c.Wait(ctx, greedy.ID)
		wantCode(t, err, swarm.CodeFailed)
		if !strings.Contains(greedy.Error, "journals of swarms are full") || time.Since(began) > time.Minute {
			t.Errorf("after %s: %s", time.Since(began), greedy.Error)
		}
		patient, err = c.Wait(ctx, patient.ID)
		must(t, err)
		_, err = c.Create(ctx, plan(1, "wait"))
		wantCode(t, err, swarm.CodeNoRoom) // their waiters may not have the outcome yet
		time.Sleep(2 * time.Minute)
		run(t, c, plan(1, "wait")) // the failed swarm is forgotten
	})
}

// reader is a journal that counts records read.
type reader struct {
	swarm.Journal
	reads, records atomic.Int64
}

func (j *reader) Read(ctx context.Context, id string, after uint64) ([]swarm.Record, error) {
	all, err := j.Journal.Read(ctx, id, after)
	j.reads.Add(1)
	j.records.Add(int64(len(all)))
	return all, err
}

// A swarm led by another coordinator is read once and then followed; a forgotten swarm is dropped from the cache.
func TestASwarmLedByAnotherIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHive(t)
		shared := new(swarm.MemoryJournal)
		journal := &reader{Journal: shared}
		sun := h.coordinator("sun", swarm.CoordinatorOptions{Journal: shared})
		earth := h.coordinator("earth", swarm.CoordinatorOptions{Journal: journal, Takeover: time.Hour})
		step := make(chan struct{})
		h.participant("agent", swarm.ParticipantOptions{}, func(ctx context.Context, _ swarm.Job) (json.RawMessage, error) {
			select {
			case <-step:
			case <-ctx.Done():
			}
			return nil, nil
		}, "a")
		s, err := sun.Create(ctx, swarm.Plan{ID: "one", TaskDescription: "x", SubTasks: plan(5).SubTasks})
		must(t, err)
		for n := range 6 {
			if n > 0 {
				step <- struct{}{}
			}
			synctest.Wait()
			want, err := sun.Session(ctx, s.ID)
			must(t, err)
			for range 10 {
				got, err := earth.Session(ctx, s.ID)
				must(t, err)
				if got.Sequence != want.Sequence || got.Status != want.Status {
					t.Fatalf("after %d: record %d, %s; want %d, %s", n, got.Sequence, got.Status, want.Sequence, want.Status)
				}
				list, err := earth.Sessions(ctx)
				must(t, err)
				if len(list) != 1 || list[0].Sequence != want.Sequence {
					t.Fatalf("the list has %+v", list)
				}
			}
		}
		all, err := shared.Read(ctx, s.ID, 0)
		must(t, err)
		if n := journal.records.Load(); n != int64(len(all)) {
			t.Errorf("%d records were read, there are %d", n, len(all))
		}
		if n := journal.reads.Load(); n > 12 {
			t.Errorf("it was read %d times", n)
		}
		must(t, shared.Forget(ctx, s.ID))
		_, err = earth.Session(ctx, s.ID)
		wantCode(t, err, swarm.CodeNotFound)
		close(step)
		again, err := sun.Create(ctx, swarm.Plan{ID: "one", TaskDescription: "y", SubTasks: plan(1).SubTasks})
		must(t, err)
		got, err := earth.Session(ctx, again.ID)
		must(t, err)
		if got.TaskDescription != "y" {
			t.Errorf("the task is %q", got.TaskDescription)
		}
		_, err = sun.Wait(ctx, again.ID)
		must(t, err)
		must(t, shared.Forget(ctx, "one"))
		_, err = sun.Create(ctx, swarm.Plan{ID: "one", TaskDescription: "z", SubTasks: plan(1).SubTasks})
		must(t, err)
		synctest.Wait()
		if got, err = earth.Session(ctx, "one"); err != nil || got.TaskDescription != "z" { // nothing was read in between
			t.Errorf("%v: the task is %q", err, got.TaskDescription)
		}
	})
}
