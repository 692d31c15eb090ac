// Package replay reads the hub's audit log and sends envelopes of it again.
package replay

import (
	"errors"
	"io/fs"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/telemetry/audit"
)

// Filter selects records. The zero Filter selects all.
type Filter struct {
	Event  telemetry.EventType
	Type   envelope.Type
	Agent  string // sender, recipient or the agent that it went to
	Thread string
	Since  time.Time // this and later
	Until  time.Time // before this
	Failed bool      // only what failed or was refused
	Latest int       // the last so many of those that are selected; 0 means all
}

func (f *Filter) admits(rec audit.Record) bool {
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

// Damage is what of a log could not be read: lines that are no records, and
// records that are missing.
type Damage struct {
	Places int
	First  error // nil if there is none
}

func (d *Damage) add(err error) {
	if d.Places++; d.First == nil {
		d.First = err
	}
}

// List calls do with the records of the log in dir that the filter selects,
// oldest first, until do fails. A directory that is not there is an empty log.
// The log may be written meanwhile. Damage is counted and skipped; an error is
// do's, or an [*audit.Error] where the files cannot be read at all.
func List(dir string, f Filter, do func(audit.Record) error) (Damage, error) {
	from := uint64(0)
	if f.Latest > 0 {
		var err error
		if from, err = begin(dir, f); err != nil {
			return Damage{}, err
		}
	}
	var d Damage
	err := each(dir, &d, func(rec audit.Record) error {
		if rec.Seq < from || !f.admits(rec) {
			return nil
		}
		return do(rec)
	})
	return d, err
}

// begin returns the number of the first of the latest records.
func begin(dir string, f Filter) (uint64, error) {
	latest := make([]uint64, 0, min(f.Latest, 1024)) // a ring, once it is full
	n := 0
	err := each(dir, new(Damage), func(rec audit.Record) error {
		if !f.admits(rec) {
			return nil
		}
		if len(latest) < f.Latest {
			latest = append(latest, rec.Seq)
		} else {
			latest[n%f.Latest] = rec.Seq
		}
		n++
		return nil
	})
	if err != nil || n <= f.Latest {
		return 0, err
	}
	return latest[n%f.Latest], nil
}

// each calls do with every record.
func each(dir string, d *Damage, do func(audit.Record) error) error {
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

// identity is who sent an envelope, as far as it says so itself.
func identity(e *envelope.Envelope) agent.Identity {
	id := agent.Identity{ID: e.Sender, Tier: agent.L3}
	if e.Metadata != nil {
		id.Tier, id.SandboxID = e.Metadata.Tier, e.Metadata.SandboxID
	}
	return id
}
