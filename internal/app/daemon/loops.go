package daemon

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/ralph"
)

const (
	maxFailedLoops = 200 // the oldest are dismissed beyond it
	maxLoopReason  = 300 // bytes
)

// failedLoops are the user's loops that stopped with an error or gave items up, until they begin again or are dismissed. They
// outlive the hub in a file. It implements dialect.Loops and is safe for concurrent use.
type failedLoops struct {
	file statefile.File[loopsFile]

	// writing is held over a change and its write, so that the file has the last one. Readers do not wait for it.
	writing sync.Mutex
	mu      sync.Mutex
	failed  map[string]dialect.FailedLoop // by list; replaced, not changed
	reasons map[string]string             // why the last item of a loop that goes on was given up
}

type loopsFile struct {
	Loops []dialect.FailedLoop `json:"loops"`
}

// openLoops reads the loops that failed while the last hub ran. A file that cannot be read has none, since no start fails for one record;
// the error is for the log.
func openLoops(path string, damaged func(statefile.Damage)) (l *failedLoops, err error) {
	l = &failedLoops{failed: map[string]dialect.FailedLoop{}, reasons: map[string]string{}, file: statefile.File[loopsFile]{
		Path: path, Version: 1, Loss: "loops that failed are not shown", Damaged: damaged,
		Former: func(raw []byte) (f loopsFile, err error) { return f, json.Unmarshal(raw, &f.Loops) },
	}}
	f, err := l.file.Read()
	for _, x := range f.Loops {
		l.failed[x.List] = x
	}
	return l, err
}

// loopFailure says how a loop has failed with its last step, in a word that has no text of an agent; "" if it has not.
func loopFailure(s ralph.Step) string {
	switch {
	case s.Kind == ralph.Finished && s.GivenUp > 0:
		return "gave up " + text.Count(s.GivenUp, "item")
	case s.Kind == ralph.Halted && s.Code != ralph.CodeStopped:
		return strings.TrimSpace("an error " + text.Clip(string(s.Code), maxLoopReason))
	}
	return ""
}

// step takes note of a step of a loop.
func (l *failedLoops) step(list string, s ralph.Step) error {
	switch {
	case s.Kind == ralph.Began:
		_, err := l.Dismiss(list)
		return err
	case s.Kind == ralph.Dropped:
		l.because(list, s.Detail)
	case s.Kind == ralph.Halted || s.Kind == ralph.Finished:
		reason := l.because(list, "")
		if s.Kind == ralph.Halted {
			reason = text.Clip(text.OneLine(s.Detail), maxLoopReason)
		}
		if loopFailure(s) != "" {
			return l.fail(dialect.FailedLoop{List: list, At: s.Time, GivenUp: max(s.GivenUp, 0), Reason: reason})
		}
	}
	return nil
}

// because sets why the last item of a loop was given up, "" to forget it, and returns what was set before.
func (l *failedLoops) because(list, reason string) (before string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.reasons[list]
	delete(l.reasons, list)
	if reason != "" && len(l.reasons) < maxFailedLoops {
		l.reasons[list] = text.Clip(text.OneLine(reason), maxLoopReason)
	}
	return before
}

func (l *failedLoops) fail(f dialect.FailedLoop) error {
	return l.change(func(failed map[string]dialect.FailedLoop) {
		failed[f.List] = f
		if len(failed) > maxFailedLoops {
			delete(failed, oldestFirst(failed)[0].List)
		}
	})
}

// Failed implements dialect.Loops.
func (l *failedLoops) Failed() []dialect.FailedLoop {
	l.mu.Lock()
	defer l.mu.Unlock()
	return oldestFirst(l.failed)
}

// Dismiss implements dialect.Loops.
func (l *failedLoops) Dismiss(list string) (found bool, err error) {
	l.mu.Lock()
	_, found = l.failed[list]
	l.mu.Unlock()
	if !found {
		return false, nil
	}
	return true, l.change(func(failed map[string]dialect.FailedLoop) { delete(failed, list) })
}

// change changes the loops that failed, and stores them.
func (l *failedLoops) change(f func(failed map[string]dialect.FailedLoop)) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	failed := maps.Clone(l.failed)
	f(failed)
	l.failed = failed
	l.mu.Unlock()
	return l.file.Write(loopsFile{oldestFirst(failed)})
}

func oldestFirst(failed map[string]dialect.FailedLoop) []dialect.FailedLoop {
	return slices.SortedFunc(maps.Values(failed), func(a, b dialect.FailedLoop) int { return a.At.Compare(b.At) })
}

// heldMail returns the mail that the programs of open sessions hold for their users.
func (d *daemon) heldMail() []dialect.HeldMail {
	var all []dialect.HeldMail
	for _, h := range d.presence.bell.Held() {
		mail := dialect.HeldMail{GUID: h.Session.GUID, Agent: cmp.Or(h.Session.Name, h.Session.Handle), Since: h.Since}
		for _, m := range h.Mail {
			mail.From = append(mail.From, m.SenderHandle)
		}
		all = append(all, mail)
	}
	return all
}
