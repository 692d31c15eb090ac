package agentnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/bus"
)

// held returns an item that the agent holds by a token, or why it does not.
func (a *Agent) held(ctx context.Context, b *bus.Bus, taskID string, token int) (*version, error) {
	x, err := a.net.item(ctx, b, taskID)
	switch {
	case err != nil:
		return nil, connectionError(err)
	case x == nil:
		return nil, noItem(taskID)
	case x.State == Claimed && x.Holder == a.guid && x.Token == token:
		return x, nil
	}
	e := &Error{Code: ConflictError, Remedy: "Do not go on with it; claim other work with claim_work_item."}
	switch {
	case x.State == Claimed && x.Holder == a.guid:
		e.Message = fmt.Sprintf("The claim %d of %s is over: you have claimed the item again since, with the token %d.", token, quote(taskID), x.Token)
		e.Remedy = "Use the newer token."
	case x.State == Claimed:
		e.Message = fmt.Sprintf("You do not hold %s any more: your lease ended, and %s has claimed it.", quote(taskID), or(x.HolderHandle, "another agent"))
	case x.State == Queued || x.State == onItsWay:
		e.Message = fmt.Sprintf("You do not hold %s: it waits in its queue for a worker.", quote(taskID))
	case x.State == Completed:
		e.Message = fmt.Sprintf("%s is completed already, by %s.", quote(taskID), or(x.HolderHandle, "another agent"))
	default:
		e.Message = fmt.Sprintf("You do not hold %s any more: it has failed too often, or was refused, and is in the dead letters.", quote(taskID))
	}
	return nil, e
}

func noItem(taskID string) *Error {
	return &Error{Code: NotFoundError, Message: fmt.Sprintf("There is no item of work %s.", quote(taskID)),
		Remedy: "Check the taskId; finished items are kept for some days only."}
}

// Extend lengthens the lease of an item that the agent holds to the full time
// from now, and returns when it ends.
func (a *Agent) Extend(ctx context.Context, taskID string, token int) (until string, err error) {
	if a, err = a.keeper(ctx, taskID); err != nil {
		return "", err
	}
	x, err := a.changeHeld(ctx, taskID, token, func(x *version) {
		x.LeaseUntil = timestamp(a.net.clock.now().Add(a.net.cfg.AckTimeout))
	})
	if err != nil {
		return "", err
	}
	return x.LeaseUntil, a.tell(x.AckSubject, "+WPI")
}

// Outcome is what came of an item.
type Outcome struct {
	Success bool
	Summary string
	Result  map[string]any
}

// Complete stores the outcome of an item that the agent holds, durably. Whoever
// does not hold it any more is refused. To complete an item a second time with
// the same token is no error and changes nothing.
func (a *Agent) Complete(ctx context.Context, taskID string, token int, o Outcome) error {
	if o.Summary == "" || len(o.Summary) > maxNote {
		return invalid("The result's summary has %d bytes.", len(o.Summary)).WithRemedy("Say in 1 to %d bytes what came of the work.", maxNote)
	}
	var result json.RawMessage
	if o.Result != nil {
		data, err := json.Marshal(o.Result)
		if err != nil || len(data) > maxResult {
			return invalid("The result's data are not JSON of at most %d bytes.", maxResult).WithRemedy("Write them to a file and give its path.")
		}
		result = data
	}
	a, err := a.keeper(ctx, taskID)
	if err != nil {
		return err
	}
	x, err := a.changeHeld(ctx, taskID, token, func(x *version) {
		x.State, x.Success, x.Summary, x.Result = Completed, o.Success, o.Summary, result
		x.FinishedAt = timestamp(a.net.clock.now())
	})
	if err != nil {
		if a.completed(ctx, taskID, token) {
			return nil
		}
		return err
	}
	return a.tell(x.AckSubject, "+ACK")
}

// completed says that this claim completed the item, though the agent was not
// told.
func (a *Agent) completed(ctx context.Context, taskID string, token int) bool {
	b, err := a.ready()
	if err != nil {
		return false
	}
	x, err := a.net.item(ctx, b, taskID)
	return err == nil && x != nil && x.State == Completed && x.Holder == a.guid && x.Token == token && b.Commit(ctx) == nil
}

// Reject gives an item back that the agent holds: to the queue for another
// worker, or, if final or after the last attempt, to the dead letters. dead says
// which.
func (a *Agent) Reject(ctx context.Context, taskID string, token int, reason string, final bool) (dead bool, err error) {
	if reason == "" || len(reason) > maxNote {
		return false, invalid("The reason has %d bytes.", len(reason)).WithRemedy("Say in 1 to %d bytes why.", maxNote)
	}
	network := a.net
	if a, err = a.keeper(ctx, taskID); err != nil {
		return false, err
	}
	defer network.kickForward(network.items.kick) // it may be for others now
	b, err := a.ready()
	if err != nil {
		return false, err
	}
	x, err := a.changeHeld(ctx, taskID, token, func(x *version) {
		x.Reason, x.Detail = Refused, reason
		x.State = Queued
		if final || x.Deliveries >= a.net.mostAttempts(x.order) {
			x.State, x.FinishedAt = Dead, timestamp(a.net.clock.now())
		}
	})
	if err != nil {
		return false, err
	}
	if x.State == Dead {
		return true, connectionErrorOrNil(a.net.publishDead(ctx, b, x, x.AckSubject))
	}
	return false, a.tell(x.AckSubject, fmt.Sprintf(`-NAK {"delay": %d}`, rejectDelay))
}

// rejectDelay gives other workers the chance to be quicker than the one that
// has just refused an item.
const rejectDelay = 500 * time.Millisecond

func connectionErrorOrNil(err error) error {
	if err == nil {
		return nil
	}
	return connectionError(err)
}

// changeHeld changes the record of an item that the agent holds, and returns
// when that is durable.
func (a *Agent) changeHeld(ctx context.Context, taskID string, token int, change func(*version)) (*version, error) {
	b, err := a.ready()
	if err != nil {
		return nil, err
	}
	for range maxConflicts {
		x, err := a.held(ctx, b, taskID, token)
		if err != nil {
			return nil, err
		}
		change(x)
		err = a.net.save(ctx, b, x)
		if err == nil {
			return x, connectionErrorOrNil(b.Commit(ctx))
		}
		if !errors.Is(err, errConflict) {
			return nil, connectionError(err)
		}
	}
	return nil, connectionError(errConflict)
}

// tell says something about a message of a queue to the server. The record is
// what counts: if this is lost, the message comes again, and whoever gets it
// reads the record.
func (a *Agent) tell(ackSubject, what string) error {
	b, err := a.net.connected()
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	a.net.tell(b, ackSubject, what)
	return nil
}

func (n *Network) tell(b *bus.Bus, ackSubject, what string) {
	if !isAckSubject(ackSubject) {
		return
	}
	if err := b.Conn().Publish(ackSubject, []byte(what)); err != nil {
		n.log.Debug("the queue was not told", "error", err)
	}
}

// isAckSubject guards against a record that somebody has forged: we publish
// there with our own rights, and only about messages of queues.
func isAckSubject(subject string) bool {
	const short, long = 9, 11 // the long form has a domain and an account's hash before the stream
	token := strings.Split(subject, ".")
	if len(token) < short || len(token) > long+1 || token[0] != "$JS" || token[1] != "ACK" || strings.ContainsAny(subject, "*> \t\r\n") {
		return false
	}
	at := 2
	if len(token) >= long {
		at = 4
	}
	return strings.HasPrefix(token[at], queuePrefix) && token[at+1] == queueGroup
}
