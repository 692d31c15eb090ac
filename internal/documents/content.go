package documents

import (
	"context"
	"encoding/hex"
	"encoding/json"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
)

// Content is a document as people and agents see it.
type Content struct {
	Name    string          `json:"name"`
	Epoch   uint64          `json:"epoch"`
	Version string          `json:"version"` // another one after each change, the same at all replicas
	Items   int             `json:"items"`   // tombstones included
	Bytes   int             `json:"bytes"`   // of content
	Content json.RawMessage `json:"content"` // the roots by name
}

// Content returns the document as it is now.
func (d *Document) Content(ctx context.Context) (Content, error) {
	c := Content{Name: d.name}
	var err error
	if e := d.View(ctx, func(doc *crdt.Doc) {
		c.Version = version(doc)
		c.Items, c.Bytes = doc.Items(), doc.Bytes()
		c.Content, err = doc.JSON()
	}); e != nil {
		return Content{}, e
	}
	s, e := d.Status(ctx)
	if e != nil {
		return Content{}, e
	}
	c.Epoch = s.Epoch
	return c, err
}

func version(doc *crdt.Doc) string {
	g := doc.Digest(false)
	return hex.EncodeToString(g.Vector[:8]) + hex.EncodeToString(g.Deletes[:8])
}

// Wait returns the document as soon as its version is another than seen, or when ctx ends
// with ctx's error. If another epoch takes the document's place, its error has [CodeClosed].
func (d *Document) Wait(ctx context.Context, seen string) (Content, error) {
	changed := make(chan struct{}, 1)
	defer d.OnUpdate(func(replica.Update) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	ended := &Error{Code: CodeClosed, Message: "the document " + d.name + " was closed", Remedy: "try again"}
	for {
		var now string
		err := d.View(ctx, func(doc *crdt.Doc) { now = version(doc) })
		if err == nil && now != seen {
			var c Content
			if c, err = d.Content(ctx); err == nil {
				return c, nil
			}
		}
		if err != nil {
			select {
			case <-d.Done():
				return Content{}, ended
			default:
				return Content{}, err
			}
		}
		select {
		case <-changed:
		case <-d.Done():
			return Content{}, ended
		case <-ctx.Done():
			return Content{}, ctx.Err()
		}
	}
}

// Change makes edits one change and returns when it is durable.
func (d *Document) Change(ctx context.Context, edits []Edit) error {
	return d.Edit(ctx, func(doc *crdt.Doc) error { return Apply(doc, edits) })
}
