package telemetry_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/envelope/envelopetest"
	"github.com/parleyhub/parley/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Feature: a2a-mcp-protocols, Property 32: A2A message metrics accuracy.
// The router's part, that it emits these events, is tested in package router.
// Req 12.4
func TestProperty32MetricsAccuracy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r telemetry.Recorder
		var sent, received, errors uint64
		sentBy, receivedBy, both := byType(), byType(), byType()
		var latency float64
		routed := 0
		for range rapid.IntRange(0, 100).Draw(t, "n") {
			e := telemetry.Event{MessageType: envelopetest.Type().Draw(t, "type")}
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				e.Type = telemetry.MessageSent
				sent++
				sentBy[e.MessageType]++
				both[e.MessageType]++
			case 1:
				e.Type = telemetry.MessageReceived
				received++
				receivedBy[e.MessageType]++
				both[e.MessageType]++
			case 2:
				e.Type = telemetry.RoutingDecision
				e.Duration = float64(rapid.IntRange(0, 1000).Draw(t, "ms"))
				latency += e.Duration
				routed++
				if rapid.Bool().Draw(t, "failed") {
					e.Success = telemetry.Failure
					errors++
				}
			case 3:
				e.Type = telemetry.ErrorEvent
				errors++
			}
			r.Emit(e)
		}
		if routed > 0 {
			latency /= float64(routed)
		}
		m := r.Metrics()
		if m.TotalMessagesSent != sent || m.TotalMessagesReceived != received || m.ErrorCount != errors ||
			m.RoutingDecisions != uint64(routed) || m.AverageRoutingLatencyMs != latency {
			t.Fatalf("%+v, want %d sent, %d received, %d errors, %d routed in %v ms", m, sent, received, errors, routed, latency)
		}
		for name, d := range map[string]string{
			"all": cmp.Diff(both, m.MessagesByType), "sent": cmp.Diff(sentBy, m.SentByType), "received": cmp.Diff(receivedBy, m.ReceivedByType),
		} {
			if d != "" {
				t.Fatalf("%s by type: %s", name, d)
			}
		}
		r.ResetMetrics()
		if m := r.Metrics(); m.TotalMessagesSent+m.TotalMessagesReceived+m.ErrorCount+m.RoutingDecisions != 0 {
			t.Fatalf("after a reset: %+v", m)
		}
	})
}

func byType() map[envelope.Type]uint64 {
	m := make(map[envelope.Type]uint64)
	for _, t := range envelope.Types() {
		m[t] = 0
	}
	return m
}

// Feature: a2a-mcp-protocols, Property 34: MCP invocation record serialization round trip.
// Req 13.4, Req 13.5
func TestProperty34InvocationRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec := telemetry.Invocation{
			ToolName:    rapid.StringMatching(`[a-z]{1,8}\.[a-z_]{1,8}`).Draw(t, "tool"),
			SourceAgent: envelopetest.ID().Draw(t, "agent"),
			Arguments:   compact(envelopetest.JSON().Draw(t, "arguments")),
			Result:      compact(envelopetest.JSON().Draw(t, "result")),
			Duration:    rapid.Float64Range(0, 1e9).Draw(t, "duration"),
			Success:     rapid.Bool().Draw(t, "success"),
			ErrorCode:   rapid.StringMatching(`[A-Z_]{0,8}`).Draw(t, "code"),
			Error:       rapid.String().Draw(t, "error"),
			Timestamp:   rapid.Int64Range(0, 1<<50).Draw(t, "timestamp"),
		}
		data, err := telemetry.EncodeInvocation(rec)
		if err != nil {
			t.Fatal(err)
		}
		back, err := telemetry.DecodeInvocation(data)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(rec, back); d != "" {
			t.Fatal(d)
		}
	})
}

// compact returns raw as encoding/json writes it, so that equal values have equal text.
func compact(raw json.RawMessage) json.RawMessage {
	data, err := json.Marshal(raw)
	if err != nil {
		panic(err)
	}
	return data
}

// Req 12.5
func TestToolMetrics(t *testing.T) {
	var r telemetry.Recorder
	r.Emit((&telemetry.Invocation{ToolName: "a.x", Duration: 10, Success: true}).Event())
	r.Emit((&telemetry.Invocation{ToolName: "a.x", Duration: 30, Error: "no"}).Event())
	m := r.Metrics()
	if m.TotalToolInvocations != 2 || m.ToolInvocationsByTool["a.x"] != 2 || m.AverageToolDurationMs != 20 || m.ToolErrorCount != 1 {
		t.Errorf("got %+v", m)
	}
	for i := range 5000 {
		r.Emit(telemetry.Event{Type: telemetry.ToolInvocation, ToolName: fmt.Sprint(i)})
	}
	m = r.Metrics()
	if n := len(m.ToolInvocationsByTool); n > 1001 {
		t.Errorf("%d tools are counted by name", n)
	}
	if m.ToolInvocationsByTool["other"] != 5002-1001 {
		t.Errorf("%d tools are counted as other", m.ToolInvocationsByTool["other"])
	}
}

func TestSecurityAndFailuresAreCounted(t *testing.T) {
	var r telemetry.Recorder
	r.Emit(telemetry.Event{Type: telemetry.Security})
	r.Emit(telemetry.Event{Type: telemetry.DeliveryFailure})
	r.Emit(telemetry.Event{Type: telemetry.MessageSent, MessageType: "no such type"})
	if m := r.Metrics(); m.SecurityEvents != 1 || m.DeliveryFailures != 1 || m.ErrorCount != 1 || m.TotalMessagesSent != 1 || len(m.SentByType) != 10 {
		t.Errorf("got %+v", m)
	}
}

func TestRecentIsABoundedRing(t *testing.T) {
	r := telemetry.New(telemetry.Options{Recent: 3, Now: func() time.Time { return time.UnixMilli(7) }})
	for i := range 5 {
		r.Emit(telemetry.Event{Type: telemetry.MessageSent, EnvelopeID: fmt.Sprint(i)})
	}
	ids := func(limit int) (s string) {
		for _, e := range r.Recent(limit) {
			s += e.EnvelopeID
		}
		return s
	}
	for limit, want := range map[int]string{0: "234", -1: "234", 2: "34", 9: "234"} {
		if got := ids(limit); got != want {
			t.Errorf("Recent(%d) has %s, want %s", limit, got, want)
		}
	}
	if at := r.Recent(1)[0].Timestamp; at != 7 {
		t.Errorf("the timestamp is %d, want the clock's", at)
	}
	r.ResetMetrics()
	if ids(0) != "234" {
		t.Error("the reset removed the recent events")
	}
}

func TestNilRecorderRecordsNothing(t *testing.T) {
	var r *telemetry.Recorder
	r.Emit(telemetry.Event{Type: telemetry.MessageSent})
	r.ResetMetrics()
	if r.Recent(0) != nil || r.Metrics().TotalMessagesSent != 0 {
		t.Error("a nil recorder recorded an event")
	}
}

func TestEventJSON(t *testing.T) {
	e := telemetry.Of(telemetry.RoutingDecision, &envelope.Envelope{ID: "e", Sender: "a", Recipient: "b", Type: envelope.Request})
	e.Success, e.Timestamp, e.SourceTier = telemetry.Failure, 5, agent.L0
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"type":"routing-decision","envelopeId":"e","sender":"a","recipient":"b","messageType":"request","success":false,"timestamp":5,"sourceTier":0}`
	if string(data) != want {
		t.Errorf("got %s", data)
	}
	var back telemetry.Event
	if err := json.Unmarshal(data, &back); err != nil || back != e {
		t.Errorf("read back %+v, %v", back, err)
	}
	for text, want := range map[string]telemetry.Outcome{"true": telemetry.Success, "null": telemetry.NoOutcome} {
		var o telemetry.Outcome
		if err := o.UnmarshalJSON([]byte(text)); err != nil || o != want {
			t.Errorf("%s is %v, %v", text, o, err)
		}
		if data, err := o.MarshalJSON(); err != nil || string(data) != text {
			t.Errorf("%v is %s, %v", o, data, err)
		}
	}
	if new(telemetry.Outcome).UnmarshalJSON([]byte("1")) == nil {
		t.Error("1 was decoded as an outcome")
	}
	if telemetry.OutcomeOf(nil) != telemetry.Success || telemetry.OutcomeOf(fmt.Errorf("x")) != telemetry.Failure {
		t.Error("OutcomeOf does not tell an error from none")
	}
}

// Peers can cause failures at any rate; the log must not grow at that rate.
func TestLimitBoundsLoggedFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []telemetry.Event
		sink := telemetry.Limit(telemetry.SinkFunc(func(e telemetry.Event) { got = append(got, e) }), 3, time.Minute)
		failed := telemetry.Event{Type: telemetry.RoutingDecision, Success: telemetry.Failure, Code: "AGENT_NOT_FOUND"}
		for range 1000 {
			sink.Emit(failed)
		}
		if len(got) != 4 || got[2].Code != failed.Code || got[3].Code != telemetry.CodeOmitted {
			t.Fatalf("%d events, the last %+v", len(got), got[len(got)-1])
		}
		got = nil
		sink.Emit(telemetry.Event{Type: telemetry.Security})        // another type
		sink.Emit(telemetry.Event{Type: telemetry.RoutingDecision}) // a success
		if len(got) != 2 {
			t.Errorf("events of another type or outcome are dropped, too: %+v", got)
		}
		got = nil
		<-time.After(time.Minute)
		sink.Emit(failed)
		if len(got) != 2 || got[0].Code != telemetry.CodeOmitted || !strings.HasPrefix(got[0].Detail, "997 more") || got[1].Code != failed.Code {
			t.Errorf("a minute later %+v", got)
		}
		got = nil
		<-time.After(time.Minute)
		if sink.Emit(failed); len(got) != 1 {
			t.Errorf("after a quiet minute %+v", got)
		}
	})
}

func TestLoggerLevels(t *testing.T) {
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug}))
	sink := telemetry.Logger(log)
	for want, e := range map[string]telemetry.Event{
		"level=DEBUG msg=message-sent envelopeId=e":                            {Type: telemetry.MessageSent, EnvelopeID: "e"},
		"level=WARN msg=security code=TIER_VIOLATION":                          {Type: telemetry.Security, Code: "TIER_VIOLATION"},
		"level=WARN msg=delivery-failure channelId=c":                          {Type: telemetry.DeliveryFailure, ChannelID: "c"},
		"level=ERROR msg=routing-decision duration=1.5 success=false":          {Type: telemetry.RoutingDecision, Duration: 1.5, Success: telemetry.Failure},
		"level=DEBUG msg=cross-tier sourceTier=0 targetTier=3":                 {Type: telemetry.CrossTier, SourceTier: agent.L0, TargetTier: agent.L3},
		"level=ERROR msg=error detail=\"a b\"":                                 {Type: telemetry.ErrorEvent, Detail: "a b"},
		"level=DEBUG msg=tool-invocation toolName=a.x duration=2 success=true": {Type: telemetry.ToolInvocation, ToolName: "a.x", Duration: 2, Success: telemetry.Success},
	} {
		buf.Reset()
		sink.Emit(e)
		if !strings.Contains(buf.String(), want) {
			t.Errorf("%+v is logged as %q, want %q", e, buf.String(), want)
		}
	}
	buf.Reset()
	telemetry.Logger(slog.New(slog.NewTextHandler(&buf, nil))).Emit(telemetry.Event{Type: telemetry.MessageSent})
	if buf.Len() > 0 {
		t.Error("a debug event was logged at info level")
	}
}

func TestAsyncDropsRatherThanBlocks(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{}, 16)
	var mu sync.Mutex
	got := 0
	a := telemetry.NewAsync(telemetry.SinkFunc(func(telemetry.Event) {
		entered <- struct{}{}
		<-release
		mu.Lock()
		got++
		mu.Unlock()
	}), 2)
	a.Emit(telemetry.Event{})
	<-entered // the sink is busy; the queue has room for two more events
	for range 5 {
		a.Emit(telemetry.Event{})
	}
	if n := a.Dropped(); n != 3 {
		t.Errorf("dropped %d, want 3", n)
	}
	close(release)
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got != 3 {
		t.Errorf("the sink got %d events, want 3", got)
	}
	a.Emit(telemetry.Event{})
	if a.Dropped() != 4 {
		t.Error("an event after Close is not counted as dropped")
	}
}

func TestRecorderIsSafeForConcurrentUse(t *testing.T) {
	r := telemetry.New(telemetry.Options{Recent: 8})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				r.Emit(telemetry.Event{Type: telemetry.MessageSent, MessageType: envelope.Request})
				r.Recent(2)
				r.Metrics()
			}
		})
	}
	wg.Wait()
	if n := r.Metrics().TotalMessagesSent; n != 4000 {
		t.Errorf("counted %d, want 4000", n)
	}
}

func FuzzDecodeInvocation(f *testing.F) {
	f.Add([]byte(`{"toolName":"a.b","arguments":{"x":1},"result":[1],"duration":1.5,"success":true}`))
	f.Add([]byte(`{"toolName":"a.b"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := telemetry.DecodeInvocation(data)
		if err != nil {
			return
		}
		again, err := telemetry.EncodeInvocation(rec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := telemetry.DecodeInvocation(again); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDecodeInvocationRefusesInvalidRecords(t *testing.T) {
	for _, data := range []string{"", "{}", `{"toolName":7}`, strings.Repeat(" ", telemetry.MaxInvocationSize+1)} {
		if _, err := telemetry.DecodeInvocation([]byte(data)); err == nil {
			t.Errorf("%.20q was accepted", data)
		}
	}
	if _, err := telemetry.EncodeInvocation(telemetry.Invocation{Arguments: json.RawMessage("{")}); err == nil {
		t.Error("invalid arguments were encoded")
	}
}

func BenchmarkEmit(b *testing.B) {
	r := telemetry.New(telemetry.Options{})
	e := telemetry.Event{Type: telemetry.MessageSent, EnvelopeID: "e", Sender: "a", Recipient: "b", MessageType: envelope.Request, Timestamp: 1}
	b.ReportAllocs()
	for b.Loop() {
		r.Emit(e)
	}
}

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

// Req 13.5: what encodes also decodes, to the same record, and text that is not UTF-8 is refused.
func TestWhatEncodesAlsoDecodes(t *testing.T) {
	data, err := telemetry.EncodeInvocation(telemetry.Invocation{Duration: 1, Success: true})
	if err != nil {
		t.Fatal(err)
	}
	if i, err := telemetry.DecodeInvocation(data); err != nil || i.ToolName != "" || i.Duration != 1 || !i.Success {
		t.Errorf("%s: %+v, %v", data, i, err)
	}
	bad := "a\xff"
	for _, i := range []telemetry.Invocation{
		{ToolName: bad}, {SourceAgent: bad}, {Caller: bad}, {ErrorCode: bad}, {Error: bad},
		{Arguments: json.RawMessage(`"` + bad + `"`)}, {Result: json.RawMessage(`"` + bad + `"`)},
		{Error: strings.Repeat("x", telemetry.MaxInvocationSize)},
	} {
		if data, err := telemetry.EncodeInvocation(i); err == nil {
			t.Errorf("encoded %.60q", data)
		}
	}
	if _, err := telemetry.DecodeInvocation([]byte(`{"toolName":"a","error":"` + bad + `"}`)); err == nil {
		t.Error("decoded text that is not UTF-8")
	}
}
