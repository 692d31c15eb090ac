package signedcard_test

import (
	"fmt"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
)

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
