package dialect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/swarm"
)

// Swarms is what the dialect needs of the hub's coordinator; see [swarm.Coordinator].
type Swarms interface {
	Create(ctx context.Context, p swarm.Plan) (swarm.Session, error)
	Session(ctx context.Context, id string) (swarm.Session, error)
	Sessions(ctx context.Context) ([]swarm.Session, error)
	Stop(ctx context.Context, id, reason string) error
}

// The codes of the errors about swarms; the specification has none for them.
const (
	CodeSwarmNotFound = -32020
	CodeSwarmState    = -32021 // it has ended, or another hub leads it
)

// SwarmCreateParams are the parameters of hub/swarms/create.
type SwarmCreateParams struct {
	Plan swarm.Plan `json:"plan"`
}

// SwarmParams are the parameters of hub/swarms/get. With After, the hub answers
// when the swarm's sequence differs from it, the swarm ends, or 20 seconds pass.
type SwarmParams struct {
	ID    string `json:"id"`
	After uint64 `json:"after,omitempty"`
}

// SwarmStopParams are the parameters of hub/swarms/stop.
type SwarmStopParams struct {
	ID     string `json:"id"`
	Reason string `json:"reason,omitempty"`
}

// SwarmSummary is one element of the result of hub/swarms/list.
type SwarmSummary struct {
	ID              string       `json:"id"`
	TaskDescription string       `json:"taskDescription"` // its first 200 bytes
	Status          swarm.Status `json:"status"`
	Participants    []string     `json:"participants"`
	SubTasks        int          `json:"subTasks"`
	Completed       int          `json:"completed"` // of the sub-tasks
	Coordinator     string       `json:"coordinator"`
	CreatedAt       Time         `json:"createdAt"`
	Error           string       `json:"error,omitempty"`
	Directory       string       `json:"directory,omitempty"` // where this hub's agents work
}

const (
	swarmPatience = 20 * time.Second // of a get with After
	swarmPoll     = 100 * time.Millisecond
	maxPlan       = 4 << 20 // bytes of a plan
)

func (s *Service) swarmCreate(c *call) action {
	raw := c.get("plan", rawjson.Object, true)
	if len(raw) > maxPlan {
		c.fail("plan", fmt.Sprintf("has more than %d bytes", maxPlan))
		return nil
	}
	var plan swarm.Plan
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&plan); err != nil {
		c.fail("plan", err.Error())
	}
	return func(ctx context.Context) (any, error) { return s.cfg.Swarms.Create(ctx, plan) }
}

func (s *Service) swarmGet(c *call) action {
	id, after := c.requiredText("id", maxID), c.integer("after", 0, 1<<53)
	return func(ctx context.Context) (any, error) {
		if after == nil || *after == 0 {
			return s.cfg.Swarms.Session(ctx, id)
		}
		return s.awaitSwarm(ctx, id, uint64(*after))
	}
}

// awaitSwarm returns the swarm when its sequence differs from after, it has ended or swarmPatience has passed.
func (s *Service) awaitSwarm(ctx context.Context, id string, after uint64) (swarm.Session, error) {
	for deadline := time.Now().Add(swarmPatience); ; {
		session, err := s.cfg.Swarms.Session(ctx, id)
		if err != nil || session.Sequence != after || session.Status.Ended() || !time.Now().Before(deadline) {
			return session, err
		}
		select {
		case <-time.After(swarmPoll):
		case <-ctx.Done():
			return session, ctx.Err()
		}
	}
}

func (s *Service) swarmList(ctx context.Context) ([]SwarmSummary, error) {
	sessions, err := s.cfg.Swarms.Sessions(ctx)
	return each(sessions, summary), err
}

func summary(s swarm.Session) SwarmSummary {
	sum := SwarmSummary{
		ID: s.ID, TaskDescription: text.Clip(s.TaskDescription, 200), Status: s.Status, Participants: s.Participants, SubTasks: len(s.SubTasks),
		Coordinator: s.Coordinator, CreatedAt: Time{time.UnixMilli(s.CreatedAt)}, Error: s.Error,
	}
	if s.Directory != nil {
		sum.Directory = s.Directory.Path
	}
	for _, t := range s.SubTasks {
		if t.Status == swarm.TaskCompleted {
			sum.Completed++
		}
	}
	return sum
}

func (s *Service) swarmStop(c *call) action {
	id, reason := c.requiredText("id", maxID), cmp.Or(c.text("reason", maxID), "by the user")
	return func(ctx context.Context) (any, error) { return s.stopSwarm(ctx, id, reason) }
}

func (s *Service) stopSwarm(ctx context.Context, id, reason string) (any, error) {
	session, err := s.cfg.Swarms.Session(ctx, id)
	if err != nil || session.Status.Ended() {
		return session, err
	}
	err = s.cfg.Swarms.Stop(ctx, id, reason)
	switch {
	case swarm.CodeOf(err) == swarm.CodeNotFound: // another hub leads it
		return nil, &swarm.Error{Code: swarm.CodeState, Subject: id, Message: "the swarm is led by " + session.Coordinator + "; stop it there"}
	case err != nil:
		return nil, err
	}
	return s.cfg.Swarms.Session(ctx, id)
}

// swarmError translates an error that the caller can act on.
func swarmError(err error) error {
	var se *swarm.Error
	if !errors.As(err, &se) {
		return err
	}
	number, remedy := 0, ""
	switch se.Code {
	case swarm.CodeInvalid:
		return jsonrpc.InvalidParams("plan", se.Message)
	case swarm.CodeNotFound:
		number, remedy = CodeSwarmNotFound, "list them with hub/swarms/list"
	case swarm.CodeState:
		number = CodeSwarmState
	case swarm.CodeNoRoom:
		number, remedy = jsonrpc.CodeServerBusy, "stop a swarm with hub/swarms/stop, wait for one to end, or raise bus.maxStore: swarms get an eighth of it, at most 256 MiB"
	case swarm.CodeFull, swarm.CodeLimit, swarm.CodeClosed:
		number, remedy = jsonrpc.CodeServerBusy, "try again later"
	default:
		return err
	}
	return jsonrpc.NewError(number, se.Message, jsonrpc.Details{Code: string(se.Code), Remedy: remedy})
}
