package documents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/parleyhub/parley/crdt/snapshots"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/bus/damage"
)

// headBucket ends the name of the bucket with the heads.
const headBucket = "_crdt_head"

// Rebuilt describes a document whose head was lost, or went back to a former epoch.
type Rebuilt struct {
	Document string `json:"document"`
	// From says of what it was rebuilt.
	From string `json:"from,omitempty"`
	// Reason is why it cannot be rebuilt.
	Reason string `json:"reason,omitempty"`
}

// Rebuilt waits for the check that begins when the library is opened, and returns what it did: it restores the heads of
// all documents of which there are only changes and snapshots, and replaces damaged snapshots. A document is also
// rebuilt when it is opened before that.
func (l *Library) Rebuilt(ctx context.Context) ([]Rebuilt, error) {
	select {
	case <-l.checked:
		return l.rebuilt, l.rebuildFailed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// rebuild is the check in the background. Damage never keeps a library from being opened.
func (l *Library) rebuild(ctx context.Context) {
	defer close(l.checked)
	missing, err := l.store.headless(ctx)
	if err != nil {
		l.rebuildFailed = err
		if ctx.Err() == nil {
			l.log.Warn("the heads of documents could not be checked; each is checked when it is opened", "error", err)
		}
		return
	}
	for _, name := range missing {
		h, rebuilt, err := l.store.currentHead(ctx, name, l.log)
		if rebuilt || err != nil {
			l.noteRebuilt(ctx, name, origin(h), err)
		}
	}
	for name := range l.store.wounded() {
		if _, err := l.Get(ctx, name); err != nil {
			l.noteRebuilt(ctx, name, "", err)
		}
	}
}

func (l *Library) noteRebuilt(ctx context.Context, name, from string, err error) {
	r := Rebuilt{Document: name, From: from}
	if err != nil {
		if l.rebuildFailed = ctx.Err(); l.rebuildFailed != nil {
			return
		}
		r.From, r.Reason = "", err.Error()
		l.log.Error("a document cannot be rebuilt", "document", name, "error", err)
	}
	l.rebuilt = append(l.rebuilt, r)
}

// origin says of what a head was rebuilt.
func origin(h snapshots.Head) string {
	if h.Object == "" {
		return "its log"
	}
	return fmt.Sprintf("its snapshot of change %d, epoch %d, and its log", h.Number, h.Epoch)
}

// wounded returns the documents of which a change or a snapshot is damaged. Opening them replaces the damaged snapshots.
func (s *store) wounded() map[string]struct{} {
	all := map[string]struct{}{}
	for _, r := range s.bus.Damage() {
		for _, prefix := range []string{s.name + ".crdt.", s.snapshots.PartSubject("")} {
			rest, ok := strings.CutPrefix(r.Subject, prefix)
			if name, _, more := strings.Cut(rest, "."); ok && more && r.Lost() && !r.Settled {
				all[name] = struct{}{}
			}
		}
	}
	return all
}

// snapshotsRebuilt marks the damage of a document's snapshots as repaired, because it is whole without them.
func (s *store) snapshotsRebuilt(name string) {
	prefix := s.snapshots.PartSubject(name + ".")
	for _, r := range s.bus.Damage() {
		if strings.HasPrefix(r.Subject, prefix) && r.Lost() {
			s.bus.DamageRebuilt(r.Subject)
		}
	}
}

// headless lists the documents that have changes or snapshots and no head, or perhaps a former one, sorted.
func (s *store) headless(ctx context.Context) ([]string, error) {
	there, err := s.snapshots.Documents(ctx)
	if err != nil {
		return nil, storage(err, "documents cannot be listed")
	}
	names, err := s.names(ctx)
	if err != nil {
		return nil, err
	}
	doubtful := s.headsDamaged()
	var missing []string
	for name := range there {
		if _, ok := slices.BinarySearch(names, name); (!ok || doubtful) && CheckName(name) == nil {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing, nil
}

// headsDamaged reports whether heads may be missing or replaced by former ones. A damaged entry uncovers the one before.
func (s *store) headsDamaged() bool {
	return slices.ContainsFunc(s.bus.Damage(), func(r damage.Record) bool { return r.Stream == "KV_"+s.name+headBucket && !r.Settled })
}

// currentHead returns a document's head, which it rebuilds if it is lost. It is of revision 0 if there is no document.
func (s *store) currentHead(ctx context.Context, name string, log *slog.Logger) (h snapshots.Head, rebuilt bool, err error) {
	h, err = s.head(ctx, name)
	if err != nil || h.Revision > 0 && !s.headsDamaged() {
		return h, false, err
	}
	found, remains, err := s.snapshots.Recover(ctx, name)
	switch {
	case errors.Is(err, snapshots.ErrUnrecoverable):
		return h, false, damaged(name, err)
	case err != nil:
		return h, false, storage(err, "what is left of the document %s cannot be read", name)
	case !remains, h.Revision > 0 && found.Epoch <= h.Epoch:
		return h, false, nil
	}
	if found.Object == "" {
		if err := s.checkLogIsWhole(ctx, name); err != nil {
			return h, false, err
		}
	}
	log.Error("the head of a document was lost; it is rebuilt", "document", name, "from", origin(found))
	if found, err = s.snapshots.Restore(ctx, name, found, h.Revision); err != nil {
		return h, false, storage(err, "the document %s cannot be rebuilt", name)
	}
	s.bus.DamageRebuilt("$KV." + s.name + headBucket + "." + name)
	return found, true, nil
}

// checkLogIsWhole returns an error unless the log of the first epoch begins with the first change.
func (s *store) checkLogIsWhole(ctx context.Context, name string) error {
	for m, err := range snapshots.Messages(ctx, s.stream, s.subject(name, 0), 0) {
		switch {
		case err != nil:
			return storage(err, "the log of the document %s cannot be read", name)
		case m.Headers().Get(numberHeader) == "1":
			return nil
		}
		break
	}
	return damaged(name, snapshots.ErrUnrecoverable)
}

// substitute returns another head of a document whose head's snapshots are damaged.
func (s *store) substitute(ctx context.Context, name string, h snapshots.Head) (snapshots.Head, error) {
	found, err := s.snapshots.Substitute(ctx, name, h)
	switch {
	case errors.Is(err, snapshots.ErrUnrecoverable):
		return found, damaged(name, err)
	case err != nil:
		return found, storage(err, "the snapshots of the document %s cannot be read", name)
	case found.Object == "":
		return found, s.checkLogIsWhole(ctx, name)
	}
	return found, nil
}

func damaged(name string, err error) *Error {
	return &Error{
		Code: CodeDamaged, Message: "the document " + name + " is damaged", Err: err,
		Remedy: "`" + local.Program() + " repair` shows what is damaged; nothing of it was deleted, so restore the data directory from a backup, or use another name",
	}
}
