package a2a

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	legacy "github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// methods03 are the methods of 0.3. The SDK converts them to 1.0 and back.
var methods03 = rpcMethods{
	unary: map[string]unaryMethod{
		"message/send": sendMessage03,
		"tasks/get":    unary03(infallible(a2av0.ToV1GetTaskRequest), a2asrv.RequestHandler.GetTask, a2av0.FromV1Task),
		"tasks/cancel": unary03(infallible(a2av0.ToV1CancelTaskRequest), a2asrv.RequestHandler.CancelTask, a2av0.FromV1Task),
		"tasks/pushNotificationConfig/set": unary03(
			infallible(a2av0.ToV1PushConfig), a2asrv.RequestHandler.CreateTaskPushConfig, a2av0.FromV1PushConfig),
		"tasks/pushNotificationConfig/get": unary03(
			infallible(a2av0.ToV1GetTaskPushConfigRequest), a2asrv.RequestHandler.GetTaskPushConfig, a2av0.FromV1PushConfig),
		"tasks/pushNotificationConfig/list": unary03(
			infallible(a2av0.ToV1ListTaskPushConfigRequest), a2asrv.RequestHandler.ListTaskPushConfigs, pushConfigs03),
		"tasks/pushNotificationConfig/delete": unary03(
			infallible(a2av0.ToV1DeleteTaskPushConfigRequest), deletePushConfig10, func(v any) any { return v }),
		"agent/getAuthenticatedExtendedCard": unary03(
			infallible(extendedCardRequest03), a2asrv.RequestHandler.GetExtendedAgentCard, card03),
	},
	stream: map[string]streamMethod{
		"message/stream":    stream03(sendRequest03, a2asrv.RequestHandler.SendStreamingMessage),
		"tasks/resubscribe": stream03(infallible(a2av0.ToV1SubscribeToTaskRequest), a2asrv.RequestHandler.SubscribeToTask),
	},
	event:       event03,
	errorEvents: true,
}

func infallible[P, V any](convert func(*P) *V) func(*P) (*V, error) {
	return func(p *P) (*V, error) { return convert(p), nil }
}

func unary03[P, V, R, W any](to func(*P) (*V, error), call func(a2asrv.RequestHandler, context.Context, *V) (R, error), from func(R) W) unaryMethod {
	return func(ctx context.Context, h a2asrv.RequestHandler, raw json.RawMessage) (any, error) {
		params, err := decode03(raw, to)
		if err != nil {
			return nil, err
		}
		result, err := call(h, ctx, params)
		if err != nil {
			return nil, err
		}
		return from(result), nil
	}
}

func stream03[P, V any](to func(*P) (*V, error), call func(a2asrv.RequestHandler, context.Context, *V) iter.Seq2[a2a.Event, error]) streamMethod {
	return func(ctx context.Context, h a2asrv.RequestHandler, raw json.RawMessage) (iter.Seq2[a2a.Event, error], error) {
		params, err := decode03(raw, to)
		if err != nil {
			return nil, err
		}
		return call(h, ctx, params), nil
	}
}

func decode03[P, V any](raw json.RawMessage, to func(*P) (*V, error)) (*V, error) {
	old, err := decodeParams[P](raw)
	if err != nil {
		return nil, err
	}
	params, err := to(old)
	if err != nil {
		return nil, fault(a2a.ErrInvalidParams, fmt.Sprintf("params: %v", err))
	}
	return params, nil
}

func sendRequest03(p *legacy.MessageSendParams) (*a2a.SendMessageRequest, error) {
	if p.Message == nil {
		return nil, invalid("message", "is required")
	}
	return a2av0.ToV1SendMessageRequest(p)
}

// sendMessage03 is separate because its result has one of two types.
func sendMessage03(ctx context.Context, h a2asrv.RequestHandler, raw json.RawMessage) (any, error) {
	params, err := decode03(raw, sendRequest03)
	if err != nil {
		return nil, err
	}
	result, err := h.SendMessage(ctx, params)
	if err != nil {
		return nil, err
	}
	return a2av0.FromV1Event(result)
}

// event03 converts an event. Unlike in the SDK, waiting for credentials ends a stream.
func event03(e a2a.Event) (any, error) {
	old, err := a2av0.FromV1Event(e)
	if status, ok := old.(*legacy.TaskStatusUpdateEvent); ok && status.Status.State == legacy.TaskStateAuthRequired {
		status.Final = true
	}
	return old, err
}

func pushConfigs03(r *a2a.ListTaskPushConfigResponse) []*legacy.TaskPushConfig {
	return append([]*legacy.TaskPushConfig{}, a2av0.FromV1PushConfigs(r.Configs)...) // never null on the wire
}

func extendedCardRequest03(*struct{}) *a2a.GetExtendedAgentCardRequest {
	return &a2a.GetExtendedAgentCardRequest{}
}
