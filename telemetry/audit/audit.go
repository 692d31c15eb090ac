// Package audit keeps an append-only log of what agents did, as lines of JSON, and reads and replays it.
//
// A [Log] is a directory of numbered files. Each record has a sequence number and a checksum, so a reader notices missing and damaged records.
// Append writes a record to the file before it returns, so that it outlives the process; the [SyncPolicy] decides
// when it reaches the disk. When there are too many full files, the oldest is removed.
package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/telemetry"
)

// SyncPolicy says when records are forced to the disk.
type SyncPolicy int

// The policies.
const (
	// SyncInterval syncs once per Options.Interval in which something was written. A
	// crash of the machine loses at most that much, a crash of the process nothing.
	SyncInterval SyncPolicy = iota
	SyncAlways              // syncs each record before Append returns
	SyncNever               // leaves it to the operating system
)

// Options set up a Log. The zero Options are valid.
type Options struct {
	MaxFileSize int64         // bytes before a new file is begun; 0 means 64 MiB
	MaxFiles    int           // files to keep; 0 means 16
	Sync        SyncPolicy    //
	Interval    time.Duration // of SyncInterval; 0 means one second
	// Keep selects events; nil keeps all. The router appends each routing decision with
	// its envelope, each cross-tier delivery and each refusal.
	Keep func(telemetry.Event) bool
}

func (o Options) withDefaults() Options {
	defaults.Set(&o.MaxFileSize, 64<<20)
	defaults.Set(&o.MaxFiles, 16)
	defaults.Set(&o.Interval, time.Second)
	if o.Keep == nil {
		o.Keep = func(telemetry.Event) bool { return true }
	}
	return o
}

// Record is one line of the log.
type Record struct {
	Seq   uint64          `json:"seq"`   // number of the record, from 1, without gaps
	Event telemetry.Event `json:"event"` // what happened
	// Envelope is the event's, if it was recorded. Line breaks between the tokens of its payload have become spaces.
	Envelope *envelope.Envelope `json:"envelope,omitempty"`
	// Invocation is the tool call that the event is about, if it was recorded.
	Invocation *telemetry.Invocation `json:"invocation,omitempty"`
}

// Code is the kind of an [Error].
type Code string

// The codes of an [Error].
const (
	CodeLocked  Code = "AUDIT_LOCKED"  // another process writes this log
	CodeClosed  Code = "AUDIT_CLOSED"  //
	CodeIO      Code = "AUDIT_IO"      // of the file system
	CodeCorrupt Code = "AUDIT_CORRUPT" // a line is not a record
	CodeGap     Code = "AUDIT_GAP"     // records are missing
)

// Error is what the package returns. Its fields are Code, Message and Err (the cause, may be nil).
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

// Log is an audit log that is open for writing. It is safe for concurrent use.
type Log struct {
	dir  string
	opts Options
	lock *flock.Flock
	stop chan struct{} // closed by Close
	done chan struct{} // closed when the syncing goroutine has ended

	mu     sync.Mutex
	file   *os.File
	number int // of file
	size   int64
	seq    uint64
	dirty  bool  // written since the last sync
	err    error // the latest write or sync that failed
	closed bool
	buf    []byte
}

// Open opens or creates the log in dir (0700, files 0600) and continues after the last complete record; it removes
// one that a crash cut off. One process can have it open at a time ([CodeLocked]). Close it in the end.
func Open(dir string, opts Options) (*Log, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, ioError("create the audit log", err)
	}
	lock := flock.New(filepath.Join(dir, ".lock"))
	held, err := lock.TryLock()
	if err != nil {
		return nil, ioError("lock the audit log", err)
	}
	if !held {
		return nil, &Error{Code: CodeLocked, Message: "another process writes this audit log"}
	}
	l := &Log{dir: dir, opts: opts.withDefaults(), lock: lock, stop: make(chan struct{}), done: make(chan struct{})}
	if err := l.resume(); err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	go l.syncPeriodically()
	return l, nil
}

var errClosed = &Error{Code: CodeClosed, Message: "the audit log is closed"}

func ioError(what string, err error) *Error {
	return &Error{Code: CodeIO, Message: "cannot " + what, Err: err}
}

func fileName(number int) string { return fmt.Sprintf("audit-%08d.jsonl", number) }

// numbers returns the numbers of the log's files in order.
func numbers(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, ioError("read the audit log", err)
	}
	var list []int
	for _, e := range entries {
		var n int
		if _, err := fmt.Sscanf(e.Name(), "audit-%d.jsonl", &n); err == nil && e.Name() == fileName(n) && e.Type().IsRegular() {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list, nil
}

// resume opens the last file and finds where to continue.
func (l *Log) resume() error {
	list, err := numbers(l.dir)
	if err != nil {
		return err
	}
	l.number = 1
	if len(list) > 0 {
		l.number = list[len(list)-1]
	}
	for _, n := range slices.Backward(list) { // the last file may be empty
		seq, end, err := lastRecord(filepath.Join(l.dir, fileName(n)))
		if err != nil {
			return err
		}
		if n == l.number {
			l.size = end
		}
		if l.seq = seq; seq > 0 {
			break
		}
	}
	return l.openFile()
}

// openFile opens file l.number and cuts it to l.size.
func (l *Log) openFile() error {
	f, err := os.OpenFile(filepath.Join(l.dir, fileName(l.number)), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return ioError("open the audit log", err)
	}
	if err := f.Truncate(l.size); err != nil {
		return ioError("repair the audit log", errors.Join(err, f.Close()))
	}
	if _, err := f.Seek(l.size, io.SeekStart); err != nil {
		return ioError("open the audit log", errors.Join(err, f.Close()))
	}
	l.file = f
	return nil
}

// lastRecord returns the sequence number of the last complete record of a file and the
// end of the last complete line.
func lastRecord(path string) (seq uint64, end int64, err error) {
	for line, err := range lines(path) {
		if err != nil && !errors.Is(err, errLong) {
			return 0, 0, ioError("read the audit log", err)
		}
		end += int64(line.length)
		var head struct {
			Seq uint64 `json:"seq"`
		}
		if _, err := statefile.CheckLine(trimLine(line.text)); err == nil && json.Unmarshal(line.text, &head) == nil {
			seq = max(seq, head.Seq)
		}
	}
	return seq, end, nil
}

// Emit appends an event, as a [telemetry.Sink]. [Log.Err] returns errors.
func (l *Log) Emit(e telemetry.Event) {
	_ = l.Append(e, nil) // kept in l.err
}

// Append appends one record unless Options.Keep rejects the event; e may be nil.
// Errors are [*Error]s. A partly written record is removed.
func (l *Log) Append(event telemetry.Event, e *envelope.Envelope) error {
	return l.add(event, func(buf []byte) ([]byte, error) {
		if e == nil {
			return buf, nil
		}
		codec := envelope.Codec{MaxSize: maxEnvelope}
		return codec.Append(append(buf, `,"envelope":`...), e)
	})
}

// AppendInvocation appends the record of a tool call with its event, unless Options.Keep rejects that. Errors are
// [*Error]s. It records what it is given: the caller redacts and bounds it.
func (l *Log) AppendInvocation(i telemetry.Invocation) error {
	return l.add(i.Event(), func(buf []byte) ([]byte, error) {
		data, err := telemetry.EncodeInvocation(i)
		return append(append(buf, `,"invocation":`...), data...), err
	})
}

// add appends one record. detail appends what belongs to the event to the record's JSON.
func (l *Log) add(event telemetry.Event, detail func([]byte) ([]byte, error)) error {
	if !l.opts.Keep(event) {
		return nil
	}
	if event.Timestamp == 0 {
		event.Timestamp = time.Now().UnixMilli()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed
	}
	err := l.append(event, detail)
	if err != nil {
		l.err = err
	}
	return err
}

func (l *Log) append(event telemetry.Event, detail func([]byte) ([]byte, error)) error {
	line, err := l.line(event, detail)
	if err != nil {
		return &Error{Code: CodeCorrupt, Message: "the record cannot be written as JSON", Err: err}
	}
	if l.size > 0 && l.size+int64(len(line)) > l.opts.MaxFileSize {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	if _, err := l.file.Write(line); err != nil {
		// Without this the next record would continue the broken line.
		_, seekErr := l.file.Seek(l.size, io.SeekStart)
		return ioError("write the audit log", errors.Join(err, l.file.Truncate(l.size), seekErr))
	}
	l.seq++
	l.size += int64(len(line))
	l.dirty = true
	if l.opts.Sync == SyncAlways {
		return l.sync()
	}
	return nil
}

// line builds the next record in l.buf.
func (l *Log) line(event telemetry.Event, detail func([]byte) ([]byte, error)) ([]byte, error) {
	data, err := json.Marshal(event)
	if err != nil {
		return nil, err
	}
	buf := fmt.Appendf(l.buf[:0], `{"seq":%d,"event":%s`, l.seq+1, data)
	from := len(buf)
	if buf, err = detail(buf); err != nil {
		return nil, err
	}
	for i := from; i < len(buf); i++ {
		if buf[i] == '\n' || buf[i] == '\r' { // between tokens; strings have them escaped
			buf[i] = ' '
		}
	}
	l.buf = append(statefile.SignLine(append(buf, '}')), '\n')
	return l.buf, nil
}

// maxEnvelope bounds a recorded envelope; it leaves a line below maxLine.
const (
	maxEnvelope = 64 << 20
	maxLine     = maxEnvelope + 1<<20
)

// rotate begins a new file and removes the oldest.
func (l *Log) rotate() error {
	if err := l.sync(); err != nil {
		return err
	}
	old := l.file
	l.number++
	l.size = 0
	if err := l.openFile(); err != nil {
		l.number--
		return err
	}
	if err := old.Close(); err != nil {
		return ioError("close a full audit file", err)
	}
	list, err := numbers(l.dir)
	if err != nil {
		return err
	}
	for len(list) > l.opts.MaxFiles {
		if err := os.Remove(filepath.Join(l.dir, fileName(list[0]))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return ioError("remove the oldest audit file", err)
		}
		list = list[1:]
	}
	return nil
}

func (l *Log) sync() error {
	if !l.dirty {
		return nil
	}
	if err := l.file.Sync(); err != nil {
		return ioError("sync the audit log", err)
	}
	l.dirty = false
	return nil
}

// Sync writes everything that was appended to the disk.
func (l *Log) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed
	}
	return l.sync()
}

func (l *Log) syncPeriodically() {
	defer close(l.done)
	if l.opts.Sync != SyncInterval {
		return
	}
	tick := time.NewTicker(l.opts.Interval)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
			l.mu.Lock()
			if err := l.sync(); err != nil {
				l.err = err
			}
			l.mu.Unlock()
		}
	}
}

// Err returns the latest error of writing or syncing, nil if there was none.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close syncs and closes the log. It is safe to call more than once.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	err := errors.Join(l.sync(), l.file.Close(), l.lock.Unlock())
	close(l.stop)
	l.mu.Unlock()
	<-l.done
	return err
}

// line is one line of a file; text is empty if it was too long to keep.
type line struct {
	text   []byte
	length int // with its line break
}

var errLong = errors.New("the line is too long")

// lines yields the complete lines of a file, with errLong for one that is longer than
// maxLine. Another error ends them. A last line that was cut off does not count.
func lines(path string) iter.Seq2[line, error] {
	return func(yield func(line, error) bool) {
		f, err := os.Open(path)
		if err != nil {
			yield(line{}, err)
			return
		}
		defer f.Close() // only read
		r := bufio.NewReaderSize(f, 64<<10)
		for {
			l, err := readLine(r)
			if err == io.EOF || !yield(l, err) {
				return
			}
		}
	}
}

// readLine reads up to the next line break.
func readLine(r *bufio.Reader) (line, error) {
	var l line
	for {
		part, err := r.ReadSlice('\n')
		l.length += len(part)
		if l.length <= maxLine {
			l.text = append(l.text, part...)
		}
		switch {
		case err == bufio.ErrBufferFull:
		case err != nil:
			return l, err
		case l.length > maxLine:
			return line{length: l.length}, errLong
		default:
			return l, nil
		}
	}
}

// Read returns the records of the log in dir, oldest first, up to the last complete one if another process is
// writing. It yields an [*Error] for each line that is not a record ([CodeCorrupt]) and each gap in the sequence
// ([CodeGap]) and continues; [CodeIO] ends it.
func Read(dir string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		list, err := numbers(dir)
		if err != nil {
			yield(Record{}, err)
			return
		}
		var last uint64
		for _, n := range list {
			if !readFile(filepath.Join(dir, fileName(n)), &last, yield) {
				return
			}
		}
	}
}

// readFile yields the records of one file and reports whether to continue.
func readFile(path string, last *uint64, yield func(Record, error) bool) bool {
	number := 0
	for line, err := range lines(path) {
		if errors.Is(err, fs.ErrNotExist) {
			return true // rotated meanwhile; the sequence shows it
		}
		if err != nil && !errors.Is(err, errLong) {
			yield(Record{}, ioError("read the audit log", err))
			return false
		}
		number++
		var rec Record
		if err == nil {
			rec, err = decode(line.text)
		}
		if err != nil {
			if !yield(Record{}, &Error{Code: CodeCorrupt, Message: fmt.Sprintf("%s:%d is not a record", filepath.Base(path), number), Err: err}) {
				return false
			}
			continue
		}
		if *last != 0 && rec.Seq != *last+1 {
			gap := &Error{Code: CodeGap, Message: fmt.Sprintf("record %d follows record %d", rec.Seq, *last)}
			if !yield(Record{}, gap) {
				return false
			}
		}
		*last = rec.Seq
		if !yield(rec, nil) {
			return false
		}
	}
	return true
}

func trimLine(text []byte) []byte { return bytes.TrimRight(text, "\r\n") }

// decode reads one line. The envelope has its own codec, which keeps the payload.
func decode(text []byte) (Record, error) {
	var raw struct {
		Seq      uint64          `json:"seq"`
		Event    telemetry.Event `json:"event"`
		Envelope json.RawMessage `json:"envelope"`

		Invocation json.RawMessage `json:"invocation"`
	}
	text = trimLine(text)
	if _, err := statefile.CheckLine(text); err != nil {
		return Record{}, err
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return Record{}, errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if raw.Seq == 0 {
		return Record{}, errors.New("seq is missing")
	}
	rec := Record{Seq: raw.Seq, Event: raw.Event}
	if len(raw.Invocation) > 0 {
		i, err := telemetry.DecodeInvocation(raw.Invocation)
		if err != nil {
			return Record{}, err
		}
		rec.Invocation = &i
	}
	if len(raw.Envelope) == 0 {
		return rec, nil
	}
	codec := envelope.Codec{MaxSize: maxEnvelope}
	var err error
	rec.Envelope, err = codec.Decode(raw.Envelope)
	return rec, err
}

// ReplayOptions select what is replayed and how fast.
type ReplayOptions struct {
	// Keep selects records; nil selects those with an envelope.
	Keep func(Record) bool
	// Speed 1 keeps the original intervals, 2 halves them; 0 does not wait.
	Speed float64
	// OnError is called with corrupt lines and gaps, and returns nil to continue. If it
	// is nil, the first one ends the replay.
	OnError func(error) error
}

// Replay calls do for the selected records of the log in dir, in order, until do or
// ctx fails. It returns how many were replayed.
func Replay(ctx context.Context, dir string, opts ReplayOptions, do func(context.Context, Record) error) (int, error) {
	n := 0
	var before int64
	for rec, err := range Read(dir) {
		if err != nil {
			if opts.OnError != nil {
				err = opts.OnError(err)
			}
			if err != nil {
				return n, err
			}
			continue
		}
		if opts.Keep == nil && rec.Envelope == nil || opts.Keep != nil && !opts.Keep(rec) {
			continue
		}
		if opts.Speed > 0 && before > 0 {
			wait.Pause(ctx, time.Duration(float64(rec.Event.Timestamp-before)/opts.Speed*float64(time.Millisecond)))
		}
		before = rec.Event.Timestamp
		if err := ctx.Err(); err != nil {
			return n, err
		}
		if err := do(ctx, rec); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
