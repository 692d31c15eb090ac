package replica

import (
	"log/slog"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/telemetry"
)

// Access is an agent's rights on the document.
type Access uint8

// The rights.
const (
	Read  Access = 1 << iota // receive changes
	Write                    // make changes
	Relay                    // forward changes of others
	Keep                     // begin new epochs, which this replica follows
)

// Options configure a Replica. Agent and State are required.
type Options struct {
	Agent string // the agent that this replica writes for
	State string // the document's name
	Epoch uint64 // the document's epoch; replicas of different epochs never merge
	Saved *Saved // the initial state; nil for an empty document

	// Access returns an agent's rights; nil grants all rights to every linked agent. It is called for each
	// message, while no other function of the replica runs.
	Access func(agent string) Access
	// Limits of updates; nil means crdt.LiveLimits. Updates have at most 640 KiB.
	Limits *crdt.Limits
	// Keeper makes this replica begin a new epoch when the document is worn (see [crdt.Churn]) or copies of
	// it have diverged. A document should have one keeper, the only agent with the right Keep.
	Keeper bool
	// Renew is called, while no other function of the replica runs, when a keeper should begin a new epoch. It must
	// not block. Nil means [Replica.Compact].
	Renew func(why string)
	// Counters names the root counters that a new epoch reduces to one entry with the sum.
	Counters []string
	// Former is the result of [Replica.Succeed] for the former epoch; nil for none.
	Former *Former

	// NoForward disables the forwarding of other agents' updates, when every replica is linked with every other.
	NoForward bool
	// Interval is the time between digests, ±20 %; 0 means 30 s.
	Interval time.Duration

	// Journal receives each change of the document before any handler; all of them together rebuild the
	// document. It is called while no other function of the replica runs, and must not block. Nil for none.
	Journal func(update []byte)

	// Log receives the messages for a shared log, in causal order: updates made here or received over a
	// channel, and states received over one (KindStep2), which may be larger than a message. It is called
	// while no other function of the replica runs, and must not block. See [Replica.Receive]. A replica with a log
	// changes the epoch only by [Replica.Advance] and [Replica.Leave]. Nil for none.
	Log func(*Message)

	Logger    *slog.Logger   // nil for none
	Telemetry telemetry.Sink // receives error and security events; nil for none
}

// Saved is a replica's state, for another process.
type Saved struct {
	Epoch  uint64
	Update []byte            // the whole document
	Clock  map[string]uint64 // the vector clock of that state
}

// Update is a change of the document.
type Update struct {
	Message *Message // must not be changed
	Local   bool     // made here
	// Began reports that the document was replaced, by a new epoch or a repair: handles, observers and undo
	// managers of the former one are unusable. The message has no update; later ones have the content.
	Began bool
	// Left is the former document's state if the keeper of the new epoch did not know the former one:
	// unsent edits exist only there.
	Left []byte
	// Missed is the number of changes that were skipped before this one because the handler was slow. The last change of a
	// burst is never skipped.
	Missed int
	More   bool // another change follows at once, so that a handler may combine them
}

// Status is a replica's state and counters.
type Status struct {
	Agent    string `json:"agent"`
	State    string `json:"state"`
	Epoch    uint64 `json:"epoch"`
	Session  string `json:"session"`
	Client   uint64 `json:"client"`
	Links    int    `json:"links"`
	Items    int    `json:"items"`
	Bytes    int    `json:"bytes"`
	Clients  int    `json:"clients"` // client ids in the document
	Held     int    `json:"held"`    // updates buffered until earlier ones arrive
	Parked   int    `json:"parked"`  // structs that wait for others
	Sent     uint64 `json:"sent"`    // updates made here
	Received uint64 `json:"received"`
	Repeated uint64 `json:"repeated"`
	Skipped  uint64 `json:"skipped"` // messages that could not be decoded
	Refused  uint64 `json:"refused"` // updates refused here
	Syncs    uint64 `json:"syncs"`   // states applied
	Carried  uint64 `json:"carried"` // late states of the former epoch with new edits
	Lost     uint64 `json:"lost"`    // times that edits of a former epoch were not carried over
	Repairs  uint64 `json:"repairs"` // times that the document was reloaded
	Steps    uint64 `json:"steps"`   // scan steps; see crdt.Doc.ScanSteps
	// Diverged reports that a peer has the same updates but a different document, which only a faulty or
	// hostile writer causes. A difference of order is repaired; any other ends with the keeper's new epoch.
	Diverged bool `json:"diverged"`
}
