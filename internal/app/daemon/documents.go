package daemon

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/parleyhub/parley/crdt/ysync"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/documents/sharing"
)

// documentsPath is where y-websocket clients find documents: below it, by name.
const documentsPath = "/documents/"

func (d *daemon) openDocuments(ctx context.Context) error {
	l, err := documents.Open(ctx, documents.Options{Bus: d.bus, Name: d.name, Logger: d.log})
	if err != nil {
		return err
	}
	d.documents = l
	d.atEnd(func() error { return within(documentsPatience, l.Close) })
	return nil
}

// openSharing lets agents of other processes keep replicas of documents: those that come
// over HTTP, and those of peers.
func (d *daemon) openSharing(context.Context) error {
	service := sharing.New(d.documents, d.log)
	d.atEnd(func() error { service.Close(); return nil })
	if err := service.Serve(d.node, sharing.CardID, notOfPeers); err != nil {
		return err
	}
	if d.peers == nil {
		return nil
	}
	return service.Serve(d.peers.Node(), signedcard.ID(sharing.CardID, d.peers.Key()), nil) // it lets peers speak for themselves only
}

// notOfPeers keeps whoever may call the hub over HTTP from passing for a peer's agent, whose
// id ends in the key that the peer has proved to have.
func notOfPeers(agentID string) error {
	if _, _, ok := signedcard.ParseID(agentID); ok {
		return fmt.Errorf("%s is an agent of a peer, and not come from there", agentID)
	}
	return nil
}

// documentRooms lets clients of y-websocket edit the hub's documents. The server has
// checked host, origin and token before.
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
			// The hub knows no more of them than that they may call it.
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

// sameEpoch holds the epoch that a page was written for, 0 where it names none, against the
// document's.
func sameEpoch(r *http.Request, epoch uint64) error {
	asked := r.URL.Query().Get("epoch")
	if asked == "" {
		asked = "0"
	}
	if now := strconv.FormatUint(epoch, 10); asked != now {
		return &ysync.StaleError{Message: "the document is in epoch " + now + "; begin with a new copy"}
	}
	return nil
}
