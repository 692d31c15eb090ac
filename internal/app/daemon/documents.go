package daemon

import (
	"context"
	"fmt"

	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/documents/sharing"
)

// documentsPath is the path of documents for y-websocket clients, followed by the name.
const documentsPath = "/documents/"

func (d *daemon) openDocuments(ctx context.Context) error {
	l, err := documents.Open(ctx, documents.Options{Bus: d.bus, Name: d.name, Logger: d.log, Changed: d.documentChanged})
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

// notOfPeers refuses clients over HTTP that use the id of a peer's agent, which ends in the peer's verified key.
func notOfPeers(agentID string) error {
	if _, _, ok := signedcard.ParseID(agentID); ok {
		return fmt.Errorf("%s is the id of a peer's agent, which cannot be used over HTTP", agentID)
	}
	return nil
}
