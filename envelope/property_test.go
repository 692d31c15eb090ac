package envelope_test

import (
	"cmp"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/envelope/envelopetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Feature: a2a-mcp-protocols, Property 6: A2A Envelope structure and uniqueness.
// Req 2.1, Req 2.2, Req 13.6
func TestProperty06StructureAndUniqueness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seen := make(map[string]bool)
		sender := envelopetest.Card().Draw(t, "sender")
		factory := envelope.NewFactory(sender.Identity())
		for range rapid.IntRange(1, 50).Draw(t, "n") {
			recipient := envelopetest.ID().Draw(t, "recipient")
			typ := envelopetest.Type().Draw(t, "type")
			payload := envelopetest.JSON().Draw(t, "payload")
			e, err := factory.New(recipient, typ, payload)
			if err != nil {
				t.Fatal(err)
			}
			if seen[e.ID] {
				t.Fatalf("the id %s was used twice", e.ID)
			}
			seen[e.ID] = true
			if e.ID == "" || e.Timestamp <= 0 || e.SchemaVersion != envelope.SchemaVersion || e.Sender != sender.ID ||
				e.Recipient != recipient || e.Type != typ || string(e.Payload) != string(payload) {
				t.Fatalf("got %+v", e)
			}
			if e.Metadata.Tier != sender.Tier || e.Metadata.SandboxID != sender.SandboxID {
				t.Fatalf("metadata %+v of sender %+v", e.Metadata, sender.Identity())
			}
		}
	})
}

// Feature: a2a-mcp-protocols, Property 7: A2A Envelope serialization round trip.
// Req 2.3, Req 13.1, Req 13.2, Req 13.3, Req 13.6
func TestProperty07RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := envelopetest.Envelope().Draw(t, "envelope")
		data, err := envelope.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		back, err := envelope.Decode(data)
		if err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if !back.Equal(e) || back.SchemaVersion != envelope.SchemaVersion {
			t.Fatalf("read back %+v\nwrote     %+v\nJSON %s", back, e, data)
		}
	})
}

// Feature: a2a-mcp-protocols, Property 8: Correlation threading.
// Req 2.4
func TestProperty08CorrelationThreading(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var store envelope.Threads
		want := make(map[string][]*envelope.Envelope)
		drawn := rapid.SliceOfNDistinct(envelopetest.Envelope(), 0, 40, func(e *envelope.Envelope) string { return e.ID }).Draw(t, "envelopes")
		for _, e := range drawn {
			e.CorrelationID = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "thread")
			e.Timestamp = rapid.Int64Range(1, 10).Draw(t, "timestamp")
			store.Add(e)
			want[e.Thread()] = append(want[e.Thread()], e)
		}
		opening := func(e *envelope.Envelope) int { return min(1, len(e.CorrelationID)) }
		for id := range want {
			slices.SortStableFunc(want[id], func(x, y *envelope.Envelope) int {
				return cmp.Or(cmp.Compare(x.Timestamp, y.Timestamp), cmp.Compare(opening(x), opening(y)))
			})
			if got := store.Thread(id); !slices.Equal(got, want[id]) {
				t.Fatalf("thread %s is %v, want %v", id, got, want[id])
			}
		}
	})
}

// Feature: a2a-mcp-protocols, Property 9: Message type validation.
// Req 2.5
func TestProperty09TypeValidation(t *testing.T) {
	specified := []string{"request", "response", "notification", "task-proposal", "task-accept", "task-reject",
		"stream-start", "stream-data", "stream-end", "error"}
	rapid.Check(t, func(t *rapid.T) {
		e := envelopetest.Envelope().Draw(t, "envelope")
		typ := rapid.OneOf(
			rapid.SampledFrom(specified),
			rapid.String(),
			rapid.SampledFrom([]string{"Request", "request ", "task-proposa", "stream", "errors", "tasK-accept"}),
		).Draw(t, "type")
		e.Type = envelope.Type(typ)
		want := slices.Contains(specified, typ)
		if got := e.Validate() == nil; got != want {
			t.Fatalf("type %q: valid is %v, want %v (%v)", typ, got, want, e.Validate())
		}
		if _, err := envelope.New("a", agent.Broadcast, envelope.Type(typ), nil); (err == nil) != want {
			t.Fatalf("New with type %q: %v", typ, err)
		}
	})
}
