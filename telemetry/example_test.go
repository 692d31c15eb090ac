package telemetry_test

import (
	"fmt"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
)

func ExampleRecorder() {
	r := telemetry.New(telemetry.Options{Sinks: []telemetry.Sink{
		telemetry.SinkFunc(func(e telemetry.Event) { fmt.Println(e.Type, e.MessageType) }),
	}})
	r.Emit(telemetry.Event{Type: telemetry.MessageSent, MessageType: envelope.Request})
	fmt.Println(r.Metrics().TotalMessagesSent)
	// Output:
	// message-sent request
	// 1
}
