// Package damage checks the store of an embedded NATS server before the server opens it.
//
// The server verifies the checksum of a record when it reads it, and when it has no index of a stream it truncates a
// block at the first record that it cannot read, without a word: one flipped bit loses the rest of the block. So a
// [Keeper] reads the blocks first. A record with one flipped bit is corrected. Another one is copied aside and
// replaced by an erased record, so that the server reads the rest and the sequences stay. Each damage is logged, and
// stays in a ledger beside the store.
//
// What the server will read anyway is always checked, that is, all blocks of a stream whose index is not current, as
// after a kill; so are the last blocks of all streams that have changed. Of the others, blocks that have changed since they
// were checked come first, then those whose check was longest ago, as far as the time suffices; the rest is checked in the
// background. Accounts that the server does not open at its start are checked before they are opened, or in the background.
package damage

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/wait"
)

// DefaultBudget bounds the time that a start takes for blocks that the server would not read. After a clean stop it is
// a cleanShare of it, since little speaks for damage then.
const (
	DefaultBudget = 500 * time.Millisecond
	cleanShare    = 5
)

// Options configure a Keeper.
type Options struct {
	Dir    string // of the bus; the server's store is in it
	Logger *slog.Logger
	// Budget is the time for what need not be checked before the server starts, if it was not stopped cleanly.
	Budget time.Duration
	// Pace is the pause after each block in the background.
	Pace time.Duration
	// Fresh is how long the check of an account in the background counts as one before it is opened.
	Fresh time.Duration
	// Later selects the accounts that no server opens before CheckAccount has returned; nil for none.
	Later func(account string) bool
}

// Keeper checks a store and keeps the ledger of its damage. It is safe for concurrent use, but for Check.
type Keeper struct {
	Options
	ledger *ledger

	mu      sync.Mutex
	memory  memory
	stopped stopped // what no server has opened since
	later   map[string]*part
	rest    []job // for the background
	last    Result
}

// part is an account that Check has left out.
type part struct {
	account string
	wanted  context.Context // ends when the background has to leave the account
	want    context.CancelFunc
	mu      sync.Mutex
	checked time.Time // what the server will read; zero if it was not
	opened  bool      // a server may have it open: it must not be mended
}

func newPart(account string) *part {
	p := &part{account: account}
	p.wanted, p.want = context.WithCancel(context.Background())
	return p
}

// Result is what a check has done.
type Result struct {
	Blocks  int           `json:"blocks"`  // read
	Bytes   int64         `json:"bytes"`   // read
	Skipped int           `json:"skipped"` // blocks for the background
	Found   int           `json:"found"`   // new damage
	Took    time.Duration `json:"took"`
	// Unkept is why damaged bytes could not be copied aside. Their blocks are as they were: a server would cut them.
	Unkept error `json:"-"`
}

// Open opens the ledger of a store. Check does the rest.
func Open(o Options) *Keeper {
	k := &Keeper{Options: o, memory: loadMemory(filepath.Join(o.Dir, damageDir, verifiedFile))}
	var err error
	if k.ledger, err = openLedger(filepath.Join(o.Dir, damageDir)); err != nil {
		k.Logger.Error("the ledger of the store's damage cannot be read", "error", err)
	}
	return k
}

// Records returns all damage that was ever found, the newest last.
func (k *Keeper) Records() []Record { return k.ledger.all() }

// Counts returns the numbers of damage that is not settled.
func (k *Keeper) Counts() Counts { return CountsOf(k.Records()) }

// Settle marks all damage as settled: it is no longer counted. The copies stay.
func (k *Keeper) Settle() error {
	return errors.Join(k.ledger.settle(time.Now().UTC()), k.ledger.sync())
}

// Rebuilt notes that what damaged records of a subject held is there again, from other records. Their copies stay.
func (k *Keeper) Rebuilt(subject string) {
	for _, r := range k.Records() {
		if r.Subject != subject || !r.Lost() {
			continue
		}
		r.Action = ActionRebuilt
		if _, _, err := k.ledger.add(r, nil); err != nil {
			k.Logger.Error("a repair cannot be written to the ledger of damage", "error", err)
			continue
		}
		k.Logger.Warn("what a damaged record held was made anew", "what", r.What(), "stream", r.Stream, "subject", r.Subject, "id", r.ID)
	}
	if err := k.ledger.sync(); err != nil {
		k.Logger.Error("the ledger of damage cannot be written", "error", err)
	}
}

// NoteFile notes that a file beside the store was damaged, and what was done about it, unless damage with the same id is noted already. kept is
// where the damaged file is now, "" if it was gone or is not moved yet, and holds says what it holds.
func (k *Keeper) NoteFile(id, file, kept, reason, holds string, restored bool) {
	r := Record{ID: id, Kind: KindFile, Action: ActionFound, Reason: reason, File: k.relative(file)}
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		r.Action = ActionMissing
	}
	if kept != "" {
		r.Action, r.Kept = ActionQuarantined, k.relative(kept)
	}
	if restored {
		r.Action = ActionRestored
	}
	k.note(&stream{description: holds}, r, nil)
	k.syncLedger()
}

// Last returns the result of the last Check.
func (k *Keeper) Last() Result {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last
}

// job is the check of one block.
type job struct {
	stream *stream
	block  block
	index  int // of the block in the stream
}

// Check checks the store and mends it, except for the accounts that Options.Later selects. No server may have it open. Check
// never fails: what cannot be read is logged, and the server decides.
func (k *Keeper) Check(ctx context.Context) Result {
	begun := time.Now()
	k.checkLedger()
	before := len(k.Records())
	k.endLater()
	k.takeStopped()
	accounts, err := accountsIn(k.Dir)
	if err != nil {
		k.Logger.Error("the store cannot be checked", "error", err)
	}
	for name := range k.left() {
		if !slices.Contains(accounts, name) {
			k.noteGone(name, nil)
		}
	}
	later := map[string]*part{}
	var all []stream
	for _, name := range accounts {
		if k.Later != nil && k.Later(name) {
			later[name] = newPart(name)
			continue
		}
		streams := k.streamsOf(name)
		k.noteGone(name, streams)
		all = append(all, streams...)
	}
	must, may, clean := k.jobs(all)
	budget := k.Budget
	if clean {
		budget /= cleanShare
	}
	r, rest := k.runAll(ctx, must, may, time.Now().Add(budget))
	k.removeOutdated(all)
	r.Found, r.Took, r.Unkept = len(k.Records())-before, time.Since(begun), unkept(all)
	k.forgetRemoved(func(account string) bool { return later[account] == nil }, must, may)
	k.syncLedger()
	k.save()
	k.mu.Lock()
	k.last, k.rest, k.later = r, rest, later
	k.mu.Unlock()
	return r
}

// checkLedger reports the damaged lines of the ledger that are not settled, and gives those of former programs their checksums.
func (k *Keeper) checkLedger() {
	for _, r := range k.Records() {
		if r.Kind == KindFile && r.File == damageDir+"/"+ledgerFile && !r.Settled {
			k.report(r)
		}
	}
	if err := k.ledger.sign(); err != nil {
		k.Logger.Error("the ledger of the store's damage cannot be written", "error", err)
	}
}

// endLater ends what a former Check has left for later: the server has closed the accounts, and may open them while the background goes on.
func (k *Keeper) endLater() {
	k.mu.Lock()
	later := k.later
	k.later, k.rest = nil, nil
	k.mu.Unlock()
	for _, p := range later {
		p.want()
		p.mu.Lock()
		p.opened = true
		p.mu.Unlock()
	}
}

// CheckAccount checks and mends what the server will read of an account that Check has left out, unless that was done less than
// Options.Fresh ago: a bit may have flipped since. It has to be called before the server opens the account, and blocks until
// the server may. Later calls do nothing until the next Check. After an error the server must not open the account: damaged bytes
// could not be copied aside, and it would cut them off.
func (k *Keeper) CheckAccount(ctx context.Context, account string) error {
	k.mu.Lock()
	p := k.later[account]
	k.mu.Unlock()
	if p == nil {
		return nil
	}
	p.want()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opened || !p.checked.IsZero() && time.Since(p.checked) < k.Fresh {
		p.opened = true
		return nil
	}
	rest, err := k.checkStreams(ctx, account)
	k.syncLedger()
	if err != nil {
		return err
	}
	p.opened = ctx.Err() == nil
	k.mu.Lock()
	k.rest = append(k.rest, rest...)
	k.mu.Unlock()
	return nil
}

// checkLater checks an account that no server has opened yet, as CheckAccount, and then its other blocks until the account is needed.
func (k *Keeper) checkLater(ctx context.Context, p *part) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opened || !p.checked.IsZero() {
		return
	}
	rest, err := k.checkStreams(ctx, p.account)
	if err == nil && ctx.Err() == nil {
		p.checked = time.Now()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(p.wanted, stop)()
	for len(rest) > 0 && wait.Pause(ctx, k.Pace) {
		k.run(ctx, rest[:1], time.Time{})
		_, rest = k.runRebuilt(ctx, rest[1:])
	}
	k.syncLedger()
	k.mu.Lock()
	k.rest = append(k.rest, rest...)
	k.mu.Unlock()
}

// checkStreams checks what the server will read of an account, and returns the other blocks, and why damaged bytes could not be copied
// aside.
func (k *Keeper) checkStreams(ctx context.Context, account string) (rest []job, err error) {
	all := k.streamsOf(account)
	k.noteGone(account, all)
	must, may, _ := k.jobs(all)
	_, rest = k.runAll(ctx, must, may, time.Now())
	k.removeOutdated(all)
	k.forgetRemoved(func(name string) bool { return name == account }, must, may)
	return rest, unkept(all)
}

// unkept returns why damaged bytes of streams could not be copied aside.
func unkept(all []stream) (err error) {
	for _, s := range all {
		err = errors.Join(err, s.unkept)
	}
	return err
}

// removeOutdated removes the indexes that the server would decode for nothing, and notes what streams have lost. The server uses of a
// former state the last sequence only, and only if the blocks have lost it.
func (k *Keeper) removeOutdated(all []stream) {
	for i := range all {
		s := &all[i]
		k.noteShorter(s)
		if last, known := k.lastOf(s.blocks); !s.outdated || !known || last < s.indexed {
			continue
		}
		if err := os.Remove(s.index()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			k.Logger.Warn("an outdated index cannot be removed", "stream", s.name, "error", err)
		}
	}
}

// lastOf returns the last sequence of blocks; known is false if one of them has not been read as it is.
func (k *Keeper) lastOf(blocks []block) (last uint64, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range blocks {
		if !k.memory.knows(b) {
			return 0, false
		}
		last = max(last, k.memory[b.path].Last)
	}
	return last, true
}

// streamsOf lists the streams of an account, as far as they can be read.
func (k *Keeper) streamsOf(account string) []stream {
	all, err := streamsOf(k.Dir, account)
	if err != nil {
		k.Logger.Error("the store cannot be checked", "account", account, "error", err)
	}
	k.left().mark(all)
	return all
}

// jobs lists the blocks of streams that the server will read at its start, and the others, and reports whether no stream has to be rebuilt.
func (k *Keeper) jobs(all []stream) (must, may []job, clean bool) {
	clean = true
	for i := range all {
		s := &all[i]
		if s.encrypted() {
			continue
		}
		k.checkSettings(s)
		jobs := k.prepare(s)
		clean = clean && (!s.rebuilt || len(jobs) == 0)
		for _, j := range jobs {
			if s.rebuilt || j.block.last && k.checkedAt(j) == 0 {
				must = append(must, j)
			} else {
				may = append(may, j)
			}
		}
	}
	slices.SortStableFunc(may, func(a, b job) int { return cmp.Compare(k.checkedAt(a), k.checkedAt(b)) })
	return must, may, clean
}

// runAll checks what must be checked, and others until a time, and returns those that are left.
func (k *Keeper) runAll(ctx context.Context, must, may []job, until time.Time) (r Result, rest []job) {
	r = k.run(ctx, must, time.Time{})
	rebuilt, rest := k.runRebuilt(ctx, may)
	some := k.run(ctx, rest, until)
	rebuilt2, rest := k.runRebuilt(ctx, rest[some.Blocks:])
	for _, more := range []Result{rebuilt, some, rebuilt2} {
		r.Blocks, r.Bytes = r.Blocks+more.Blocks, r.Bytes+more.Bytes
	}
	r.Skipped = len(rest)
	return r, rest
}

// runRebuilt checks the blocks of streams that the server reads anew because a record of them was set aside, and returns the others.
func (k *Keeper) runRebuilt(ctx context.Context, jobs []job) (r Result, others []job) {
	var rebuilt []job
	for _, j := range jobs {
		if j.stream.rebuilt {
			rebuilt = append(rebuilt, j)
		} else {
			others = append(others, j)
		}
	}
	return k.run(ctx, rebuilt, time.Time{}), others
}

func (k *Keeper) syncLedger() {
	if err := k.ledger.sync(); err != nil {
		k.Logger.Error("the ledger of the store's damage cannot be written", "error", err)
	}
}

// checkedAt returns when a block was last checked in its present state, 0 if it was not.
func (k *Keeper) checkedAt(j job) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.memory.knows(j.block) {
		return 0
	}
	return k.memory[j.block.path].Checked
}

// prepare reads which blocks a stream has.
func (k *Keeper) prepare(s *stream) []job {
	if err := s.readSettings(); err != nil {
		k.Logger.Error("the settings of a stream cannot be read", "stream", s.name, "error", err)
	}
	if err := s.readBlocks(); outOfDescriptors(err) {
		k.Logger.Warn("the blocks of a stream could not be listed", "stream", s.name, "error", err)
	} else if err != nil {
		k.note(s, Record{Kind: KindBlock, Action: ActionFound, Reason: local.Reason(err), File: k.relative(filepath.Join(s.dir, messagesDir))}, nil)
	}
	current, damaged := s.checkIndex()
	s.rebuilt = !current
	if damaged {
		k.note(s, Record{Kind: KindIndex, Action: ActionRebuilt, Reason: string(reasonSum), File: k.relative(s.index())}, nil)
		if err := os.Remove(s.index()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			k.Logger.Error("a damaged index cannot be removed", "stream", s.name, "error", err)
		}
	}
	jobs := make([]job, len(s.blocks))
	for i, b := range s.blocks {
		jobs[i] = job{stream: s, block: b, index: i}
	}
	return jobs
}

// run checks blocks in parallel until a time, or all of them if it is zero. What it has checked is the beginning of jobs.
func (k *Keeper) run(ctx context.Context, jobs []job, until time.Time) (r Result) {
	var mu sync.Mutex
	var workers sync.WaitGroup
	var bad []job
	next := 0
	take := func() (job, bool) {
		mu.Lock()
		defer mu.Unlock()
		if next == len(jobs) || ctx.Err() != nil || !until.IsZero() && !time.Now().Before(until) {
			return job{}, false
		}
		next++
		return jobs[next-1], true
	}
	for range min(runtime.GOMAXPROCS(0), len(jobs)) {
		workers.Go(func() {
			var buffer []byte
			for {
				j, ok := take()
				if !ok {
					return
				}
				fine, n := k.checkBlock(j, &buffer)
				mu.Lock()
				r.Bytes += n
				if !fine {
					bad = append(bad, j)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	r.Blocks = next
	// Blocks with damage come in their order: each needs the last sequence of the one before.
	slices.SortFunc(bad, func(a, b job) int { return a.block.number - b.block.number })
	for _, j := range bad {
		k.mend(j)
	}
	return r
}

// checkBlock reports whether all records of a block are readable.
func (k *Keeper) checkBlock(j job, buffer *[]byte) (fine bool, n int64) {
	b, err := readInto(buffer, j.block)
	if err != nil {
		return false, 0
	}
	if compressed(b) {
		return true, int64(len(b))
	}
	v, err := newReader(j.stream.name, j.block.number, j.stream.subjects)
	if err != nil {
		return false, 0
	}
	s, ok := v.whole(b)
	if ok {
		k.remember(j.block, s)
	}
	return ok, int64(len(b))
}

// compressed reports whether a block is in the server's compressed form, whose records are not checked.
func compressed(b []byte) bool { return bytes.HasPrefix(b, []byte("cmp")) }

// readInto reads a block into the buffer, which grows to the size of the largest one.
func readInto(buffer *[]byte, of block) ([]byte, error) {
	f, err := os.Open(of.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := bytes.NewBuffer(slices.Grow((*buffer)[:0], int(of.size)+2*bytes.MinRead)) // else ReadFrom would double it
	_, err = b.ReadFrom(f)
	*buffer = b.Bytes()[:0]
	return b.Bytes(), err
}

func (k *Keeper) remember(b block, s scan) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.memory[b.path] = verified{Size: b.size, Changed: b.at.UnixNano(), Checked: time.Now().Unix(), First: s.first, Last: s.last}
}

// mend corrects or erases what cannot be read in a block, after it has copied it aside.
func (k *Keeper) mend(j job) {
	v, err := newReader(j.stream.name, j.block.number, j.stream.subjects)
	var b []byte
	if err == nil {
		b, err = os.ReadFile(j.block.path)
	}
	if outOfDescriptors(err) { // it says nothing of the block; a later check reads it
		k.Logger.Warn("a block of the store could not be checked", "stream", j.stream.name, "file", j.block.path, "error", err)
		return
	}
	if err != nil {
		k.note(j.stream, Record{Kind: KindBlock, Action: ActionFound, Reason: local.Reason(err), File: k.relative(j.block.path)}, nil)
		return
	}
	before, after := k.around(j)
	s := v.examine(b, before, after, j.block.last)
	for _, found := range s.spans {
		err = errors.Join(err, k.noteSpan(j, found, ""))
	}
	if err = errors.Join(err, k.ledger.sync()); err != nil { // nothing is erased of which there is no copy
		j.stream.unkept = fmt.Errorf("copy damaged bytes of %s aside: %w", j.block.path, err)
		return
	}
	if len(s.spans) > 0 {
		err = k.rewrite(j, v, b, s.spans)
	}
	if err != nil {
		k.Logger.Error("a damaged block cannot be written; the server may lose the rest of it", "stream", j.stream.name, "file", j.block.path, "error", err)
		return
	}
	if info, err := os.Stat(j.block.path); err == nil {
		j.block.size, j.block.at = info.Size(), info.ModTime()
		j.stream.blocks[j.index] = j.block
		k.remember(j.block, s)
	}
}

// outOfDescriptors reports whether the system could not open a file because too many are open.
func outOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// around returns the last sequence of the block before, and the first of the block after it, 0 if it is unknown.
func (k *Keeper) around(j job) (before, after uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if blocks := j.stream.blocks[:j.index]; len(blocks) > 0 && k.memory.knows(blocks[len(blocks)-1]) {
		before = k.memory[blocks[len(blocks)-1].path].Last
	}
	if blocks := j.stream.blocks[j.index+1:]; len(blocks) > 0 && k.memory.knows(blocks[0]) {
		after = k.memory[blocks[0].path].First
	}
	return before, after
}

// noteSpan enters a span into the ledger. action is what is done, "" for what a start does. After an error there is no copy of it.
func (k *Keeper) noteSpan(j job, s span, action Action) error {
	return k.note(j.stream, k.recordOf(j, s, action), s.original)
}

func (k *Keeper) recordOf(j job, s span, action Action) Record {
	r := Record{
		Kind: KindMessage, Action: ActionQuarantined, Sequence: s.first, Subject: s.subject, Reason: string(s.why),
		File: k.relative(j.block.path), Offset: s.offset, Length: s.length,
	}
	if s.last > s.first {
		r.Last = s.last
	}
	switch {
	case s.unfinished && !j.stream.complete:
		r.Kind = KindWrite
	case s.deletion:
		r.Kind = KindDeletion
	default:
		r.Obsolete = j.stream.obsolete(s.first, s.last, s.subject)
	}
	if s.fixed {
		r.Action, r.Bit = ActionCorrected, &s.bit
	}
	if action != "" {
		r.Action = action
	}
	return r
}

// rewrite writes the mended parts of a block. What cannot be an erased record is cut out.
func (k *Keeper) rewrite(j job, v *reader, b []byte, spans []span) error {
	f, err := os.OpenFile(j.block.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	erased := false
	for _, s := range slices.Backward(spans) { // so that offsets stay true when something is cut out
		part := b[s.offset : s.offset+s.length]
		switch {
		case s.fixed:
		case s.offset+s.length == len(b) && (s.unfinished || s.length < minRecord):
			b, erased = b[:s.offset], true
			err = errors.Join(err, f.Truncate(int64(s.offset)))
			continue
		case s.length < minRecord:
			erased = true
			b = slices.Delete(b, s.offset, s.offset+s.length)
			_, werr := f.WriteAt(b[s.offset:], int64(s.offset))
			err = errors.Join(err, werr, f.Truncate(int64(len(b))))
			continue
		default:
			erased = true
			v.erase(part, s.last, time.Now().UnixNano())
		}
		_, werr := f.WriteAt(part, int64(s.offset))
		err = errors.Join(err, werr)
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if erased { // the index does not know
		if rerr := os.Remove(j.stream.index()); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		j.stream.rebuilt = true
	}
	return err
}

// checkSettings corrects or restores the settings of a stream and its consumers, and keeps a copy of intact ones.
func (k *Keeper) checkSettings(s *stream) {
	kept := filepath.Join(k.Dir, damageDir, copiesDir, s.account, s.name)
	ofStream := k.checkSettingsIn(s, s.dir, kept, s.name, ActionFound)
	consumers, err := os.ReadDir(filepath.Join(s.dir, consumersDir))
	if err != nil {
		return
	}
	for _, c := range consumers {
		dir := filepath.Join(s.dir, consumersDir, c.Name())
		usable := k.checkSettingsIn(s, dir, filepath.Join(kept, consumersDir, c.Name()), s.name+"/"+c.Name(), ActionRebuilt)
		k.checkConsumer(s, dir, usable, ofStream)
	}
}

// checkSettingsIn reports whether there are intact settings in a directory then. otherwise is what is done if there are none.
func (k *Keeper) checkSettingsIn(s *stream, dir, kept, name string, otherwise Action) bool {
	now, intact := readSettingsFiles(dir, name)
	former, usable := readSettingsFiles(kept, name)
	if intact {
		if !bytes.Equal(now.text, former.text) || !usable {
			if err := now.write(kept); err != nil {
				k.Logger.Error("no copy of a stream's settings can be kept", "stream", s.name, "error", err)
			}
		}
		return true
	}
	if len(now.text) == 0 && len(now.sum) == 0 && !usable { // it was never complete
		return false
	}
	r := Record{Kind: KindSettings, Action: ActionRestored, Reason: string(reasonSum), File: k.relative(filepath.Join(dir, settingsFile))}
	original := bytes.Join([][]byte{now.text, now.sum}, []byte("\n"))
	switch {
	case now.correct(name):
		r.Action, former = ActionCorrected, now
	case usable:
	case now.complete(name): // a crash came between the two files
		r.Action, r.Reason, former = ActionRebuilt, reasonNoSum, now
	default:
		r.Action = otherwise
		r.Reason += ", and there is no copy"
		k.note(s, r, original)
		return false
	}
	k.note(s, r, original)
	if err := former.write(dir); err != nil {
		k.Logger.Error("the settings of a stream cannot be restored", "stream", s.name, "error", err)
		return false
	}
	return true
}

func (k *Keeper) relative(path string) string {
	if r, err := filepath.Rel(k.Dir, path); err == nil && !strings.HasPrefix(r, filepath.Join("..", "..")) {
		return filepath.ToSlash(r)
	}
	return path
}

// note enters a damage into the ledger and logs it, unless it is known. An error is logged, too.
func (k *Keeper) note(s *stream, r Record, original []byte) error {
	r, added, err := k.ledger.add(s.signed(r), original)
	if err != nil {
		k.Logger.Error("damage of the store cannot be written to its ledger", "error", err)
	}
	if added {
		k.report(r)
	}
	return err
}

// report logs a damage.
func (k *Keeper) report(r Record) {
	level, text := slog.LevelWarn, "the store had damage"
	if r.Lost() {
		level, text = slog.LevelError, "a record of the store is damaged"
	}
	k.Logger.Log(context.Background(), level, text, "what", r.What(), "kind", r.Kind, "action", r.Action, "stream", r.Stream, "sequence", r.Sequence,
		"subject", r.Subject, "holds", r.Holds, "obsolete", r.Obsolete, "reason", r.Reason, "file", r.File, "offset", r.Offset, "id", r.ID)
}

// signed enters the stream and the time into a record.
func (s *stream) signed(r Record) Record {
	r.Account, r.Stream, r.Holds, r.At = s.account, s.name, s.description, time.Now().UTC()
	return r
}

// forgetRemoved forgets blocks of accounts that are not in the lists: they no longer exist.
func (k *Keeper) forgetRemoved(of func(account string) bool, lists ...[]job) {
	k.mu.Lock()
	defer k.mu.Unlock()
	there := map[string]struct{}{}
	for _, jobs := range lists {
		for _, j := range jobs {
			there[j.block.path] = struct{}{}
		}
	}
	accounts := filepath.Join(k.Dir, storeDir) + string(filepath.Separator)
	maps.DeleteFunc(k.memory, func(path string, _ verified) bool {
		account, _, _ := strings.Cut(strings.TrimPrefix(path, accounts), string(filepath.Separator))
		_, ok := there[path]
		return !ok && of(account)
	})
}

func (k *Keeper) save() {
	dir := filepath.Join(k.Dir, damageDir)
	k.mu.Lock()
	m := maps.Clone(k.memory)
	k.mu.Unlock()
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = m.save(filepath.Join(dir, verifiedFile))
	}
	if err != nil {
		k.Logger.Warn("which blocks of the store were checked cannot be remembered; the next start checks them again", "error", err)
	}
}

// Rest checks, while the server runs, the accounts that Check has left out, which it mends unless they are opened meanwhile, and then
// the blocks for which Check had no time. Of these it only reads: the next Check mends. It reports whether it found damage.
func (k *Keeper) Rest(ctx context.Context) (found bool) {
	before := len(k.Records())
	k.mu.Lock()
	later := slices.Collect(maps.Values(k.later))
	k.mu.Unlock()
	for _, p := range later {
		if ctx.Err() != nil {
			break
		}
		k.checkLater(ctx, p)
	}
	k.mu.Lock()
	rest := k.rest
	k.rest = nil
	k.mu.Unlock()
	var buffer []byte
	for _, j := range rest {
		if !wait.Pause(ctx, k.Pace) {
			break
		}
		if fine, _ := k.checkBlock(j, &buffer); !fine && !j.block.last && k.unchanged(j.block) {
			k.confirm(j)
		}
	}
	if len(later)+len(rest) > 0 {
		k.save()
	}
	return len(k.Records()) > before
}

func (k *Keeper) unchanged(b block) bool {
	info, err := os.Stat(b.path)
	return err == nil && info.Size() == b.size && info.ModTime().Equal(b.at)
}

// confirm enters the damage of a block that a server has open into the ledger.
func (k *Keeper) confirm(j job) {
	v, err := newReader(j.stream.name, j.block.number, j.stream.subjects)
	if err != nil {
		return
	}
	b, err := os.ReadFile(j.block.path)
	if err != nil || !k.unchanged(j.block) { // the server removes or compacts blocks
		return
	}
	before, after := k.around(j)
	s := v.examine(b, before, after, false)
	for _, found := range s.spans {
		k.noteSpan(j, found, ActionFound)
	}
	k.mu.Lock()
	delete(k.memory, j.block.path)
	k.mu.Unlock()
}
