package documents

import (
	"context"
	"encoding/hex"
	"encoding/json"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Content is a document as people and agents see it.
type Content struct {
	Name    string          `json:"name"`
	Epoch   uint64          `json:"epoch"`
	Version string          `json:"version"` // differs after each change, equal at all replicas
	Items   int             `json:"items"`   // tombstones included
	Bytes   int             `json:"bytes"`   // of content
	Content json.RawMessage `json:"content"` // the roots by name
}

// Content returns the current content of the document.
func (d *Document) Content(ctx context.Context) (Content, error) { return d.contentUnless(ctx, "") }

// contentUnless returns the content of the document, or only its version if that is seen.
func (d *Document) contentUnless(ctx context.Context, seen string) (c Content, err error) {
	c.Name = d.name
	if e := d.View(ctx, func(doc *crdt.Doc) {
		c.Version = versionOf(doc)
		if c.Version != seen {
			c.Items, c.Bytes = doc.Items(), doc.Bytes()
			c.Content, err = doc.JSON()
		}
	}); e != nil {
		return Content{}, e
	}
	c.Epoch = d.Epoch()
	return c, err
}

// Wait blocks until the document's version differs from seen and returns the document, or until ctx ends and returns
// ctx's error. The error has [CodeClosed] if the document is closed, as when a new epoch begins.
func (d *Document) Wait(ctx context.Context, seen string) (Content, error) {
	var changed wait.Signal
	defer d.OnUpdate(func(replica.Update) { changed.Send() })()
	var c Content
	var err error
	changed.Until(ctx, d.Done(), func() bool {
		c, err = d.contentUnless(ctx, seen)
		return err != nil || c.Version != seen
	})
	switch {
	case err == nil && c.Version != seen:
		return c, nil
	case err == nil && ctx.Err() != nil:
		return Content{}, ctx.Err()
	}
	select {
	case <-d.Done():
		return Content{}, &Error{Code: CodeClosed, Message: "the document " + d.name + " was closed", Remedy: "try again"}
	default:
		return Content{}, err
	}
}

// Change applies edits as one change and returns when it is durable.
func (d *Document) Change(ctx context.Context, edits []Edit) error {
	return d.changeVersion(ctx, "", edits)
}

// changeVersion is Change for a document whose version is seen, or any if that is "".
func (d *Document) changeVersion(ctx context.Context, seen string, edits []Edit) error {
	return d.Edit(ctx, func(doc *crdt.Doc) error {
		if seen != "" && versionOf(doc) != seen {
			return &Error{Code: CodeChanged, Message: "the document " + d.name + " has changed since it was read", Remedy: "read it again and repeat the edit"}
		}
		return Apply(doc, edits)
	})
}

func versionOf(doc *crdt.Doc) string {
	g := doc.Digest(false)
	return hex.EncodeToString(g.Vector[:8]) + hex.EncodeToString(g.Deletes[:8])
}
