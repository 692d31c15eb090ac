package dialect

import "context"

// AllowedSender is a sender whose tasks the sessions of the hub take without a question: the user has always allowed it.
type AllowedSender struct {
	ID     string `json:"id"`     // of this permission
	Kind   string `json:"kind"`   // client, a2a, peer or program
	Sender string `json:"sender"` // an address, the key of a hub, or the id of an agent
	Label  string `json:"label,omitempty"`
	Since  Time   `json:"since"`
}

// RevokeSenderParams are the parameters of hub/senders/revoke, whose result is the sender that is not allowed any more.
type RevokeSenderParams struct {
	ID string `json:"id"` // or what it begins with
}

// Senders are the senders that the user has always allowed.
type Senders interface {
	// AllowedSenders returns them in the order in which they were allowed.
	AllowedSenders() []AllowedSender
	// RevokeSender ends the permission of one. The error is a *hub.Error.
	RevokeSender(id string) (AllowedSender, error)
}

func (s *Service) sendersList(context.Context) ([]AllowedSender, error) {
	return append([]AllowedSender{}, s.cfg.Senders.AllowedSenders()...), nil // never null on the wire
}

func (s *Service) senderRevoke(_ context.Context, id string) (any, error) {
	return s.cfg.Senders.RevokeSender(id)
}
