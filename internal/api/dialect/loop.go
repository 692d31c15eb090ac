package dialect

import (
	"context"
	"encoding/json"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/ralph"
)

// LoopStepParams is a step of a loop, for the hub's audit log.
type LoopStepParams struct {
	List string     `json:"list"` // what the loop works through
	Step ralph.Step `json:"step"`
}

// LoopStepResult says that the step is in the log.
type LoopStepResult struct {
	Logged bool `json:"logged"`
}

// Bounds of a step, in bytes.
const (
	maxLoopList = 4 << 10
	maxLoopText = 16 << 10
)

func (s *Service) loopStep(_ context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	var p LoopStepParams
	if err := json.Unmarshal(req.Params, &p); err != nil {
		return nil, jsonrpc.InvalidParams("params", err.Error())
	}
	switch {
	case p.List == "" || len(p.List) > maxLoopList:
		return nil, jsonrpc.InvalidParams("list", "expected a text of at most 4096 bytes")
	case !p.Step.Kind.Valid():
		return nil, jsonrpc.InvalidParams("step.kind", "there is no such step")
	case len(p.Step.Item)+len(p.Step.Text)+len(p.Step.Ref)+len(p.Step.Detail) > maxLoopText:
		return nil, jsonrpc.InvalidParams("step", "it is too long")
	}
	if err := s.cfg.LoopStep(p.List, p.Step); err != nil {
		return nil, err
	}
	return LoopStepResult{Logged: true}, nil
}
