package damage_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/bus/damage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	messages = 240
	account  = "$G"
)

func open(t *testing.T, dir string) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{DataDir: dir, Durability: bus.DurabilityFast, CheckBudget: time.Minute})
	must(t, err)
	return b
}

func end(t *testing.T, b *bus.Bus) {
	t.Helper()
	must(t, b.Close(context.WithoutCancel(t.Context())))
}

func config(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Description: "things of " + name, Subjects: []string{strings.ToLower(name) + ".*"}, Storage: jetstream.FileStorage,
		MaxBytes: 125_000, Discard: jetstream.DiscardNew, // so that blocks are small
	}
}

func subject(name string, n int) string { return fmt.Sprintf("%s.t%04d", strings.ToLower(name), n) }

func body(n int) []byte { return fmt.Appendf(nil, `{"n":%d,"text":"%s"}`, n, strings.Repeat("x", 350)) }

// store makes a store with the streams, every second message of which has headers, and returns its data directory.
func store(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	b := open(t, dir)
	for _, name := range names {
		_, err := b.EnsureStream(t.Context(), config(name))
		must(t, err)
		batch := b.NewBatch()
		for n := 1; n <= messages; n++ {
			m := &nats.Msg{Subject: subject(name, n), Data: body(n)}
			if n%2 == 0 {
				m.Header = nats.Header{"Kind": {"even"}}
			}
			must(t, batch.Add(t.Context(), m))
		}
		_, err = batch.Wait(t.Context())
		must(t, err)
	}
	end(t, b)
	return dir
}

func messagesDir(dir, stream string) string {
	return filepath.Join(dir, "bus", "jetstream", account, "streams", stream, "msgs")
}

// place is where a message is.
type place struct {
	file           string
	offset, length int
	last           bool // in the stream's last block
}

// places finds the messages of a stream.
func places(t *testing.T, dir, stream string) map[int]place {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(messagesDir(dir, stream), "*.blk"))
	must(t, err)
	slices.SortFunc(files, func(a, b string) int { return len(a) - len(b) })
	if len(files) < 3 {
		t.Fatalf("the stream has the blocks %v", files)
	}
	at := map[int]place{}
	highest, lastFile := 0, ""
	for _, f := range files {
		raw, err := os.ReadFile(f)
		must(t, err)
		for offset := 0; offset < len(raw); {
			length := int(binary.LittleEndian.Uint32(raw[offset:]) &^ (1 << 31))
			n := int(binary.LittleEndian.Uint64(raw[offset+4:]))
			at[n] = place{file: f, offset: offset, length: length}
			if n > highest {
				highest, lastFile = n, f
			}
			offset += length
		}
	}
	for n, p := range at {
		p.last = p.file == lastFile
		at[n] = p
	}
	return at
}

// flip flips bits of a file.
func flip(t *testing.T, file string, bits ...int) {
	t.Helper()
	raw, err := os.ReadFile(file)
	must(t, err)
	for _, b := range bits {
		raw[b/8] ^= 1 << (b % 8)
	}
	must(t, os.WriteFile(file, raw, 0o600))
}

// crash leaves a store as if its hub had been killed instead of stopped.
func crash(t *testing.T, dir string) {
	t.Helper()
	must(t, os.Remove(filepath.Join(dir, "bus", "damage", "stopped.json")))
}

func check(t *testing.T, dir string, log *bytes.Buffer) *damage.Keeper {
	t.Helper()
	k := damage.Open(damage.Options{Dir: filepath.Join(dir, "bus"), Logger: slog.New(slog.NewTextHandler(log, nil)), Budget: time.Minute})
	k.Check(t.Context())
	return k
}

// One flipped bit in whatever part of a message, in closed blocks and in the last one, is found, named and corrected,
// also if the next message is damaged as well.
func TestFlippedBitsAreCorrected(t *testing.T) {
	dir := store(t, "S")
	all := places(t, dir, "S")
	intact := map[string][]byte{}
	for _, p := range all {
		if intact[p.file] == nil {
			raw, err := os.ReadFile(p.file)
			must(t, err)
			intact[p.file] = raw
		}
	}
	// Of the length, the sequence, the time, the length of the subject, the subject, the length of the headers or the
	// body, the body and the checksum.
	const subjectAt = 22
	bits := []int{0, 9, 24, 31, 32, 90, 96, 159, 160, 161, 162, 166, 176, (subjectAt + 6) * 8, (subjectAt+7)*8 + 2, (subjectAt + 9) * 8, (subjectAt + 30) * 8, -65, -64, -1}
	flipped := map[int]int{}
	for n := 1; n <= messages; n++ {
		p := all[n]
		if n%7 == 0 {
			continue
		}
		bit := bits[len(flipped)%len(bits)]
		if bit < 0 {
			bit += p.length * 8
		}
		flipped[n] = bit
		flip(t, p.file, p.offset*8+bit)
	}
	var log bytes.Buffer
	k := check(t, dir, &log)
	for _, r := range k.Records() {
		bit, ok := flipped[int(r.Sequence)]
		if !ok || r.Bit == nil || *r.Bit != bit || r.Stream != "S" || r.Subject != subject("S", int(r.Sequence)) || r.Holds != "things of S" || r.Action != damage.ActionCorrected || r.Lost() {
			t.Errorf("bit %d was flipped; the record is %+v", bit, r)
		}
		delete(flipped, int(r.Sequence))
	}
	if len(flipped) > 0 {
		t.Errorf("flipped bits were not named: %v", flipped)
	}
	for file, raw := range intact {
		if mended, err := os.ReadFile(file); err != nil || !bytes.Equal(mended, raw) {
			t.Errorf("%s is not as before: %v", file, err)
		}
	}
	if found := len(k.Records()); strings.Count(log.String(), "\n") != found {
		t.Errorf("%d were found, and the log is %s", found, &log)
	}
	t.Logf("flipped bits: %s", check(t, dir, new(bytes.Buffer)).Counts())
}

// Messages that cannot be corrected are named and set aside. The rest is there, also after a crash, and sequences go on.
func TestWhatCannotBeCorrectedIsSetAside(t *testing.T) {
	for _, crashed := range []bool{false, true} {
		t.Run(fmt.Sprint("crashed=", crashed), func(t *testing.T) {
			dir := store(t, "FIRST", "BODY", "LENGTH", "LAST", "ALL")
			lost := map[string][]int{}
			damaged := func(stream string, n int, bits ...int) {
				p := places(t, dir, stream)[n]
				for i := range bits {
					bits[i] += p.offset * 8
				}
				lost[stream] = append(lost[stream], n)
				flip(t, p.file, bits...)
			}
			all := places(t, dir, "ALL")
			damaged("FIRST", 1, 800, 900)
			damaged("BODY", 30, 801, 1400)
			damaged("BODY", 31, 500, 1400)
			damaged("LENGTH", 120, 1, 3)
			damaged("LAST", messages, 700, 900)
			damaged("ALL", 50, 0, 7, 29)
			if crashed {
				for stream := range lost {
					must(t, os.Remove(filepath.Join(messagesDir(dir, stream), "index.db")))
				}
			}
			// A block in the middle is nothing but noise.
			p := all[150]
			for n, q := range all {
				if q.file == p.file {
					lost["ALL"] = append(lost["ALL"], n)
				}
			}
			info, err := os.Stat(p.file)
			must(t, err)
			must(t, os.WriteFile(p.file, bytes.Repeat([]byte("noise"), int(info.Size())/5), 0o600))

			b := open(t, dir)
			named := map[string]map[int]bool{}
			for _, r := range b.Damage() {
				if !r.Lost() {
					t.Errorf("it is not lost: %+v", r)
				}
				if named[r.Stream] == nil {
					named[r.Stream] = map[int]bool{}
				}
				for n := r.Sequence; n <= max(r.Sequence, r.Last); n++ {
					named[r.Stream][int(n)] = true
				}
			}
			for stream, numbers := range lost {
				for _, n := range numbers {
					if !named[stream][n] {
						t.Errorf("message %d of %s is not named: %v", n, stream, slices.Sorted(maps.Keys(named[stream])))
					}
				}
				readRest(t, b, stream, numbers)
			}
			found := len(b.Damage())
			if i := b.Info().Damage; i == nil || i.Lost != len(b.Damage()) {
				t.Errorf("the bus reports %+v", i)
			}
			end(t, b)
			b = open(t, dir)
			if again := len(b.Damage()); again != found {
				t.Errorf("after another start there are %d records", again)
			}
			end(t, b)
		})
	}
}

// readRest verifies that all messages but the lost ones are there, and that sequences go on.
func readRest(t *testing.T, b *bus.Bus, stream string, lost []int) {
	t.Helper()
	c, err := b.JetStream().CreateConsumer(t.Context(), stream, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true})
	must(t, err)
	batch, err := c.Fetch(messages-len(lost), jetstream.FetchMaxWait(time.Minute))
	must(t, err)
	var got []int
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		must(t, err)
		n := int(meta.Sequence.Stream)
		if got = append(got, n); !bytes.Equal(m.Data(), body(n)) || m.Subject() != subject(stream, n) {
			t.Errorf("%s: message %d is %s: %s", stream, n, m.Subject(), m.Data())
		}
	}
	if pending := c.CachedInfo().NumPending; pending != uint64(len(got)) || len(got) != messages-len(lost) || slices.ContainsFunc(got, func(n int) bool { return slices.Contains(lost, n) }) {
		t.Errorf("%s: %d messages were lost, %d are there, and %d were read: %v", stream, len(lost), pending, len(got), got)
	}
	ack, err := b.Publish(t.Context(), &nats.Msg{Subject: strings.ToLower(stream) + ".next", Data: []byte("next")})
	must(t, err)
	if ack.Sequence != messages+1 {
		t.Errorf("%s: the next message has the sequence %d", stream, ack.Sequence)
	}
}

// Settings and indexes are corrected, restored from a copy, or made anew.
func TestSettingsAndIndexes(t *testing.T) {
	dir := store(t, "CORRECTED", "RESTORED", "GONE", "INDEX")
	end(t, open(t, dir)) // keeps copies
	stream := func(name, file string) string { return filepath.Join(filepath.Dir(messagesDir(dir, name)), file) }
	flip(t, stream("CORRECTED", "meta.inf"), 500)
	flip(t, stream("RESTORED", "meta.inf"), 400, 300)
	must(t, os.Remove(stream("GONE", "meta.inf")))
	flip(t, stream("INDEX", "msgs/index.db"), 300)
	var log bytes.Buffer
	k := check(t, dir, &log)
	for _, r := range k.Records() {
		want := map[string]damage.Action{"CORRECTED": damage.ActionCorrected, "RESTORED": damage.ActionRestored, "GONE": damage.ActionRestored, "INDEX": damage.ActionRebuilt}[r.Stream]
		if r.Action != want || r.Lost() {
			t.Errorf("the record is %+v", r)
		}
	}
	if c := k.Counts(); c.String() != "1 corrected, 3 rebuilt" {
		t.Errorf("the counts are %s: %s", c, &log)
	}
	b := open(t, dir)
	for _, name := range []string{"CORRECTED", "RESTORED", "GONE", "INDEX"} {
		readRest(t, b, name, nil)
	}
	end(t, b)
}

// A write that a crash has cut off was never acknowledged: it is no damage.
func TestACutOffWriteIsNoDamage(t *testing.T) {
	dir := store(t, "S")
	last := places(t, dir, "S")[messages]
	must(t, os.Truncate(last.file, int64(last.offset+last.length-20)))
	must(t, os.Remove(filepath.Join(messagesDir(dir, "S"), "index.db")))
	crash(t, dir)
	b := open(t, dir)
	records := b.Damage()
	if len(records) != 1 || records[0].Kind != damage.KindWrite || records[0].Lost() {
		t.Errorf("the records are %+v", records)
	}
	end(t, b)
}

// After a clean stop all records were on the disk: files that are shorter then, or gone, have lost some. After a crash
// nobody can tell, since the index may be newer than what was synced.
func TestWhatIsGoneAfterACleanStopIsNamed(t *testing.T) {
	gone := map[string]func(t *testing.T, dir string) (first int){
		"the last file is empty": func(t *testing.T, dir string) int {
			all := places(t, dir, "S")
			file, first := all[messages].file, messages
			for n, p := range all {
				if p.file == file {
					first = min(first, n)
				}
			}
			must(t, os.Truncate(file, 0))
			return first
		},
		"the last file ends within a record": func(t *testing.T, dir string) int {
			p := places(t, dir, "S")[messages-1]
			must(t, os.Truncate(p.file, int64(p.offset+p.length-20)))
			return messages - 1
		},
		"no file is left": func(t *testing.T, dir string) int {
			files, err := filepath.Glob(filepath.Join(messagesDir(dir, "S"), "*.blk"))
			must(t, err)
			for _, f := range files {
				must(t, os.Remove(f))
			}
			return 1
		},
	}
	for name, cut := range gone {
		t.Run(name, func(t *testing.T) {
			dir := store(t, "S")
			first := cut(t, dir)
			lost := func(records []damage.Record) (first, last int) {
				first = messages + 1
				for _, r := range records {
					if r.Lost() && r.Stream == "S" {
						first, last = min(first, int(r.Sequence)), max(last, int(r.Sequence), int(r.Last))
					}
				}
				return first, last
			}
			found, err := damage.Open(damage.Options{Dir: filepath.Join(dir, "bus"), Logger: slog.New(slog.DiscardHandler)}).Survey(t.Context(), false)
			must(t, err)
			if from, _ := lost(found); from != first {
				t.Errorf("the survey has found %+v", found)
			}
			b := open(t, dir)
			noted := len(b.Damage())
			if from, to := lost(b.Damage()); from != first || to != messages {
				t.Errorf("records from %d are gone; noted was %+v", first, b.Damage())
			}
			end(t, b)
			b = open(t, dir)
			if len(b.Damage()) != noted {
				t.Errorf("after one more start %+v", b.Damage())
			}
			end(t, b)
		})
	}
}

func TestAStreamThatIsGoneAfterACleanStopIsNamed(t *testing.T) {
	dir := store(t, "S", "OTHER")
	must(t, os.RemoveAll(filepath.Dir(messagesDir(dir, "S"))))
	b := open(t, dir)
	if r := b.Damage(); len(r) != 1 || r[0].Kind != damage.KindStream || r[0].Stream != "S" || !r[0].Lost() {
		t.Errorf("the records are %+v", r)
	}
	end(t, b)
	b = open(t, dir)
	if r := b.Damage(); len(r) != 1 {
		t.Errorf("after one more start the records are %+v", r)
	}
	end(t, b)
}

// A stop does not fail because what the store has cannot be noted, as on a full disk; the next start does not count anything as missing then.
func TestAStopThatCannotBeNotedIsOne(t *testing.T) {
	dir := store(t, "S")
	var log bytes.Buffer
	b, err := bus.Open(t.Context(), bus.Config{DataDir: dir, CheckBudget: time.Minute, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(dir, "bus", "damage", "stopped.json", "full"), 0o700)) // which also root cannot replace
	end(t, b)
	if !strings.Contains(log.String(), "what the store has cannot be noted") {
		t.Errorf("the log is %s", log.String())
	}
	must(t, os.RemoveAll(filepath.Join(dir, "bus", "damage", "stopped.json")))
	must(t, os.RemoveAll(filepath.Dir(messagesDir(dir, "S"))))
	b = open(t, dir)
	if r := b.Damage(); len(r) > 0 {
		t.Errorf("the records are %+v", r)
	}
	end(t, b)
}

// The damage of a file beside the store is noted once, whoever finds it, also after a restart, and again once more is known of it.
func TestTheDamageOfAFileIsNotedOnce(t *testing.T) {
	dir := store(t, "S")
	outside := filepath.Join(t.TempDir(), "agents", "a.guid")
	inside := filepath.Join(dir, "peer.key")
	must(t, os.WriteFile(inside, []byte("x"), 0o600))
	notes := func(b *bus.Bus) {
		t.Helper()
		for range 2 {
			b.FileDamaged("1", outside, outside+".damaged-00", "its checksum does not match", "identities", true)
			b.FileDamaged("2", inside, "", "it is not a key", "the key", false)
		}
	}
	b := open(t, dir)
	notes(b)
	end(t, b)
	b = open(t, dir)
	notes(b)
	r := b.Damage()
	if len(r) != 2 || r[0].File != outside || r[0].Lost() || r[1].File != "../peer.key" || r[1].Action != damage.ActionFound || !r[1].Lost() {
		t.Errorf("the records are %+v", r)
	}
	b.FileDamaged("2", inside, inside+".damaged-lost-00", "it is not a key", "the key", false)
	must(t, os.Remove(inside))
	b.FileDamaged("3", inside, "", "it is gone", "the key", false)
	if r := b.Damage(); len(r) != 3 || r[1].Action != damage.ActionQuarantined || r[1].Kept != "../peer.key.damaged-lost-00" || r[2].Action != damage.ActionMissing {
		t.Errorf("the records are %+v", r)
	}
	b.FileDamaged("4", outside, "", "it begins with no GUID", "identities", false)
	end(t, b)
	_, err := bus.Settle(t.Context(), bus.Config{DataDir: dir})
	must(t, err)
	b = open(t, dir)
	b.FileDamaged("4", outside, outside+".damaged-lost-00", "it begins with no GUID", "identities", false)
	if r := b.Damage(); len(r) != 4 || !r[3].Settled || r[3].Kept == "" {
		t.Errorf("what was settled is %+v", r)
	}
	end(t, b)
	b = open(t, dir)
	if r := b.Damage(); len(r) != 4 || !r[3].Settled {
		t.Errorf("after a restart what was settled is %+v", r)
	}
	end(t, b)
}

// What agents have deleted is not missing, and neither is what a crash has lost before it was synced.
func TestWhatWasDeletedOrNeverSyncedIsNotMissing(t *testing.T) {
	dir := store(t, "PURGED", "DELETED", "SHORTER", "REMOVED")
	b := open(t, dir)
	purged, err := b.JetStream().Stream(t.Context(), "PURGED")
	must(t, err)
	must(t, purged.Purge(t.Context()))
	deleted, err := b.JetStream().Stream(t.Context(), "DELETED")
	must(t, err)
	must(t, deleted.DeleteMsg(t.Context(), messages))
	must(t, b.JetStream().DeleteStream(t.Context(), "REMOVED"))
	end(t, b)
	b = open(t, dir)
	if r := b.Damage(); len(r) > 0 {
		t.Errorf("after a clean stop the records are %+v", r)
	}
	end(t, b)
	crash(t, dir)
	must(t, os.Truncate(places(t, dir, "SHORTER")[messages].file, 0))
	b = open(t, dir)
	if r := b.Damage(); len(r) > 0 {
		t.Errorf("after a crash the records are %+v", r)
	}
	end(t, b)
}

// What the server would not read at its start is checked within the budget, and the rest in the background, which
// only names what it finds; the next start mends.
func TestTheRestIsCheckedInTheBackground(t *testing.T) {
	dir := store(t, "S")
	p := places(t, dir, "S")[5]
	info, err := os.Stat(p.file)
	must(t, err)
	check(t, dir, new(bytes.Buffer))
	flip(t, p.file, p.offset*8+900, p.offset*8+901)
	must(t, os.Chtimes(p.file, info.ModTime(), info.ModTime())) // nothing tells that it has changed
	k := damage.Open(damage.Options{Dir: filepath.Join(dir, "bus"), Logger: slog.New(slog.DiscardHandler), Budget: 1})
	if r := k.Check(t.Context()); r.Skipped == 0 || r.Found != 0 {
		t.Fatalf("the check has done %+v", r)
	}
	if !k.Rest(t.Context()) {
		t.Error("the background has found nothing")
	}
	if records := k.Records(); len(records) != 1 || records[0].Action != damage.ActionFound || records[0].Sequence != 5 || !records[0].Lost() {
		t.Errorf("the records are %+v", records)
	}
	k = check(t, dir, new(bytes.Buffer))
	if records := k.Records(); len(records) != 1 || records[0].Action != damage.ActionQuarantined {
		t.Errorf("after the next start the records are %+v", records)
	}
	b := open(t, dir)
	readRest(t, b, "S", []int{5})
	end(t, b)
}

// The server reads a stream anew when a record of it was set aside, so that all of its blocks are checked then, whatever the budget is.
func TestAStreamWithADamagedRecordIsCheckedCompletely(t *testing.T) {
	dir := store(t, "S")
	check(t, dir, new(bytes.Buffer))
	all := places(t, dir, "S")
	info, err := os.Stat(all[5].file)
	must(t, err)
	for _, n := range []int{5, messages} {
		flip(t, all[n].file, all[n].offset*8+900, all[n].offset*8+901)
	}
	must(t, os.Chtimes(all[5].file, info.ModTime(), info.ModTime())) // nothing tells that it has changed
	k := damage.Open(damage.Options{Dir: filepath.Join(dir, "bus"), Logger: slog.New(slog.DiscardHandler), Budget: 1})
	if r := k.Check(t.Context()); r.Skipped != 0 || r.Found != 2 {
		t.Errorf("the check has done %+v", r)
	}
	b := open(t, dir)
	readRest(t, b, "S", []int{5, messages})
	end(t, b)
}

// A stream without messages is not read anew after a clean stop.
func TestAnEmptyStreamIsNotRebuilt(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	_, err := b.EnsureStream(t.Context(), config("EMPTY"))
	must(t, err)
	end(t, b)
	check(t, dir, new(bytes.Buffer))
	k := damage.Open(damage.Options{Dir: filepath.Join(dir, "bus"), Logger: slog.New(slog.DiscardHandler), Budget: 1})
	if r := k.Check(t.Context()); r.Blocks != 0 || r.Skipped != 1 {
		t.Errorf("the check has done %+v", r)
	}
}

// An index of a former state goes, unless only it has the last sequence.
func TestAnOutdatedIndex(t *testing.T) {
	dir := store(t, "S")
	index := filepath.Join(messagesDir(dir, "S"), "index.db")
	outdated, err := os.ReadFile(index)
	must(t, err)
	b := open(t, dir)
	_, err = b.Publish(t.Context(), &nats.Msg{Subject: subject("S", messages+1), Data: body(messages + 1)})
	must(t, err)
	end(t, b)
	must(t, os.WriteFile(index, outdated, 0o600))
	check(t, dir, new(bytes.Buffer))
	if _, err := os.Stat(index); !os.IsNotExist(err) {
		t.Errorf("the index is still there: %v", err)
	}

	must(t, os.WriteFile(index, outdated, 0o600))
	last := places(t, dir, "S")[messages]
	must(t, os.Truncate(last.file, int64(last.offset))) // as a power cut might
	check(t, dir, new(bytes.Buffer))
	if _, err := os.Stat(index); err != nil {
		t.Errorf("the index is gone: %v", err)
	}
	b = open(t, dir)
	readRest(t, b, "S", []int{messages}) // the next message gets the next sequence
	end(t, b)
}

// An account that no server opens at its start is checked before it is opened, or in the background, which mends it.
func TestAnAccountIsCheckedLater(t *testing.T) {
	for name, then := range map[string]func(*damage.Keeper){
		"before it is opened": func(k *damage.Keeper) { must(t, k.CheckAccount(t.Context(), account)) },
		"in the background":   func(k *damage.Keeper) { k.Rest(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := store(t, "CRASHED", "STOPPED")
			must(t, os.Remove(filepath.Join(messagesDir(dir, "CRASHED"), "index.db")))
			for _, name := range []string{"CRASHED", "STOPPED"} {
				p := places(t, dir, name)[messages]
				flip(t, p.file, p.offset*8+900, p.offset*8+901)
			}
			k := damage.Open(damage.Options{Dir: filepath.Join(dir, "bus"), Logger: slog.New(slog.DiscardHandler), Later: func(name string) bool { return name == account }})
			if r := k.Check(t.Context()); r.Blocks != 0 || r.Found != 0 {
				t.Errorf("the check has done %+v", r)
			}
			then(k)
			then(k) // does nothing
			if records := k.Records(); len(records) != 2 || records[0].Action != damage.ActionQuarantined || records[1].Action != damage.ActionQuarantined {
				t.Errorf("the records are %+v", records)
			}
			b := open(t, dir)
			for _, name := range []string{"CRASHED", "STOPPED"} {
				readRest(t, b, name, []int{messages})
			}
			end(t, b)
		})
	}
}

// A bit that flips after an account was checked in the background is found before the account is opened, and not mended afterwards.
func TestAnAccountIsCheckedAgainBeforeItIsOpened(t *testing.T) {
	dir := store(t, "S")
	must(t, os.Remove(filepath.Join(messagesDir(dir, "S"), "index.db")))
	at := places(t, dir, "S")
	harm := func(n int) { flip(t, at[n].file, at[n].offset*8+900, at[n].offset*8+901) }
	synctest.Test(t, func(t *testing.T) {
		k := damage.Open(damage.Options{Dir: filepath.Join(dir, "bus"), Logger: slog.New(slog.DiscardHandler), Fresh: time.Minute, Later: func(string) bool { return true }})
		k.Check(t.Context())
		k.Rest(t.Context())
		time.Sleep(2 * time.Minute)
		harm(3)
		harm(7)
		must(t, k.CheckAccount(t.Context(), account))
		if n := len(k.Records()); n != 2 {
			t.Errorf("%d damaged records were found", n)
		}
		harm(9)
		must(t, k.CheckAccount(t.Context(), account))
		k.Rest(t.Context())
		for _, r := range k.Records()[2:] {
			if r.Action != damage.ActionFound {
				t.Errorf("what may be open was changed: %+v", r)
			}
		}
		harm(9)
	})
	b := open(t, dir)
	readRest(t, b, "S", []int{3, 7})
	end(t, b)
}

// Nothing is erased of which no copy can be written, as on a full disk, and no server may open the account then: it would cut the block.
func TestNothingIsErasedWithoutACopy(t *testing.T) {
	dir := store(t, "S")
	must(t, os.Remove(filepath.Join(messagesDir(dir, "S"), "index.db")))
	p := places(t, dir, "S")[3]
	flip(t, p.file, p.offset*8+900, p.offset*8+901)
	damaged, err := os.ReadFile(p.file)
	must(t, err)
	kept := filepath.Join(dir, "bus", "damage", "kept")
	must(t, errors.Join(os.MkdirAll(filepath.Dir(kept), 0o700), os.WriteFile(kept, nil, 0o600))) // no directory can be made
	later := map[bool]func(string) bool{true: func(string) bool { return true }}
	for _, isLater := range []bool{true, false} {
		k := damage.Open(damage.Options{Dir: filepath.Join(dir, "bus"), Logger: slog.New(slog.DiscardHandler), Later: later[isLater]})
		r := k.Check(t.Context())
		if err := k.CheckAccount(t.Context(), account); (err != nil) != isLater || (r.Unkept != nil) == isLater {
			t.Errorf("later %v: %v, %v", isLater, err, r.Unkept)
		}
		if now, err := os.ReadFile(p.file); err != nil || !bytes.Equal(now, damaged) {
			t.Errorf("later %v: the block was changed: %v", isLater, err)
		}
		if n := len(k.Records()); n != 1 {
			t.Errorf("%d damaged records are known", n)
		}
	}
	k := damage.Open(damage.Options{Dir: filepath.Join(dir, "bus"), Logger: slog.New(slog.DiscardHandler), Later: later[true]})
	k.Check(t.Context())
	if k.CheckAccount(t.Context(), account) == nil {
		t.Error("the account may be opened")
	}
	must(t, os.Remove(kept))
	must(t, k.CheckAccount(t.Context(), account))
	records := k.Records()
	if len(records) != 1 || records[0].Action != damage.ActionQuarantined {
		t.Fatalf("the records are %+v", records)
	}
	if copied, err := os.ReadFile(filepath.Join(dir, "bus", records[0].Kept)); err != nil || !bytes.Contains(damaged, copied) || len(copied) == 0 {
		t.Errorf("the copy has %d bytes: %v", len(copied), err)
	}
	b := open(t, dir)
	readRest(t, b, "S", []int{3})
	end(t, b)
}

// What is in the place of a block, or of all of them, is damage, too.
func TestWhatIsNoBlockIsNamed(t *testing.T) {
	for name, harm := range map[string]func(dir string) error{
		"a directory": func(dir string) error { return os.Mkdir(filepath.Join(dir, "99.blk"), 0o700) },
		"a file": func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := store(t, "S")
			must(t, harm(messagesDir(dir, "S")))
			k := check(t, dir, new(bytes.Buffer))
			if r := k.Records(); len(r) != 1 || r[0].Kind != damage.KindBlock || !r[0].Lost() {
				t.Errorf("the records are %+v", r)
			}
		})
	}
}

// The background mends no account that may have been opened: it leaves one that is needed, and all when the store is checked again.
func TestTheBackgroundLeavesWhatIsNeeded(t *testing.T) {
	for name, need := range map[string]func(*damage.Keeper){
		"by a process":       func(k *damage.Keeper) { must(t, k.CheckAccount(t.Context(), account)) },
		"by another check":   func(k *damage.Keeper) { k.Check(t.Context()); must(t, k.CheckAccount(t.Context(), account)) },
		"by nobody, at last": func(*damage.Keeper) {},
	} {
		t.Run(name, func(t *testing.T) {
			dir := store(t, "S")
			check(t, dir, new(bytes.Buffer))
			p := places(t, dir, "S")[5]
			info, err := os.Stat(p.file)
			must(t, err)
			flip(t, p.file, p.offset*8+900, p.offset*8+901)
			must(t, os.Chtimes(p.file, info.ModTime(), info.ModTime())) // nothing tells that it has changed
			synctest.Test(t, func(t *testing.T) {
				k := damage.Open(damage.Options{Dir: filepath.Join(dir, "bus"), Logger: slog.New(slog.DiscardHandler), Pace: time.Hour, Later: func(string) bool { return true }})
				k.Check(t.Context())
				var background sync.WaitGroup
				background.Go(func() { k.Rest(t.Context()) })
				synctest.Wait() // it pauses before the next block
				need(k)
				background.Wait()
				want := damage.ActionFound
				if name == "by nobody, at last" {
					want = damage.ActionQuarantined
				}
				if records := k.Records(); len(records) != 1 || records[0].Action != want {
					t.Errorf("the records are %+v", records)
				}
			})
		})
	}
}

// What is remembered of blocks goes with them, and stays with an account that was not checked yet.
func TestRemovedBlocksAreForgotten(t *testing.T) {
	dir := store(t, "S", "REMOVED")
	remembered := func() (n int) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, "bus", "damage", "verified.json"))
		must(t, err)
		return strings.Count(string(text), ".blk")
	}
	later := func() *damage.Keeper {
		k := damage.Open(damage.Options{Dir: filepath.Join(dir, "bus"), Logger: slog.New(slog.DiscardHandler), Later: func(string) bool { return true }})
		k.Check(t.Context())
		return k
	}
	later().Rest(t.Context())
	all := remembered()
	must(t, os.RemoveAll(filepath.Dir(messagesDir(dir, "REMOVED"))))
	k := later()
	if n := remembered(); n != all {
		t.Errorf("before the account is checked %d of %d are remembered", n, all)
	}
	k.Rest(t.Context())
	if n := remembered(); n != all/2 {
		t.Errorf("then %d of %d are remembered", n, all)
	}
}

// What damage has left of a project's messages is there for the first process that joins it, and what is damaged is named then.
func TestAProjectIsCheckedBeforeItIsOpened(t *testing.T) {
	dir := t.TempDir()
	join := func(b *bus.Bus) *bus.Bus {
		t.Helper()
		p, err := bus.Join(t.Context(), bus.Config{Durability: bus.DurabilityFast}, func(ctx context.Context) (bus.Grant, error) {
			return b.Grant(ctx, bus.GrantRequest{Namespace: "project"})
		})
		must(t, err)
		return p
	}
	b := open(t, dir)
	p := join(b)
	cfg := config("project_S")
	cfg.Subjects = []string{"project.*"}
	_, err := p.EnsureStream(t.Context(), cfg)
	must(t, err)
	for n := range 3 {
		_, err := p.Publish(t.Context(), &nats.Msg{Subject: "project.s", Data: body(n)})
		must(t, err)
	}
	end(t, p)
	end(t, b)
	messages := filepath.Join(dir, "bus", "jetstream", "ns-project", "streams", "project_S", "msgs")
	must(t, os.Remove(filepath.Join(messages, "index.db"))) // as after a crash
	flip(t, filepath.Join(messages, "1.blk"), 900, 901)

	b = open(t, dir)
	p = join(b)
	if found := b.Damage(); len(found) != 1 || found[0].Sequence != 1 || found[0].Account != "ns-project" || !found[0].Lost() {
		t.Errorf("the records are %+v", found)
	}
	s, err := p.JetStream().Stream(t.Context(), "project_S")
	must(t, err)
	if state := s.CachedInfo().State; state.Msgs != 2 || state.LastSeq != 3 {
		t.Errorf("there is %+v", state)
	}
	end(t, p)
	end(t, b)
}

// A damaged record that had been replaced or deleted before is named, and not counted as lost.
func TestObsoleteRecordsAreNotLost(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	cfg := config("ONE")
	cfg.MaxMsgsPerSubject = 1
	_, err := b.EnsureStream(t.Context(), cfg)
	must(t, err)
	s, err := b.EnsureStream(t.Context(), config("MANY"))
	must(t, err)
	for range 2 {
		for n := 1; n <= 3; n++ {
			for _, name := range []string{"ONE", "MANY"} {
				_, err := b.Publish(t.Context(), &nats.Msg{Subject: subject(name, n), Data: body(n)})
				must(t, err)
			}
		}
	}
	must(t, s.DeleteMsg(t.Context(), 2))
	end(t, b)
	for _, name := range []string{"ONE", "MANY"} {
		file := filepath.Join(messagesDir(dir, name), "1.blk")
		raw, err := os.ReadFile(file)
		must(t, err)
		for n := range 2 { // the first two messages
			at := bytes.Index(raw, []byte(subject(name, n+1)))
			flip(t, file, (at+100)*8, (at+110)*8+1)
		}
	}
	k := check(t, dir, new(bytes.Buffer))
	if c := k.Counts(); c.String() != "1 lost, 3 obsolete" {
		t.Errorf("the counts are %s: %+v", c, k.Records())
	}
}

// A repair corrects flipped bits of records that are too large for a start, and settles the rest.
func TestARepairPutsLargeRecordsBack(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	cfg := config("LARGE")
	cfg.MaxBytes = -1
	_, err := b.EnsureStream(t.Context(), cfg)
	must(t, err)
	large := bytes.Repeat([]byte("large "), 1500)
	for _, subject := range []string{"large.a", "large.b", "large.c"} {
		_, err = b.Publish(t.Context(), &nats.Msg{Subject: subject, Data: large})
		must(t, err)
	}
	end(t, b)
	file := filepath.Join(messagesDir(dir, "LARGE"), "1.blk")
	raw, err := os.ReadFile(file)
	must(t, err)
	at := bytes.Index(raw, []byte("large.a"))
	flip(t, file, (at+300)*8)
	at = bytes.Index(raw, []byte("large.b"))
	flip(t, file, (at+300)*8, (at+400)*8)
	settings := bus.Config{DataDir: dir}
	r, err := bus.Survey(t.Context(), settings, false)
	if err != nil || r.Applied || r.String() != "2 lost" || r.Records[0].Action != damage.ActionFound {
		t.Fatalf("the survey is %+v, %v", r, err)
	}
	if raw2, err := os.ReadFile(file); err != nil || bytes.Equal(raw, raw2) {
		t.Errorf("the survey has changed the store: %v", err)
	}
	b = open(t, dir)
	if c := b.Info().Damage; c == nil || c.Lost != 2 {
		t.Errorf("after the start the bus reports %+v", c)
	}
	b.DamageRebuilt("none")
	if _, err := bus.Mend(t.Context(), settings); bus.CodeOf(err) != bus.CodeLocked {
		t.Errorf("a repair beside a hub: %v", err)
	}
	if r, err := bus.Survey(t.Context(), settings, true); err != nil || r.String() != "2 lost" {
		t.Errorf("the survey beside a hub is %+v, %v", r, err)
	}
	end(t, b)
	if c := bus.KnownDamage(dir); c.Lost != 2 {
		t.Errorf("known are %s", c)
	}
	restored, err := bus.Mend(t.Context(), settings)
	must(t, err)
	r, err = bus.Settle(t.Context(), settings)
	r.Restored = restored
	if err != nil || !r.Applied || r.Restored != 1 || r.String() != "1 lost, 1 corrected" {
		t.Fatalf("the repair has done %+v, %v", r, err)
	}
	if r, err := bus.Survey(t.Context(), settings, false); err != nil || len(r.Records) != 0 {
		t.Errorf("after the repair the survey is %+v, %v", r, err)
	}
	b = open(t, dir)
	if c := b.Info().Damage; c != nil {
		t.Errorf("after the repair the bus reports %+v", c)
	}
	s, err := b.JetStream().Stream(t.Context(), "LARGE")
	must(t, err)
	if m, err := s.GetMsg(t.Context(), 1); err != nil || !bytes.Equal(m.Data, large) {
		t.Errorf("the first message is not as before: %v", err)
	}
	end(t, b)
}

func TestWhatADamagedRecordWas(t *testing.T) {
	for subject, want := range map[string]string{
		"parley.hub.local.task.x1":               "task x1",
		"parley.hub.local.part.x1.5.2":           "a part of task x1",
		"parley.hub.local.record.session.YS9i":   "the session of the conversation a/b",
		"local.crdt.plan.3.log":                  "a change of the document plan",
		"$KV.local_crdt_head.plan":               "the head of the document plan",
		"$KV.agent-registry.x":                   "an entry of a registry or a limit",
		"global.workqueue.go":                    "an item of the queue go",
		"project-1.general":                      "a message of the channel general",
		"something.quite.different.and.longer.5": "a record of S",
	} {
		if got := (damage.Record{Kind: damage.KindMessage, Stream: "S", Subject: subject}).What(); got != want {
			t.Errorf("%s is %q instead of %q", subject, got, want)
		}
	}
}

// What was made anew from other records is not lost, nor after another start.
func TestWhatWasMadeAnewIsNotLost(t *testing.T) {
	dir := store(t, "S")
	p := places(t, dir, "S")[3]
	flip(t, p.file, (p.offset+60)*8, (p.offset+60)*8+1)
	k := check(t, dir, new(bytes.Buffer))
	if k.Counts().Lost != 1 {
		t.Fatalf("the counts are %s", k.Counts())
	}
	k.Rebuilt(subject("S", 3))
	for _, k := range []*damage.Keeper{k, check(t, dir, new(bytes.Buffer))} {
		r := k.Records()
		if len(r) != 1 || r[0].Lost() || r[0].Action != damage.ActionRebuilt || r[0].Kept == "" || k.Counts().Rebuilt != 1 {
			t.Errorf("the records are %+v", r)
		}
	}
	for subject, derived := range map[string]bool{"$KV.local_crdt_head.plan": true, "local.crdtsnap.plan.0-1-2-3": true, "local.crdt.plan.0.log": false} {
		if got := (damage.Record{Kind: damage.KindMessage, Subject: subject}).Derived(); got != derived {
			t.Errorf("%s is derived: %v", subject, got)
		}
	}
}

// A flipped bit of the ledger is found by each start until it is settled, and the other damage stays known.
func TestEveryFlippedBitOfTheLedgerIsNamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bus")
	keeper := func() *damage.Keeper {
		return damage.Open(damage.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	}
	k := keeper()
	for _, id := range []string{"1", "2", "3"} {
		k.NoteFile(id, filepath.Join(dir, "x"), "", "it is gone", "a thing", false)
	}
	path := filepath.Join(dir, "damage", "ledger.jsonl")
	raw, err := os.ReadFile(path)
	must(t, err)
	lines := bytes.SplitAfter(raw, []byte("\n"))
	from, to := len(lines[0]), len(lines[0])+len(lines[1])
	for bit := from * 8; bit < to*8; bit++ {
		flipped := bytes.Clone(raw)
		flipped[bit/8] ^= 1 << (bit % 8)
		must(t, os.WriteFile(path, flipped, 0o600))
		records := keeper().Records()
		is := func(id string) func(damage.Record) bool { return func(r damage.Record) bool { return r.ID == id } }
		i := slices.IndexFunc(records, func(r damage.Record) bool { return r.File == "damage/ledger.jsonl" })
		if i < 0 || !records[i].Lost() || !slices.ContainsFunc(records, is("1")) || slices.ContainsFunc(records, is("2")) {
			t.Fatalf("bit %d: the records are %+v", bit, records)
		}
	}
	var log bytes.Buffer
	k = damage.Open(damage.Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	k.Check(t.Context())
	if !strings.Contains(log.String(), "ledger.jsonl") {
		t.Errorf("the log is %s", log.String())
	}
	must(t, k.Settle())
	if c := keeper().Counts(); c != (damage.Counts{}) {
		t.Errorf("after it was settled: %+v", c)
	}
}

// The ledger of a former program gets checksums, and a line that a crash has cut off takes no other one with it.
func TestALedgerOfAFormerProgram(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bus")
	path := filepath.Join(dir, "damage", "ledger.jsonl")
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	record := `{"id":"1","kind":"file","action":"missing","file":"x","reason":"it is gone","kept":"damage/kept/0123456789abcdef"}`
	for name, text := range map[string]string{
		"as it was": record + "\n", "with an end that was cut off": record + "\n" + record[:40], "with a damaged newline": record + "\x0b", "without one": record,
	} {
		must(t, os.WriteFile(path, []byte(text), 0o600))
		k := damage.Open(damage.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		k.Check(t.Context())
		k.NoteFile("2", filepath.Join(dir, "y"), "", "it is gone", "a thing", false)
		k = damage.Open(damage.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		if r := k.Records(); len(r) != 2 || r[0].ID != "1" || r[1].ID != "2" {
			t.Errorf("%s: the records are %+v", name, r)
		}
		raw, err := os.ReadFile(path)
		must(t, err)
		if n := strings.Count(string(raw), `,"sum":"`); n != 2 {
			t.Errorf("%s: the ledger is %s", name, raw)
		}
	}
}

// A flipped bit of what the stop has noted makes no stream missing, and is named.
func TestEveryFlippedBitOfTheNoteOfAStopIsNamed(t *testing.T) {
	dir := store(t, "S")
	path := filepath.Join(dir, "bus", "damage", "stopped.json")
	raw, err := os.ReadFile(path)
	must(t, err)
	ledger := filepath.Join(dir, "bus", "damage", "ledger.jsonl")
	for bit := range len(raw) * 8 {
		flipped := bytes.Clone(raw)
		flipped[bit/8] ^= 1 << (bit % 8)
		must(t, os.WriteFile(path, flipped, 0o600))
		k := damage.Open(damage.Options{Dir: filepath.Join(dir, "bus"), Logger: slog.New(slog.DiscardHandler)})
		k.Check(t.Context())
		if r := k.Records(); len(r) != 1 || r[0].Kind != damage.KindFile || r[0].Action != damage.ActionRestored || r[0].File != "damage/stopped.json" {
			t.Fatalf("bit %d: the records are %+v", bit, r)
		}
		must(t, os.Remove(ledger))
	}
}
