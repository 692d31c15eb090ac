package documents

import (
	"cmp"
	"net/http"
	"strconv"

	"github.com/parleyhub/parley/crdt/ysync"
)

// Rooms serves y-websocket clients, one room for each document.
type Rooms = ysync.Server

// Rooms returns the handler that lets y-websocket clients edit the document {name} of the
// request's path. It does not check host, origin or token.
func (l *Library) Rooms() *Rooms {
	return ysync.NewServer(ysync.Options{
		OriginChecked: true,
		Logger:        l.log,
		Open: func(r *http.Request) (ysync.Document, string, error) {
			doc, err := l.Ensure(r.Context(), r.PathValue("name"))
			if err != nil {
				return nil, "", err
			}
			if err := sameEpoch(r, doc.Epoch()); err != nil {
				return nil, "", err
			}
			// The hub does not know who uses the page.
			return doc, Browser, nil
		},
		Status: func(err error) int {
			switch CodeOf(err) {
			case CodeInvalid:
				return http.StatusBadRequest
			case CodeNotFound:
				return http.StatusNotFound
			default:
				return http.StatusServiceUnavailable
			}
		},
	})
}

// sameEpoch returns an error unless the epoch that a page names, 0 by default, is the document's current one.
func sameEpoch(r *http.Request, epoch uint64) error {
	if now := strconv.FormatUint(epoch, 10); cmp.Or(r.URL.Query().Get("epoch"), "0") != now {
		return &ysync.StaleError{Message: "this copy is outdated: the document is in epoch " + now + "; load it again"}
	}
	return nil
}
