package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/parleyhub/parley/crdt/ysync"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/documents/sharing"
)

// documentsPath is the path of documents for y-websocket clients, followed by the name.
const documentsPath = "/documents/"

func (d *daemon) openDocuments(ctx context.Context) error {
	l, err := documents.Open(ctx, documents.Options{Bus: d.bus, Name: d.name, Logger: d.log})
	if err != nil {
		return err
	}
	d.documents = l
	d.onCloseWithin(documentsTimeout, l.Close)
	return nil
}

// openSharing serves replicas of documents to agents of other processes: those that connect
// over HTTP, and those of peers.
func (d *daemon) openSharing(context.Context) error {
	service := sharing.New(d.documents, d.log)
	d.onClose(func() error { service.Close(); return nil })
	if err := service.Serve(d.node, sharing.CardID, notOfPeers); err != nil {
		return err
	}
	if d.peers == nil {
		return nil
	}
	return service.Serve(d.peers.Node(), signedcard.ID(sharing.CardID, d.peers.Key()), nil) // peers.Node verifies the ids
}

// notOfPeers refuses clients over HTTP that use the id of a peer's agent, which ends in the
// peer's verified key.
func notOfPeers(agentID string) error {
	if _, _, ok := signedcard.ParseID(agentID); ok {
		return fmt.Errorf("%s is the id of a peer's agent, which cannot be used over HTTP", agentID)
	}
	return nil
}

// documentRooms returns the handler that lets y-websocket clients edit the hub's documents. The
// server has already checked host, origin and token.
func (d *daemon) documentRooms() *ysync.Server {
	return ysync.NewServer(ysync.Options{
		OriginChecked: true,
		Logger:        d.log,
		Open: func(r *http.Request) (ysync.Document, string, error) {
			doc, err := d.documents.Ensure(r.Context(), r.PathValue("name"))
			if err != nil {
				return nil, "", err
			}
			if err := sameEpoch(r, doc.Epoch()); err != nil {
				return nil, "", err
			}
			// The hub does not know who uses the page.
			return doc, documents.Browser, nil
		},
		Status: func(err error) int {
			switch documents.CodeOf(err) {
			case documents.CodeInvalid:
				return http.StatusBadRequest
			case documents.CodeNotFound:
				return http.StatusNotFound
			default:
				return http.StatusServiceUnavailable
			}
		},
	})
}

// sameEpoch returns an error unless the epoch that a page names, 0 by default, is the
// document's current one.
func sameEpoch(r *http.Request, epoch uint64) error {
	if now := strconv.FormatUint(epoch, 10); cmp.Or(r.URL.Query().Get("epoch"), "0") != now {
		return &ysync.StaleError{Message: "the document is in epoch " + now + "; start with a new copy"}
	}
	return nil
}
