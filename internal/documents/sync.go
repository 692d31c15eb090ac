package documents

import (
	"context"

	"github.com/parleyhub/parley/crdt"
)

// Copy is what a program that edits a document has of it.
type Copy struct {
	Epoch  uint64 `json:"epoch,omitempty"`
	Vector []byte `json:"vector,omitempty"` // the state vector, as Yjs encodes it; none for a program that has nothing
	Update []byte `json:"update,omitempty"` // what the document may lack, as an update of Yjs
}

// Rest is what a copy lacks.
type Rest struct {
	Name    string `json:"name"`
	Epoch   uint64 `json:"epoch"`
	Version string `json:"version"`
	Vector  []byte `json:"vector"` // of the document, as Yjs encodes it
	Update  []byte `json:"update"` // what the copy lacks, as an update of Yjs
}

// Sync merges a copy with a document, and returns what the copy lacks once its update is durable. A copy may be sent again: what
// is known already changes nothing. The error has [CodeChanged] if the copy is of another epoch; it must then be made anew.
func (l *Library) Sync(ctx context.Context, name string, c Copy) (rest *Rest, err error) {
	err = l.retryClosed(ctx, func() error {
		d, err := l.Get(ctx, name)
		if err != nil {
			return err
		}
		rest, err = d.sync(ctx, c)
		return err
	})
	return rest, err
}

func (d *Document) sync(ctx context.Context, c Copy) (*Rest, error) {
	if epoch := d.Epoch(); epoch != c.Epoch && (len(c.Vector) > 0 || len(c.Update) > 0) {
		return nil, &Error{Code: CodeChanged, Message: "the document " + d.name + " has begun a new epoch", Remedy: "load it again and repeat the edits"}
	}
	var vector crdt.StateVector
	if len(c.Vector) > 0 {
		var err error
		if vector, err = crdt.DecodeStateVector(c.Vector, crdt.LiveLimits().Vector); err != nil {
			return nil, invalidCopy(err)
		}
	}
	if len(c.Update) > 0 {
		if err := d.Submit(ctx, Browser, c.Update, true); err != nil {
			return nil, invalidCopy(err)
		}
		if err := d.Durable(ctx); err != nil {
			return nil, uncertain(err, "the edit of the document %s was not confirmed: it is stored as a whole, or not at all", d.name)
		}
	}
	r := &Rest{Name: d.name, Epoch: d.Epoch()}
	err := d.View(ctx, func(doc *crdt.Doc) {
		r.Version, r.Vector, r.Update = versionOf(doc), doc.StateVector().Encode(), doc.EncodeSince(vector)
	})
	return r, err
}

// invalidCopy makes an error of package crdt one with CodeInvalid.
func invalidCopy(err error) error {
	if crdt.CodeOf(err) == "" {
		return err
	}
	return &Error{Code: CodeInvalid, Message: "the copy of the document was refused", Remedy: "load it again and repeat the edits", Err: err}
}
