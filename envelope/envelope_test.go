package envelope_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/envelope/envelopetest"
)

const wire = `{"id":"e1","schemaVersion":1,"sender":"sun","recipient":"mars","type":"request","timestamp":1700000000000,"payload":{"a":1}}`

func mustNew(t testing.TB, payload any) *envelope.Envelope {
	t.Helper()
	e, err := envelope.New("sun", "mars", envelope.Request, payload)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestDecodeReadsTheSpecifiedShape(t *testing.T) {
	e, err := envelope.Decode([]byte(`
	{ "payload" : [ 1.0,  "<&>" ] , "metadata": {"tier": 2, "sandboxId": "box", "routingHint": "capability", "other": {}},
	  "timestamp": 1.7e12, "type": "task-proposal", "recipient": "*", "sender": "m\u0061rs", "correlationId": "c",
	  "schemaVersion": 1, "id": "e1", "unknown": [{"id": "no"}] }`))
	if err != nil {
		t.Fatal(err)
	}
	want := &envelope.Envelope{ID: "e1", SchemaVersion: 1, Sender: "mars", Recipient: "*", CorrelationID: "c",
		Type: envelope.TaskProposal, Timestamp: 1_700_000_000_000, Payload: json.RawMessage(`[ 1.0,  "<&>" ]`),
		Metadata: &envelope.Metadata{Tier: agent.L2, SandboxID: "box", RoutingHint: envelope.ByCapability}}
	if !e.Equal(want) {
		t.Errorf("got %+v", e)
	}
	if !e.ToCapability() || e.Time().UnixMilli() != want.Timestamp {
		t.Error("ToCapability or Time disagrees with the JSON")
	}
}

func TestDecodeRefusesInvalidEnvelopes(t *testing.T) {
	sub := func(old, new string) string { return strings.Replace(wire, old, new, 1) }
	for name, tc := range map[string]struct {
		data string
		want string // in the error
	}{
		"nothing":              {"", "not a JSON object"},
		"an array":             {"[]", "not a JSON object"},
		"trailing text":        {wire + "x", "not the JSON"},
		"text not UTF-8":       {sub("sun", "s\xff"), "not the JSON"},
		"missing id":           {sub(`"id":"e1",`, ""), "id is missing"},
		"missing sender":       {sub(`"sender":"sun",`, ""), "sender is missing"},
		"missing recipient":    {sub(`"recipient":"mars",`, ""), "recipient is missing"},
		"missing type":         {sub(`"type":"request",`, ""), "type is missing"},
		"missing timestamp":    {sub(`"timestamp":1700000000000,`, ""), "timestamp is missing"},
		"missing payload":      {sub(`,"payload":{"a":1}`, ""), "payload is missing"},
		"missing version":      {sub(`"schemaVersion":1,`, ""), "schemaVersion is missing"},
		"version of text":      {sub(`"schemaVersion":1`, `"schemaVersion":"1"`), "schemaVersion"},
		"version zero":         {sub(`"schemaVersion":1`, `"schemaVersion":0`), "schemaVersion"},
		"unknown type":         {sub("request", "gossip"), "ten message types"},
		"sender of another":    {sub(`"sun"`, "7"), `"sender" is not a string`},
		"broadcast as sender":  {sub(`"sun"`, `"*"`), "sender must not be"},
		"fraction of a time":   {sub("1700000000000", "1.5"), "timestamp"},
		"negative time":        {sub("1700000000000", "-1"), "timestamp is negative"},
		"key twice":            {sub(`"sender"`, `"id":"e2","sender"`), "comes twice"},
		"metadata a string":    {sub(`"payload"`, `"metadata":"x","payload"`), "not a JSON object"},
		"metadata of no tier":  {sub(`"payload"`, `"metadata":{},"payload"`), "metadata.tier is missing"},
		"metadata of tier 4":   {sub(`"payload"`, `"metadata":{"tier":4},"payload"`), "metadata.tier"},
		"metadata tier twice":  {sub(`"payload"`, `"metadata":{"tier":3,"tier":0},"payload"`), "comes twice"},
		"unknown hint":         {sub(`"payload"`, `"metadata":{"tier":1,"routingHint":"x"},"payload"`), "routingHint"},
		"long trace":           {sub(`"payload"`, `"metadata":{"tier":1,"tracestate":"`+strings.Repeat("x", 600)+`"},"payload"`), "tracestate"},
		"control in id":        {sub("e1", `e\u0001`), "id is longer than"},
		"key in another case":  {sub(`"sender"`, `"Sender"`), "sender is missing"},
		"too deep":             {sub(`{"a":1}`, strings.Repeat("[", 2000)+strings.Repeat("]", 2000)), "not the JSON"},
		"sandbox of two words": {sub(`"payload"`, `"metadata":{"tier":1,"sandboxId":"a b"},"payload"`), "sandboxId"},
	} {
		_, err := envelope.Decode([]byte(tc.data))
		if envelope.CodeOf(err) != envelope.CodeInvalidEnvelope || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}

// Req 13.7: an unknown version gives an error that names both versions.
func TestDecodeNamesVersionMismatch(t *testing.T) {
	_, err := envelope.Decode([]byte(strings.Replace(wire, `"schemaVersion":1`, `"schemaVersion":7`, 1)))
	version, ok := errors.AsType[*envelope.VersionError](err)
	if !ok || envelope.CodeOf(err) != envelope.CodeSchemaVersion || version.Got != 7 || version.Want != 1 {
		t.Fatalf("got %#v", err)
	}
	if s := err.Error(); !strings.Contains(s, "7") || !strings.Contains(s, "1") {
		t.Errorf("%q does not name the versions", s)
	}
}

func TestSizeIsBounded(t *testing.T) {
	big := mustNew(t, strings.Repeat("x", 1000))
	c := envelope.Codec{MaxSize: 500}
	prefix := []byte("kept")
	out, err := c.Append(prefix, big)
	if envelope.CodeOf(err) != envelope.CodeTooLarge || string(out) != "kept" {
		t.Errorf("Append: %q, %v", out, err)
	}
	data, err := envelope.Encode(big)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Decode(data); envelope.CodeOf(err) != envelope.CodeTooLarge {
		t.Errorf("Decode: %v", err)
	}
	if _, err := envelope.Decode(make([]byte, envelope.DefaultMaxSize+1)); envelope.CodeOf(err) != envelope.CodeTooLarge {
		t.Errorf("Decode of an envelope over the limit: %v", err)
	}
	if n := big.Size(); n < len(data) {
		t.Errorf("Size is %d, the JSON has %d", n, len(data))
	}
}

func TestPayloadIsKeptByteForByte(t *testing.T) {
	for _, payload := range []string{
		`{"b":1,"a":2}`, ` [ 1 ]`, `1.000`, `1e400`, `"<script>&\u2028\u0041\/"`, "{\n\t\"x\" : null }", `12345678901234567890123`, `""`, `{"a":1,"a":2}`,
	} {
		e := mustNew(t, json.RawMessage(payload))
		data, err := envelope.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		back, err := envelope.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(back.Payload); got != strings.TrimLeft(payload, " ") {
			t.Errorf("%q was decoded as %q", payload, got)
		}
	}
}

func TestDecodedEnvelopeDoesNotReferToItsSource(t *testing.T) {
	data := []byte(wire)
	e, err := envelope.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	want := e.With(func(*envelope.Envelope) {})
	clear(data)
	if !e.Equal(want) {
		t.Errorf("the envelope changed with its source: %+v", e)
	}
}

// Req 2.2
func TestNew(t *testing.T) {
	before := time.Now().UnixMilli()
	e := mustNew(t, map[string]int{"n": 1})
	if e.Timestamp < before || e.Timestamp > time.Now().UnixMilli() || string(e.Payload) != `{"n":1}` || len(e.ID) != 36 {
		t.Errorf("got %+v", e)
	}
	if e.ID[14] != '7' || !strings.ContainsRune("89ab", rune(e.ID[19])) {
		t.Errorf("%s is not a UUID of version 7", e.ID)
	}
	for _, empty := range []any{nil, json.RawMessage(nil)} {
		if e := mustNew(t, empty); string(e.Payload) != "null" {
			t.Errorf("a missing payload was encoded as %q", e.Payload)
		}
	}
	for name, payload := range map[string]any{"a channel": make(chan int), "broken JSON": json.RawMessage("{")} {
		if _, err := envelope.New("a", "b", envelope.Request, payload); envelope.CodeOf(err) != envelope.CodeInvalidEnvelope {
			t.Errorf("%s: %v", name, err)
		}
	}
	var v struct{ N int }
	if err := e.Unmarshal(&v); err != nil || v.N != 1 {
		t.Errorf("Unmarshal: %v, %v", v, err)
	}
	if err := e.Unmarshal(new(string)); envelope.CodeOf(err) != envelope.CodeInvalidEnvelope {
		t.Errorf("Unmarshal into the wrong type: %v", err)
	}
}

// Req 2.4
func TestRepliesStayInTheThread(t *testing.T) {
	first := mustNew(t, nil)
	second, err := first.Reply("mars", envelope.Response, 1)
	if err != nil {
		t.Fatal(err)
	}
	if second.Sender != "mars" || second.Recipient != "sun" || second.CorrelationID != first.ID {
		t.Errorf("got %+v", second)
	}
	third, err := envelope.NewFactory(agent.Identity{ID: "sun", Tier: agent.L0}).Reply(second, envelope.Notification, nil)
	if err != nil {
		t.Fatal(err)
	}
	if third.CorrelationID != first.ID || third.Recipient != "mars" {
		t.Errorf("got %+v", third)
	}
	fourth, err := third.Reply("mars", envelope.Response, nil)
	if err != nil || fourth.CorrelationID != first.ID {
		t.Errorf("got %+v, %v", fourth, err)
	}
}

func TestFactory(t *testing.T) {
	at := time.UnixMilli(1234)
	f := envelope.NewFactory(agent.Identity{ID: "mars", Tier: agent.L2, SandboxID: "box"}).WithClock(func() time.Time { return at })
	e, err := f.NewForCapability("codegen.go", envelope.Request, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !e.ToCapability() || e.Timestamp != 1234 || e.Metadata.Tier != agent.L2 || e.Metadata.SandboxID != "box" {
		t.Errorf("got %+v", e)
	}
	if e, err := f.New(envelope.Broadcast, envelope.Notification, nil); err != nil || e.ToCapability() {
		t.Errorf("got %+v, %v", e, err)
	}
	if _, err := f.New("", envelope.Request, nil); envelope.CodeOf(err) != envelope.CodeInvalidEnvelope {
		t.Errorf("no recipient: %v", err)
	}
}

func TestWithDoesNotChangeTheOriginal(t *testing.T) {
	e := mustNew(t, map[string]int{"a": 1}).With(func(e *envelope.Envelope) { e.Metadata = &envelope.Metadata{Tier: agent.L1} })
	d := e.With(func(e *envelope.Envelope) { e.Payload[0], e.Metadata.Tier, e.ID = 'x', agent.L3, "other" })
	if e.Payload[0] == 'x' || e.Metadata.Tier != agent.L1 || e.ID == "other" || d.Equal(e) {
		t.Errorf("the original changed: %+v", e)
	}
	var none *envelope.Envelope
	if none.Equal(e) || !none.Equal(nil) {
		t.Error("Equal is wrong for nil")
	}
}

// Validate has a fast check and a slower one that finds the reason; both must agree.
func TestValidateNamesTheInvalidField(t *testing.T) {
	if err := new(envelope.Envelope).Validate(); err == nil {
		t.Fatal("the empty envelope is valid")
	} else {
		for _, field := range []string{"id", "schemaVersion", "sender", "recipient", "type", "timestamp", "payload"} {
			if !strings.Contains(err.Error(), field+" is missing") {
				t.Errorf("%q does not name %s", err, field)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		e := envelopetest.Envelope().Draw(t, "envelope")
		text := rapid.OneOf(rapid.SampledFrom([]string{"", "*", "a b", "a\n", "\xff", strings.Repeat("x", 300), "a"}), rapid.String())
		for _, field := range []*string{&e.ID, &e.Sender, &e.Recipient, &e.CorrelationID, (*string)(&e.Type)} {
			if rapid.IntRange(0, 4).Draw(t, "break") == 0 {
				*field = text.Draw(t, "text")
			}
		}
		if m := e.Metadata; m != nil && rapid.Bool().Draw(t, "metadata") {
			m.Tier = agent.Tier(rapid.IntRange(0, 6).Draw(t, "tier"))
			m.SandboxID, m.TraceParent, m.TraceState = text.Draw(t, "box"), text.Draw(t, "parent"), text.Draw(t, "state")
			m.RoutingHint = envelope.RoutingHint(text.Draw(t, "hint"))
		}
		if err := e.Validate(); err != nil {
			invalid, ok := errors.AsType[agent.Problems](err)
			if !ok || envelope.CodeOf(err) != envelope.CodeInvalidEnvelope || len(invalid) == 0 {
				t.Fatalf("%+v is refused without a reason: %v", e, err)
			}
		}
	})
}

func TestEnvelopeInsideOtherJSON(t *testing.T) {
	e := mustNew(t, json.RawMessage(`{"a":"<b>"}`))
	data, err := json.Marshal(map[string]any{"e": e})
	if err != nil {
		t.Fatal(err)
	}
	var back struct{ E *envelope.Envelope }
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	var v struct{ A string }
	if err := back.E.Unmarshal(&v); err != nil || v.A != "<b>" || back.E.ID != e.ID {
		t.Errorf("got %+v, %v", back.E, err)
	}
	if err := json.Unmarshal([]byte(`{"e":{}}`), &back); err == nil {
		t.Error("an empty envelope was encoded")
	}
}

func TestRemovedEnvelopeMayBeAddedAgain(t *testing.T) {
	var s envelope.Threads
	e, err := envelope.New("venus", "mars", envelope.Request, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Remove(e) {
		t.Fatal("removed from an empty store")
	}
	e.CorrelationID = "t"
	other := e.With(func(x *envelope.Envelope) { x.ID = "other" })
	s.Add(e)
	if s.Remove(other) || len(s.Thread("t")) != 1 {
		t.Fatal("another envelope was removed")
	}
	if !s.Remove(e) || s.Len() != 0 {
		t.Fatal("the removed envelope is still in the thread")
	}
	if !s.Add(e) {
		t.Fatal("the removed envelope cannot be added again")
	}
}

func TestThreadsAreBounded(t *testing.T) {
	s := envelope.Threads{MaxThreads: 2, MaxPerThread: 3}
	add := func(thread, id string, at int64) bool {
		return s.Add(&envelope.Envelope{ID: id, CorrelationID: thread, Timestamp: at})
	}
	ids := func(thread string) (ids []string) {
		for _, e := range s.Thread(thread) {
			ids = append(ids, e.ID)
		}
		return ids
	}
	for i := range 5 {
		add("a", strconv.Itoa(i), int64(i))
	}
	if got := ids("a"); !slices.Equal(got, []string{"2", "3", "4"}) {
		t.Errorf("a full thread has %v", got)
	}
	if add("a", "4", 4) || add("", "", 1) || s.Add(nil) || s.Remove(nil) {
		t.Error("a duplicate, or an envelope without an id, was added")
	}
	add("b", "1", 1)
	add("a", "5", 5)
	add("c", "1", 1) // evicts b, the thread without additions for the longest time
	if s.Len() != 2 || s.Thread("b") != nil || s.Thread("a") == nil {
		t.Errorf("%d threads are stored; b is %v", s.Len(), ids("b"))
	}
	s.Forget("a")
	s.Forget("nothing")
	if s.Len() != 1 || s.Thread("a") != nil {
		t.Error("thread a was not removed")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(wire))
	f.Add([]byte(strings.Replace(wire, `"payload"`, `"metadata":{"tier":1,"sandboxId":"b","routingHint":"capability","traceparent":"00-","tracestate":"a"},"payload"`, 1)))
	f.Add([]byte(`{"schemaVersion":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := envelope.Decode(data)
		if err != nil {
			if envelope.CodeOf(err) == "" {
				t.Fatalf("an error without a code: %v", err)
			}
			return
		}
		again, err := envelope.Encode(e)
		if err != nil {
			t.Fatalf("a decoded envelope cannot be encoded: %v", err)
		}
		back, err := envelope.Decode(again)
		if err != nil || !back.Equal(e) {
			t.Fatalf("%v\n%s\n%s", err, data, again)
		}
		var loose map[string]any
		if err := json.Unmarshal(data, &loose); err != nil || loose["id"] != e.ID {
			t.Fatalf("encoding/json decodes it differently: %v, %v", loose, err)
		}
	})
}

func BenchmarkNew(b *testing.B) {
	f := envelope.NewFactory(agent.Identity{ID: "sun", Tier: agent.L0})
	payload := json.RawMessage(`{"text":"hello"}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.New("mars", envelope.Request, payload); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCodec(b *testing.B) {
	for _, n := range []int{64, 1024, 64 << 10} {
		e := mustNew(b, strings.Repeat("x", n))
		data, err := envelope.Encode(e)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("encode/%d", n), func(b *testing.B) {
			var c envelope.Codec
			buf := make([]byte, 0, 2*len(data))
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Append(buf, e); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("decode/%d", n), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := envelope.Decode(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestThreadsAreBoundedInBytes(t *testing.T) {
	s := envelope.Threads{MaxBytes: 100 << 10}
	add := func(thread, id string, size int) *envelope.Envelope {
		e := &envelope.Envelope{ID: id, CorrelationID: thread, Payload: bytes.Repeat([]byte("1"), size)}
		if !s.Add(e) {
			t.Fatalf("%s was not added", id)
		}
		return e
	}
	count := func(want map[string]int) {
		t.Helper()
		for thread, n := range want {
			if got := len(s.Thread(thread)); got != n {
				t.Errorf("thread %s has %d envelopes, want %d", thread, got, n)
			}
		}
	}
	for _, thread := range []string{"a", "b", "c"} {
		add(thread, "1", 30<<10)
	}
	count(map[string]int{"a": 1, "b": 1, "c": 1})
	add("b", "2", 30<<10) // evicts a, the thread without additions for the longest time
	count(map[string]int{"a": 0, "b": 2, "c": 1})
	s.Remove(add("d", "1", 2<<10))
	s.Forget("c")
	add("b", "3", 30<<10) // there is room again
	count(map[string]int{"b": 3})
	add("b", "4", 30<<10) // the only thread loses its earliest envelope
	if got := s.Thread("b"); len(got) != 3 || got[0].ID != "2" {
		t.Errorf("thread b has %d envelopes, %s first", len(got), got[0].ID)
	}
	add("e", "1", 200<<10)
	count(map[string]int{"b": 0, "e": 1})
	add("f", "1", 1)
	count(map[string]int{"e": 0, "f": 1})
}

// Req 13.5: what is written can be read, and is the same: text that is not UTF-8 is refused.
func TestPayloadsKeepTheirText(t *testing.T) {
	for _, payload := range []any{"\xff", map[string]string{"a": "\xfe"}, json.RawMessage("\"\xff\"")} {
		if e, err := envelope.New("a", "b", envelope.Notification, payload); envelope.CodeOf(err) != envelope.CodeInvalidEnvelope {
			t.Errorf("%q became %+v, %v", payload, e, err)
		}
	}
	var codec envelope.Codec
	e, err := envelope.New("a", "b", envelope.Notification, []string{"\ufffd", ""})
	if err != nil {
		t.Fatal(err)
	}
	data, err := codec.Append(nil, e)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := codec.Decode(data); err != nil || !back.Equal(e) {
		t.Errorf("%+v, %v", back, err)
	}
}
