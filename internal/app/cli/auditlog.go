package cli

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/telemetry/audit"
)

// auditFilter selects records of the audit log; its zero value selects all.
type auditFilter struct {
	Event  telemetry.EventType
	Type   envelope.Type
	Agent  string // the sender, the recipient or the agent that the router chose
	Thread string
	Since  time.Time // inclusive
	Until  time.Time // exclusive
	Failed bool      // only what failed or was refused
	Latest int       // how many of the selected records, the last ones; 0 means all
}

func (f *auditFilter) selects(rec audit.Record) bool {
	ev := rec.Event
	at := time.UnixMilli(ev.Timestamp)
	switch {
	case f.Event != "" && ev.Type != f.Event,
		f.Type != "" && ev.MessageType != f.Type,
		f.Agent != "" && ev.Sender != f.Agent && ev.Recipient != f.Agent && ev.Target != f.Agent,
		f.Thread != "" && (rec.Envelope == nil || rec.Envelope.Thread() != f.Thread),
		!f.Since.IsZero() && at.Before(f.Since),
		!f.Until.IsZero() && !at.Before(f.Until),
		f.Failed && ev.Success != telemetry.Failure && ev.Type != telemetry.Security:
		return false
	}
	return true
}

// auditDamage counts the lines of a log that are not records, and the gaps between records.
type auditDamage struct {
	Places int
	First  error
}

func (d *auditDamage) add(err error) {
	if d.Places++; d.First == nil {
		d.First = err
	}
}

// readAudit calls do with the records of the log in dir that the filter selects, oldest first, until do fails. A
// missing directory is an empty log. The log may be written meanwhile. Damage is counted and skipped; the error is
// that of do, or an [*audit.Error] if the files cannot be read at all.
func readAudit(dir string, f auditFilter, do func(audit.Record) error) (auditDamage, error) {
	from := uint64(0)
	if f.Latest > 0 {
		var err error
		if from, err = firstOfLatest(dir, f); err != nil {
			return auditDamage{}, err
		}
	}
	var d auditDamage
	err := eachRecord(dir, &d, func(rec audit.Record) error {
		if rec.Seq < from || !f.selects(rec) {
			return nil
		}
		return do(rec)
	})
	return d, err
}

// firstOfLatest returns the sequence number of the first of the last f.Latest records.
func firstOfLatest(dir string, f auditFilter) (uint64, error) {
	var latest []uint64
	more := false
	err := eachRecord(dir, new(auditDamage), func(rec audit.Record) error {
		if !f.selects(rec) {
			return nil
		}
		if len(latest) == f.Latest {
			latest, more = latest[1:], true // append drops the front when it grows
		}
		latest = append(latest, rec.Seq)
		return nil
	})
	if err != nil || !more {
		return 0, err
	}
	return latest[0], nil
}

// eachRecord calls do with every record.
func eachRecord(dir string, d *auditDamage, do func(audit.Record) error) error {
	for rec, err := range audit.Read(dir) {
		ae, ok := errors.AsType[*audit.Error](err)
		switch {
		case err == nil:
			if err := do(rec); err != nil {
				return err
			}
		case ok && (ae.Code == audit.CodeCorrupt || ae.Code == audit.CodeGap):
			d.add(err)
		case errors.Is(err, fs.ErrNotExist):
			return nil
		default:
			return err
		}
	}
	return nil
}

// threadID returns the thread of the log in dir that given names.
func threadID(ctx context.Context, dir, given string) (string, error) {
	return idKind{
		noun: "thread",
		find: func(_ context.Context, part string, limit int) (found []string, _ error) {
			err := eachRecord(dir, new(auditDamage), func(rec audit.Record) error {
				if rec.Envelope == nil {
					return nil
				}
				id := rec.Envelope.Thread()
				known := slices.Index(found, id)
				switch {
				case !hasPrefixFold(id, part) && !hasSuffixFold(id, part):
				case known >= 0: // the newest first
					found = slices.Insert(slices.Delete(found, known, known+1), 0, id)
				default:
					found = slices.Insert(found, 0, id)[:min(len(found)+1, limit)]
				}
				return nil
			})
			return found, err
		},
	}.resolve(ctx, given)
}

// senderOf returns the identity that an envelope claims for its sender.
func senderOf(e *envelope.Envelope) agent.Identity {
	id := agent.Identity{ID: e.Sender, Tier: agent.L3}
	if e.Metadata != nil {
		id.Tier, id.SandboxID = e.Metadata.Tier, e.Metadata.SandboxID
	}
	return id
}
