package snapshots

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// copySuffix ends the name of the second copy of an epoch's first snapshot.
const copySuffix = "-copy"

// Remains is what the log and the snapshots have of a document, whatever its head says.
type Remains struct {
	// Snapshots are the stored snapshots by their names, the newest first. Whether they are whole is not checked, and
	// of their heads only Epoch, Number, Sequence and Object are set.
	Snapshots []Head
	// Epochs are the epochs that have changes in the log, and how many.
	Epochs map[uint64]uint64
}

// Any reports whether there is anything of the document.
func (r *Remains) Any() bool { return len(r.Snapshots) > 0 || len(r.Epochs) > 0 }

// Remains lists what there is of a document.
func (s *Store) Remains(ctx context.Context, document string) (r Remains, err error) {
	r.Epochs = map[uint64]uint64{}
	logs, err := subjects(ctx, s.Log, s.LogFilter(document))
	if err != nil {
		return r, err
	}
	for subject, n := range logs {
		if epoch, ok := s.epochOf(document, subject); ok {
			r.Epochs[epoch] = n
		}
	}
	prefix := s.PartSubject("")
	parts, err := subjects(ctx, s.Parts, s.PartSubject(document+".>"))
	for subject := range parts {
		if of, h, ok := parseObject(strings.TrimPrefix(subject, prefix)); ok && of == document {
			r.Snapshots = append(r.Snapshots, h)
		}
	}
	slices.SortFunc(r.Snapshots, func(a, b Head) int {
		return cmp.Or(cmp.Compare(b.Epoch, a.Epoch), cmp.Compare(b.Sequence, a.Sequence), cmp.Compare(b.Number, a.Number), cmp.Compare(a.Object, b.Object))
	})
	return r, err
}

// epochOf returns the epoch of a subject of the log. Subjects hold it as one of their tokens.
func (s *Store) epochOf(document, subject string) (uint64, bool) {
	for token := range strings.SplitSeq(subject, ".") {
		if epoch, err := strconv.ParseUint(token, 10, 64); err == nil && s.LogSubject(document, epoch) == subject {
			return epoch, true
		}
	}
	return 0, false
}

// subjects returns the subjects of a stream that match a filter, with their numbers of messages.
func subjects(ctx context.Context, stream jetstream.Stream, filter string) (map[string]uint64, error) {
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, err
	}
	return info.State.Subjects, nil
}

// parseObject is the inverse of objectName, as far as names tell.
func parseObject(object string) (document string, h Head, ok bool) {
	document, rest, ok := strings.Cut(object, ".")
	numbers := strings.SplitN(rest, "-", 4)
	if !ok || len(numbers) < 4 {
		return "", Head{}, false
	}
	h.Object = object
	for i, to := range []*uint64{&h.Epoch, &h.Number, &h.Sequence} {
		var err error
		if *to, err = strconv.ParseUint(numbers[i], 10, 64); err != nil {
			return "", Head{}, false
		}
	}
	return document, h, true
}

// Documents yields the names of all documents of which there are changes or snapshots.
func (s *Store) Documents(ctx context.Context) (iter.Seq[string], error) {
	found := map[string]struct{}{}
	logs, err := subjects(ctx, s.Log, ">")
	if err != nil {
		return nil, err
	}
	for subject := range logs {
		for token := range strings.SplitSeq(subject, ".") {
			if _, ok := s.epochOf(token, subject); ok {
				found[token] = struct{}{}
			}
		}
	}
	parts, err := subjects(ctx, s.Parts, s.PartSubject(">"))
	if err != nil {
		return nil, err
	}
	for subject := range parts {
		if document, _, ok := parseObject(strings.TrimPrefix(subject, s.PartSubject(""))); ok {
			found[document] = struct{}{}
		}
	}
	return maps.Keys(found), nil
}

// ErrUnrecoverable is the error of Recover for a document of which something is left that no state can be made of.
var ErrUnrecoverable = errors.New("none of its snapshots can be read, and its log does not begin at its beginning")

// Recover finds the head of a document whose entry is lost or wrong: the newest snapshot that is whole, with the
// one before it. The head has no Object if the whole log is needed: the caller knows whether it is complete. It is
// not stored. The head is of revision 0, and found is false if there is nothing of the document.
func (s *Store) Recover(ctx context.Context, document string) (h Head, found bool, err error) {
	r, err := s.Remains(ctx, document)
	if err != nil || !r.Any() {
		return Head{}, false, err
	}
	h, err = s.newest(ctx, document, r, func(Head) bool { return true })
	if err != nil {
		return Head{}, true, err
	}
	for epoch := range r.Epochs { // changes of an epoch need its first snapshot
		if epoch > h.Epoch {
			return Head{}, true, ErrUnrecoverable
		}
	}
	return h, true, nil
}

// Substitute finds a whole snapshot of the epoch of a head whose own snapshots are damaged, as Recover does.
func (s *Store) Substitute(ctx context.Context, document string, h Head) (Head, error) {
	r, err := s.Remains(ctx, document)
	if err != nil {
		return Head{}, err
	}
	found, err := s.newest(ctx, document, r, func(c Head) bool { return c.Epoch == h.Epoch })
	if err == nil && found.Epoch != h.Epoch {
		err = ErrUnrecoverable
	}
	return found, err
}

// newest returns the head of the newest whole snapshot for which want holds.
func (s *Store) newest(ctx context.Context, document string, r Remains, want func(Head) bool) (Head, error) {
	var newest *Head
	for _, c := range r.Snapshots {
		if !want(c) || newest != nil && newest.Epoch != c.Epoch {
			continue
		}
		if unused, err := s.unused(ctx, document, c, r.Epochs); err != nil || unused {
			if err != nil {
				return Head{}, err
			}
			continue
		}
		whole, err := s.describe(ctx, c)
		switch {
		case err != nil && !Gone(err):
			return Head{}, err
		case err != nil || newest != nil && newest.Hash == whole.Hash: // damaged, or the second copy
		case newest == nil:
			newest = &whole
		default:
			whole.Origins = nil
			newest.Previous = &whole
			return *newest, nil
		}
	}
	if newest == nil {
		return Head{}, nil
	}
	return *newest, nil
}

// unused reports whether a snapshot was stored and never became the head, because a crash came between. A single
// writer has then gone on with the former epoch.
func (s *Store) unused(ctx context.Context, document string, c Head, epochs map[uint64]uint64) (bool, error) {
	if s.Writer != "" {
		return false, nil // the log says when an epoch has ended
	}
	for epoch := range epochs {
		if epoch >= c.Epoch {
			continue
		}
		last, err := s.Log.GetLastMsgForSubject(ctx, s.LogSubject(document, epoch))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil || last.Sequence > c.Sequence {
			return true, err
		}
	}
	return false, nil
}

// describe reads a snapshot and returns its head, with what was stored beside it.
func (s *Store) describe(ctx context.Context, c Head) (Head, error) {
	state, header, err := s.get(ctx, c.Object)
	if err != nil {
		return Head{}, err
	}
	h := Head{Epoch: c.Epoch, Number: c.Number, Sequence: c.Sequence}
	if kept := header.Get(headHeader); kept != "" { // older versions wrote none
		if err := json.Unmarshal([]byte(kept), &h); err != nil {
			return Head{}, ErrBroken
		}
	}
	h.Object, h.Hash, h.Previous = c.Object, Hash(state), nil
	if !strings.Contains(c.Object, h.Hash[:16]) {
		return Head{}, ErrBroken
	}
	return h, nil
}

// Restore makes a head that Recover has found the current one, unless there is another meanwhile, which it returns.
// old is the revision of the entry that it replaces.
func (s *Store) Restore(ctx context.Context, document string, h Head, old uint64) (Head, error) {
	h.Revision = old
	revision, err := s.SetHead(ctx, document, h)
	if err == nil {
		h.Revision = revision
		return h, nil
	}
	now, rerr := s.Head(ctx, document)
	if rerr == nil && now.Revision > old {
		return now, nil
	}
	return Head{}, fmt.Errorf("the head cannot be restored: %w", errors.Join(err, rerr))
}
