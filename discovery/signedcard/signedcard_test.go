package signedcard_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	alice = identity.FromSeed([32]byte{1})
	bob   = identity.FromSeed([32]byte{2})
	began = time.UnixMilli(1_800_000_000_123)
)

func card(name string, of *identity.Pair) agent.Card {
	return agent.Card{
		ID: signedcard.ID(name, of.Public()), Name: name, Version: "1.0 <&> \u2028 €", Tier: agent.L3, Revision: 7,
		Endpoints:    []agent.Endpoint{{Transport: agent.TransportNATS, Address: "parley.hub." + of.Public().String()}},
		Capabilities: []agent.Capability{{ID: "work", Name: "Work", InputSchema: json.RawMessage(`{"maximum": 1.5, "b": [1000, 0, "€\u2028"]}`)}},
	}
}

func statement(sequence uint64, c agent.Card) signedcard.Statement {
	return signedcard.Statement{Sequence: sequence, IssuedAt: began, ExpiresAt: began.Add(time.Minute), Card: c}
}

func sign(t testing.TB, pair *identity.Pair, s signedcard.Statement) []byte {
	t.Helper()
	data, err := signedcard.Sign(pair, s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func anybody(identity.PublicKey) bool { return true }

func wants(t testing.TB, err error, code signedcard.Code) {
	t.Helper()
	if signedcard.CodeOf(err) != code {
		t.Errorf("got %v, want %s", err, code)
	}
}

// Req 1.7, 1.8: a card is read as it was signed, as a remote one.
func TestStatementsRoundTrip(t *testing.T) {
	s, err := signedcard.Open(sign(t, alice, statement(3, card("echo", alice))), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := card("echo", alice)
	want.Origin = agent.Remote
	if !s.Card.Equal(want) || s.Key != alice.Public() || s.Sequence != 3 || !s.IssuedAt.Equal(began) || !s.ExpiresAt.Equal(began.Add(time.Minute)) {
		t.Errorf("got %+v", s)
	}
	gone := statement(4, agent.Card{})
	gone.Withdrawn = card("echo", alice).ID
	if s, err = signedcard.Open(sign(t, alice, gone), nil); err != nil || s.AgentID() != gone.Withdrawn || s.Card.ID != "" {
		t.Errorf("%+v, %v", s, err)
	}
}

// The signature covers the canonical form of RFC 8785, so spaces, field order and escapes do not matter, and any
// implementation of RFC 8785 and Ed25519 can verify it.
func TestSignatureCoversTheCanonicalForm(t *testing.T) {
	data := sign(t, alice, statement(3, card("echo", alice)))
	var loose map[string]any
	if err := json.Unmarshal(data, &loose); err != nil {
		t.Fatal(err)
	}
	pretty, err := json.MarshalIndent(loose, " ", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := signedcard.Open(pretty, nil); err != nil || s.Sequence != 3 {
		t.Errorf("%v", err)
	}
	const vector = `{"card":{"capabilities":[],"description":"","endpoints":[],"id":"e@`
	small := card("e", alice)
	small.Version, small.Endpoints, small.Capabilities = "1", nil, []agent.Capability{}
	if data := sign(t, alice, statement(1, small)); !bytes.Contains(data, []byte(vector)) {
		t.Errorf("not canonical: %s", data)
	}
}

// A statement with any change is refused.
//
// WIRE-CARD-FORGED.
func TestForgedStatements(t *testing.T) {
	good := sign(t, alice, statement(3, card("echo", alice)))
	text := string(good)
	sig := strings.Split(text, `"`)[3]
	for name, c := range map[string]struct {
		data string
		code signedcard.Code
	}{
		"another sequence":    {strings.Replace(text, `"sequence":3`, `"sequence":4`, 1), signedcard.CodeForged},
		"another tier":        {strings.Replace(text, `"tier":3`, `"tier":0`, 1), signedcard.CodeForged},
		"a longer life":       {strings.Replace(text, `"expiresAt":1800000060123`, `"expiresAt":1800000090123`, 1), signedcard.CodeForged},
		"another key":         {strings.Replace(text, `"key":"`+alice.Public().String(), `"key":"`+bob.Public().String(), 1), signedcard.CodeForged},
		"another's signature": {strings.Replace(text, sig, base64.StdEncoding.EncodeToString(make([]byte, 64)), 1), signedcard.CodeForged},
		"half a signature":    {strings.Replace(text, sig, sig[:40], 1), signedcard.CodeForged},
		"a field more":        {strings.Replace(text, `"version":1`, `"version":1,"x":1`, 1), signedcard.CodeForged},
		"a field twice":       {strings.Replace(text, `"sequence":3`, `"sequence":3,"sequence":9`, 1), signedcard.CodeInvalid},
		"no key":              {strings.Replace(text, `"key":"`+alice.Public().String(), `"key":"`+strings.Repeat("0", 64), 1), signedcard.CodeInvalid},
		"another version":     {strings.Replace(text, `"version":1`, `"version":2`, 1), signedcard.CodeInvalid},
		"half":                {text[:len(text)/2], signedcard.CodeInvalid},
		"nothing":             {"", signedcard.CodeInvalid},
		"no statement":        {`{"signature":"` + sig + `"}`, signedcard.CodeInvalid},
		"too large":           {text + strings.Repeat(" ", signedcard.MaxSize), signedcard.CodeInvalid},
		"bad text":            {strings.Replace(text, `"name":"echo"`, "\"name\":\"\xff\"", 1), signedcard.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if c.data == text {
				t.Fatal("nothing was changed")
			}
			_, err := signedcard.Open([]byte(c.data), nil)
			wants(t, err, c.code)
		})
	}
}

// A number beyond the exact range of JSON numbers must not be decoded as a different number.
func TestNumbersMatchTheSignedOnes(t *testing.T) {
	text := string(sign(t, alice, statement(1<<53-1, card("echo", alice))))
	for _, n := range []string{"9007199254740991.0", "9007199254740990.6", "9.007199254740991e15"} {
		s, err := signedcard.Open([]byte(strings.Replace(text, "9007199254740991", n, 1)), nil)
		if err == nil && s.Sequence != 1<<53-1 {
			t.Errorf("%s was decoded as %d", n, s.Sequence)
		}
	}
	for _, n := range []uint64{0, 1 << 53, 1 << 63} {
		_, err := signedcard.Sign(alice, statement(n, card("echo", alice)))
		wants(t, err, signedcard.CodeInvalid)
	}
}

// A paired hub cannot make statements about the agents of another hub.
//
// WIRE-CARD-FORGED.
func TestHubCannotClaimAgentsOfAnother(t *testing.T) {
	_, err := signedcard.Sign(bob, statement(1, card("echo", alice)))
	wants(t, err, signedcard.CodeForged)
	// The same bytes signed with another key, bypassing the checks of Sign.
	text := string(sign(t, alice, statement(1, card("echo", alice))))
	_, raw, _ := strings.Cut(text, `"statement":`)
	raw = strings.Replace(strings.TrimSuffix(raw, "}"), `"key":"`+alice.Public().String(), `"key":"`+bob.Public().String(), 1)
	sig := bob.Sign([]byte(signedcard.Context + raw))
	_, err = signedcard.Open(fmt.Appendf(nil, `{"signature":%q,"statement":%s}`, base64.StdEncoding.EncodeToString(sig[:]), raw), nil)
	wants(t, err, signedcard.CodeForged)
	for _, id := range []string{"echo", "@" + bob.Public().String(), "echo@" + bob.Public().String()[1:], "echo@" + strings.ToUpper(bob.Public().String())} {
		c := card("echo", bob)
		c.ID = id
		_, err := signedcard.Sign(bob, statement(1, c))
		wants(t, err, signedcard.CodeForged)
	}
}

func TestSignRefusesInvalidStatements(t *testing.T) {
	for name, change := range map[string]func(*signedcard.Statement){
		"nothing":            func(s *signedcard.Statement) { s.Card = agent.Card{} },
		"both":               func(s *signedcard.Statement) { s.Withdrawn = s.Card.ID },
		"no life":            func(s *signedcard.Statement) { s.ExpiresAt = s.IssuedAt },
		"a long life":        func(s *signedcard.Statement) { s.ExpiresAt = s.IssuedAt.Add(time.Hour) },
		"a number over 2^53": func(s *signedcard.Statement) { s.Card.Revision = 1 << 60 },
		"an empty card":      func(s *signedcard.Statement) { s.Card.Name = "" },
		"a huge card":        func(s *signedcard.Statement) { s.Card.Description = strings.Repeat("x", agent.MaxCardSize) },
	} {
		s := statement(1, card("echo", alice))
		change(&s)
		if _, err := signedcard.Sign(alice, s); err == nil {
			t.Errorf("%s was signed", name)
		}
	}
}

// newBook returns a book with a clock that the test sets.
func newBook(trusted func(identity.PublicKey) bool) (*signedcard.Book, *time.Time) {
	now := began
	return &signedcard.Book{Trusted: trusted, Now: func() time.Time { return now }}, &now
}

// WIRE-CARD-REPLAYED, WIRE-CARD-EXPIRED.
func TestReplayedAndExpiredStatements(t *testing.T) {
	b, now := newBook(anybody)
	old, later := sign(t, alice, statement(3, card("echo", alice))), sign(t, alice, statement(4, card("echo", alice)))
	for _, step := range []struct {
		data []byte
		code signedcard.Code
	}{{old, ""}, {old, signedcard.CodeOld}, {later, ""}, {old, signedcard.CodeOld}, {later, signedcard.CodeOld}} {
		_, err := b.Read(step.data)
		wants(t, err, step.code)
	}
	gone := statement(5, agent.Card{})
	gone.Withdrawn = card("echo", alice).ID
	if _, err := b.Read(sign(t, alice, gone)); err != nil {
		t.Error(err)
	}
	_, err := b.Read(later) // does not restore the agent
	wants(t, err, signedcard.CodeOld)

	fresh, nowFresh := newBook(anybody)
	*nowFresh = began.Add(time.Minute + signedcard.MaxSkew)
	_, err = fresh.Read(later)
	wants(t, err, signedcard.CodeExpired)
	*nowFresh = began.Add(-signedcard.MaxSkew - time.Second)
	_, err = fresh.Read(later)
	wants(t, err, signedcard.CodeExpired)
	*now = began.Add(24 * time.Hour) // the forgotten statements have expired
	_, err = b.Read(later)
	wants(t, err, signedcard.CodeExpired)
}

// After a restart, a book may accept a replayed statement. It is valid no longer than before, and only until the hub
// sends a newer one. The sequence numbers of a restarted hub continue.
//
// WIRE-CARD-REPLAYED.
func TestRestarts(t *testing.T) {
	read := func(b *signedcard.Book, data []byte, want signedcard.Code) {
		t.Helper()
		_, err := b.Read(data)
		wants(t, err, want)
	}
	old := sign(t, alice, statement(3, card("echo", alice)))
	gone := statement(4, agent.Card{})
	gone.Withdrawn = card("echo", alice).ID
	before, _ := newBook(anybody)
	read(before, old, "")
	read(before, sign(t, alice, gone), "")
	after, _ := newBook(anybody)
	read(after, old, "")
	read(after, sign(t, alice, gone), "")
	read(after, old, signedcard.CodeOld)
	forgot, now := newBook(anybody)
	*now = began.Add(time.Minute + signedcard.MaxSkew)
	read(forgot, old, signedcard.CodeExpired)

	hears := &signedcard.Book{Trusted: anybody}
	for range 5 { // a new author each time, possibly within one millisecond
		data, err := signedcard.NewAuthor(alice, time.Minute).State(card("echo", alice))
		if err != nil {
			t.Fatal(err)
		}
		s, err := signedcard.Open(data, anybody)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hears.Read(data); err != nil && signedcard.CodeOf(err) != signedcard.CodeOld {
			t.Error(err)
		}
		if ms := uint64(s.IssuedAt.UnixMilli()); s.Sequence < ms || s.Sequence > ms+1 {
			t.Errorf("the sequence %d does not match the time %d", s.Sequence, ms)
		}
	}
}

// WIRE-STRANGER.
func TestOnlyTrustedKeysAreAccepted(t *testing.T) {
	b, _ := newBook(func(k identity.PublicKey) bool { return k == bob.Public() })
	_, err := b.Read(sign(t, alice, statement(1, card("echo", alice))))
	wants(t, err, signedcard.CodeUntrusted)
	if _, err := b.Read(sign(t, bob, statement(1, card("echo", bob)))); err != nil {
		t.Error(err)
	}
	_, err = new(signedcard.Book).Read(sign(t, bob, statement(1, card("echo", bob))))
	wants(t, err, signedcard.CodeUntrusted)
}

// A flood of one hub's agents is bounded and does not affect other hubs.
//
// WIRE-CARD-FLOOD.
func TestFloodOfAgents(t *testing.T) {
	b, _ := newBook(anybody)
	b.MaxAgents = 3
	for i := range 10 {
		_, err := b.Read(sign(t, alice, statement(1, card(fmt.Sprint("echo", i), alice))))
		if i < 3 {
			wants(t, err, "")
		} else {
			wants(t, err, signedcard.CodeTooMany)
		}
	}
	if _, err := b.Read(sign(t, bob, statement(1, card("echo", bob)))); err != nil {
		t.Error(err)
	}
}

// Each statement of an author is later than the one before.
func TestAuthor(t *testing.T) {
	a := signedcard.NewAuthor(alice, time.Hour)
	b := &signedcard.Book{Trusted: anybody}
	id := card("echo", alice).ID
	for range 50 {
		data, err := a.State(card("echo", alice))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Read(data); err != nil {
			t.Fatal(err)
		}
	}
	data, err := a.Withdraw(id)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := b.Read(data); err != nil || s.Withdrawn != id || a.Key() != alice.Public() {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9][a-z0-9._@-]{0,30}`).Draw(t, "name")
		got, key, ok := signedcard.ParseID(signedcard.ID(name, bob.Public()))
		if !ok || got != name || key != bob.Public() {
			t.Errorf("%q, %v, %v", got, key, ok)
		}
	})
}

func FuzzOpen(f *testing.F) {
	f.Add(sign(f, alice, statement(3, card("echo", alice))))
	f.Add([]byte(`{"signature":"","statement":{"version":1,"key":"` + alice.Public().String() + `"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := signedcard.Open(data, nil)
		if err != nil {
			return
		}
		again, err := signedcard.Sign(alice, s)
		if err != nil {
			t.Fatalf("a statement that was read cannot be signed: %v", err)
		}
		if t2, err := signedcard.Open(again, nil); err != nil || !t2.Card.Equal(s.Card) {
			t.Errorf("%+v became %+v, %v", s, t2, err)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	data := sign(b, alice, statement(3, card("echo", alice)))
	for b.Loop() {
		if _, err := signedcard.Open(data, anybody); err != nil {
			b.Fatal(err)
		}
	}
}

// A hub signs its agent's card; another one, which trusts the hub's key, reads it
// once and refuses a replay.
func Example() {
	pair := identity.Generate()
	author := signedcard.NewAuthor(pair, time.Minute)
	statement, err := author.State(agent.Card{
		ID: signedcard.ID("summarizer", pair.Public()), Name: "Summarizer", Version: "1", Tier: agent.L3,
		Capabilities: []agent.Capability{{ID: "summarize", Name: "Summarize"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	book := &signedcard.Book{Trusted: func(key identity.PublicKey) bool { return key == pair.Public() }}
	read, err := book.Read(statement) // as it arrives over any network
	fmt.Println(read.Card.Name, read.Card.Origin, err)
	_, err = book.Read(statement)
	fmt.Println(signedcard.CodeOf(err))
	// Output:
	// Summarizer remote <nil>
	// STATEMENT_OLD
}
