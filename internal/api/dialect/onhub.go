package dialect

import (
	"context"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub"
)

// OnHub makes the hub what a Config wants.
func OnHub(h *hub.Hub) Hub { return onHub{h} }

// onHub gives the hub's subscriptions the type that the interface names.
type onHub struct{ *hub.Hub }

func (h onHub) SendAndStream(ctx context.Context, req hub.SendRequest) (Subscription, error) {
	return subscription(h.Hub.SendAndStream(ctx, req))
}

func (h onHub) Subscribe(ctx context.Context, id a2a.TaskID) (Subscription, error) {
	return subscription(h.Hub.Subscribe(ctx, id))
}

// subscription keeps a nil *hub.Subscription from becoming a Subscription that
// is not nil.
func subscription(s *hub.Subscription, err error) (Subscription, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}
