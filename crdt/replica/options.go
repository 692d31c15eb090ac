package replica

import (
	"log/slog"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/telemetry"
)

// Access is what an agent may do with the document.
type Access uint8

// The rights.
const (
	Read  Access = 1 << iota // be told of changes
	Write                    // make some
	Relay                    // pass on those of others
	Keep                     // begin new epochs, which this replica follows
)

// Options set up a Replica. Agent and State are needed.
type Options struct {
	Agent string // whom this replica writes for
	State string // the document's name
	Epoch uint64 // of the document; replicas of different epochs never merge
	Saved *Saved // to begin with; nil for an empty document

	// Access says what an agent may do; nil allows everything to everybody who is
	// linked. It is asked at each message, in the goroutine that owns the document.
	Access func(agent string) Access
	// Limits of updates; nil for crdt.LiveLimits. Updates are at most 640 KiB here.
	Limits *crdt.Limits
	// Keeper has this replica begin a new epoch when the document is worn (see [crdt.Churn]) or copies
	// of it have diverged. One agent should keep a document, and only it have the right Keep.
	Keeper bool
	// Renew is called, in the goroutine that owns the document, when a keeper should begin a new epoch. It must
	// not block. Nil for [Replica.Compact].
	Renew func(why string)
	// Counters are the root counters of which a new epoch keeps the sum in one entry.
	Counters []string
	// Former is what [Replica.Succeed] returned for the epoch before; nil for none.
	Former *Former

	// NoForward keeps updates of others to oneself: in a full mesh all have them
	// anyhow.
	NoForward bool
	// Interval between digests, give or take a fifth; 30 s.
	Interval time.Duration

	// Journal is told of each change of the document, whoever made it, before
	// others are: all of them make the document again. It is called in the goroutine that
	// owns the document and must not block. Nil for none.
	Journal func(update []byte)

	// Log is given what others who share a log with this replica are to have, in causal order: the updates that
	// were made here or came by a channel, and states that came by one (KindStep2), which may be larger than what a
	// message may have. It is called in the goroutine that owns the document and must not block. See
	// [Replica.Receive]. Such a replica follows to other epochs by [Replica.Advance] only. Nil for none.
	Log func(*Message)

	Logger    *slog.Logger   // nil for none
	Telemetry telemetry.Sink // gets error and security events; nil for none
}

// Saved is a replica's state, to begin with in another process.
type Saved struct {
	Epoch  uint64
	Update []byte            // the whole document
	Clock  map[string]uint64 // the vector clock of the same moment
}

// Update is a change, for the application.
type Update struct {
	Message *Message // as it travelled; it must not be changed
	Local   bool     // made here
	// Began says that another document has taken the place of the one so far, because of a new epoch or a
	// repair: handles, observers and undo managers of that are of no more use. The message has no
	// update; what the document has comes with later ones.
	Began bool
	// Left is, if a replica had to follow to an epoch of which the keeper does not know the one
	// before, the state that was left: edits that had not been sent are only in it.
	Left []byte
	// Missed says how many were left out before this one because the handler was slow.
	Missed int
}

// Status tells how a replica fares.
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
	Held     int    `json:"held"`    // updates that wait for earlier ones
	Parked   int    `json:"parked"`  // structs that wait for others
	Sent     uint64 `json:"sent"`    // updates made here
	Received uint64 `json:"received"`
	Repeated uint64 `json:"repeated"`
	Skipped  uint64 `json:"skipped"` // that could not be read
	Refused  uint64 `json:"refused"` // that must not be applied
	Syncs    uint64 `json:"syncs"`   // states that were applied
	Carried  uint64 `json:"carried"` // late states of the former epoch that were in which something was new
	Lost     uint64 `json:"lost"`    // times that edits of a former epoch were not taken over
	Repairs  uint64 `json:"repairs"` // how often the document was read in anew
	Steps    uint64 `json:"steps"`   // items passed to find the places of others
	// Diverged says that a peer has the same updates and yet another document, which only a broken
	// or hostile writer brings about. Where only the order differs it is repaired; otherwise the keeper's new
	// epoch ends it.
	Diverged bool `json:"diverged"`
}
