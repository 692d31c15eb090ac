package ralph

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/text"
)

// errStop is the cause of a context that Stop has ended.
var errStop = errors.New("a stop was requested")

// watchStop ends the loop when a stop is requested.
func (l *Loop) watchStop(ctx context.Context, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(stopInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if _, err := os.Stat(stopOf(l.o.StateFile)); err == nil {
			cancel(errStop)
			return
		} else if !errors.Is(err, fs.ErrNotExist) {
			cancel(err)
			return
		}
	}
}

// halted returns the error of a run that is interrupted.
func (l *Loop) halted(ctx context.Context, err error) error {
	detail := err.Error()
	if ctx.Err() != nil {
		detail = context.Cause(ctx).Error()
		err = wrap(CodeStopped, context.Cause(ctx), "the loop was stopped")
	}
	return errors.Join(err, l.step(Step{Kind: Halted, Code: CodeOf(err), Detail: detail}))
}

// step records a step.
func (l *Loop) step(s Step) error {
	s.Time = time.Now().UTC()
	s.Detail = text.Clip(s.Detail, 1000)
	if err := fault.CatchError(func() error { return l.o.Record(s) }); err != nil {
		return wrap(CodeRecord, err, "a step of the loop cannot be logged")
	}
	return nil
}

func (l *Loop) itemStep(kind Kind, item Item, detail string) error {
	p := l.state.of(item)
	return l.step(Step{Kind: kind, Item: item.ID, Text: p.Text, Attempt: p.Attempt, Ref: p.Ref, Detail: detail})
}

// save stores the progress of an item.
func (l *Loop) save(item Item, change func(p *Progress)) error {
	p := l.state.of(item)
	change(p)
	p.Since = time.Now().UTC()
	return l.state.write(l.o.StateFile)
}

// next returns the item to work on: the one under way, or the first that is open and
// not given up; nil if there is none.
func (l *Loop) next(ctx context.Context) (item *Item, open int, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	items, err := guarded(CodeList, "the list", func() ([]Item, error) { return l.o.List.Items(ctx) })
	if err != nil {
		return nil, 0, err
	}
	l.givenUp = nil
	known := make(map[string]bool, len(items))
	var first, current *Item
	for i := range items {
		it := &items[i]
		known[it.ID] = true
		p := l.state.Items[it.ID]
		switch {
		case it.Done:
			continue
		case p != nil && p.Status == GivenUp && p.about(*it):
			gone, err := l.drop(ctx, *it)
			if err != nil {
				return nil, 0, err
			}
			if gone {
				return l.next(ctx) // the list has changed
			}
			l.givenUp = append(l.givenUp, it.ID)
			continue
		case it.ID == l.state.Current:
			current = it
		case first == nil:
			first = it
		}
		open++
	}
	if current != nil {
		return current, open, nil
	}
	if l.state.Current != "" {
		if err := l.settle(known[l.state.Current]); err != nil {
			return nil, open, err
		}
	}
	maps.DeleteFunc(l.state.Items, func(id string, p *Progress) bool { return !known[id] && p.Status != Completed })
	return first, open, nil
}

// settle ends the current item, which is not open any more. If it is still in the list it is done: the loop was
// killed before it noted the completion, or a person has completed it. Otherwise it was removed.
func (l *Loop) settle(done bool) error {
	id := l.state.Current
	l.state.Current = ""
	p := l.state.Items[id]
	if p == nil {
		return l.state.write(l.o.StateFile)
	}
	s := Step{Kind: Left, Item: id, Text: p.Text, Attempt: p.Attempt}
	if p.Status, p.Ref, p.Since = Waiting, "", time.Now().UTC(); done {
		p.Status, s.Kind, s.Detail = Completed, Done, "it was done meanwhile"
	}
	if err := l.state.write(l.o.StateFile); err != nil {
		return err
	}
	return l.step(s)
}

// drop removes an item that was given up from a list that is a Dropper, and reports whether it is one.
func (l *Loop) drop(ctx context.Context, item Item) (gone bool, err error) {
	d, ok := l.o.List.(Dropper)
	if !ok {
		return false, nil
	}
	if _, err := guarded(CodeList, "the list", func() (struct{}, error) {
		return struct{}{}, d.Drop(context.WithoutCancel(ctx), item.ID, l.state.of(item).Failure)
	}); err != nil {
		return false, err
	}
	l.dropped = append(l.dropped, item.ID)
	return true, nil
}

// attempt makes or continues one attempt at an item. It reports whether the item is done.
func (l *Loop) attempt(ctx context.Context, item Item) (done bool, err error) {
	outcome, err := l.work(ctx, item)
	switch {
	case err == nil:
	case ctx.Err() != nil, loopEnds(err):
		return false, err
	default:
		return false, l.failed(item, err.Error())
	}
	if err := l.itemStep(Answered, item, outcome.Text); err != nil {
		return false, err
	}
	if err := l.save(item, func(p *Progress) { p.Status = Checking }); err != nil {
		return false, err
	}
	verdict := Verdict{OK: true}
	if l.o.Validator != nil {
		verdict, err = guarded(CodeValidator, "the validator", func() (Verdict, error) { return l.o.Validator.Validate(ctx, l.job(item), outcome) })
		if err != nil {
			return false, err
		}
		detail := "passed"
		if !verdict.OK {
			detail = "did not pass"
		}
		if err := l.itemStep(Validated, item, detail); err != nil {
			return false, err
		}
	}
	if !verdict.OK {
		return false, l.failed(item, verdict.Report)
	}
	return l.complete(ctx, item, outcome)
}

// loopEnds reports whether an error ends the loop, rather than being a failed attempt.
func loopEnds(err error) bool {
	switch CodeOf(err) {
	case CodeUnavailable, CodeState, CodeRecord, CodeList, CodeValidator:
		return true
	}
	return false
}

// work dispatches an item, or resumes the work of an earlier run.
func (l *Loop) work(ctx context.Context, item Item) (Outcome, error) {
	if p := l.state.of(item); l.state.Current == item.ID && p.Ref != "" {
		if err := l.itemStep(Resumed, item, ""); err != nil {
			return Outcome{}, err
		}
		outcome, err := guarded(CodePanic, "the dispatcher", func() (Outcome, error) { return l.o.Dispatcher.Resume(ctx, l.job(item), p.Ref) })
		if CodeOf(err) != CodeLost {
			return outcome, err
		}
		if err := l.save(item, func(p *Progress) { p.Status, p.Ref = Working, "" }); err != nil { // the same attempt begins again
			return Outcome{}, err
		}
	}
	again := l.state.Current == item.ID && l.state.of(item).Status == Working && l.state.of(item).Ref == "" && l.state.of(item).Attempt > 0
	l.state.Current = item.ID
	if p := l.state.of(item); p.Status == Completed || p.Status == GivenUp {
		delete(l.state.Items, item.ID) // the item was reopened or changed
	}
	if err := l.save(item, func(p *Progress) {
		p.note(item)
		if !again { // otherwise it was interrupted before the work began
			p.Attempt++
		}
		p.Status = Working
	}); err != nil {
		return Outcome{}, err
	}
	begins := func(ref string) error {
		if err := l.save(item, func(p *Progress) { p.Ref = ref }); err != nil {
			return err
		}
		return l.itemStep(Dispatched, item, "")
	}
	return guarded(CodePanic, "the dispatcher", func() (Outcome, error) { return l.o.Dispatcher.Dispatch(ctx, l.job(item), begins) })
}

// guarded calls a function of the application, whose panic becomes an error with a code.
func guarded[T any](code Code, whose string, f func() (T, error)) (value T, err error) {
	err = fault.CatchError(func() (err error) { value, err = f(); return err })
	if p, panicked := errors.AsType[*fault.Panic](err); panicked {
		err = wrap(code, p, "%s has failed", whose)
	}
	return value, err
}

func (l *Loop) job(item Item) Job {
	p := l.state.of(item)
	return Job{Item: item, Attempt: max(p.Attempt, 1), Failure: p.Failure}
}

// failed ends an attempt, and after too many gives the item up.
func (l *Loop) failed(item Item, reason string) error {
	if reason = strings.TrimSpace(reason); reason == "" {
		reason = "it did not pass, and gave no reason"
	}
	reason = tail(strings.ToValidUTF8(reason, "�"), maxFailure)
	if err := l.itemStep(Failed, item, reason); err != nil {
		return err
	}
	drop := false
	if err := l.save(item, func(p *Progress) {
		p.Ref, p.Failure, p.Status = "", reason, Waiting
		if drop = p.Attempt >= l.o.MaxAttempts; drop {
			p.Status, l.state.Current = GivenUp, ""
		}
	}); err != nil || !drop {
		return err
	}
	return l.itemStep(Dropped, item, reason)
}

// complete completes an item that has passed. It reports false if another worker has it.
func (l *Loop) complete(ctx context.Context, item Item, o Outcome) (bool, error) {
	// A stop must not leave an item open that has passed.
	_, err := guarded(CodeList, "the list", func() (struct{}, error) {
		return struct{}{}, l.o.List.Complete(context.WithoutCancel(ctx), item.ID, o)
	})
	if CodeOf(err) == CodeLost {
		return false, l.settle(false)
	}
	if err != nil {
		return false, err
	}
	if err := l.itemStep(Done, item, ""); err != nil {
		return false, err
	}
	l.state.Current = ""
	return true, l.save(item, func(p *Progress) { p.Status, p.Ref, p.Failure = Completed, "", "" })
}

// tail returns the last n bytes of whole characters.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	from := len(s) - n
	for from < len(s) && !utf8.RuneStart(s[from]) {
		from++
	}
	return "…" + s[from:]
}
