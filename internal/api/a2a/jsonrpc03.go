package a2a

import (
	legacy "github.com/a2aproject/a2a-go/a2a"
	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// methods03 are the methods of 0.3. The SDK converts them to 1.0 and back.
var methods03 = rpcMethods{
	unary: map[string]rpcMethod{
		"message/send": method(sendRequest03, a2asrv.RequestHandler.SendMessage,
			func(result a2a.SendMessageResult) (legacy.Event, error) { return a2av0.FromV1Event(result) }),
		"tasks/get":    method03(a2av0.ToV1GetTaskRequest, a2asrv.RequestHandler.GetTask, a2av0.FromV1Task),
		"tasks/cancel": method03(a2av0.ToV1CancelTaskRequest, a2asrv.RequestHandler.CancelTask, a2av0.FromV1Task),
		"tasks/pushNotificationConfig/set": method03(
			a2av0.ToV1PushConfig, a2asrv.RequestHandler.CreateTaskPushConfig, a2av0.FromV1PushConfig),
		"tasks/pushNotificationConfig/get": method03(
			a2av0.ToV1GetTaskPushConfigRequest, a2asrv.RequestHandler.GetTaskPushConfig, a2av0.FromV1PushConfig),
		"tasks/pushNotificationConfig/list": method03(
			a2av0.ToV1ListTaskPushConfigRequest, a2asrv.RequestHandler.ListTaskPushConfigs, pushConfigs03),
		"tasks/pushNotificationConfig/delete": method(
			sure(a2av0.ToV1DeleteTaskPushConfigRequest), deletePushConfig, same[any]),
		"agent/getAuthenticatedExtendedCard": method03(
			extendedCardRequest03, a2asrv.RequestHandler.GetExtendedAgentCard, card03),
	},
	stream: map[string]rpcMethod{
		"message/stream": method(
			sendRequest03, streaming(a2asrv.RequestHandler.SendStreamingMessage), same[eventSeq]),
		"tasks/resubscribe": method(
			sure(a2av0.ToV1SubscribeToTaskRequest), streaming(a2asrv.RequestHandler.SubscribeToTask), same[eventSeq]),
	},
	event:       event03,
	errorEvents: true,
}

func method03[P, V, R, W any](to func(*P) V, call call[V, R], from func(R) W) rpcMethod {
	return method(sure(to), call, sure(from))
}

func sendRequest03(p *legacy.MessageSendParams) (*a2a.SendMessageRequest, error) {
	if p.Message == nil {
		return nil, invalid("message", "is required")
	}
	return a2av0.ToV1SendMessageRequest(p)
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
