package crdt

import "github.com/parleyhub/parley/crdt/internal/lib0"

// Limits bound updates and documents. The replica that first receives an update enforces them, before
// anything changes (see [Doc.Admit]). The others must apply what it admitted, or the replicas would diverge.
//
// Sizes are in bytes.
type Limits struct {
	Update       int    // one update
	Clients      int    // clients with structs in one update
	Structs      int    // in one update
	StructLength uint64 // units of a struct without content
	String       int    // a string or bytes
	Key          int    // a key of a map or an attribute
	Name         int    // the name of a root type
	AnyDepth     int    // nesting of arrays and objects
	AnyElements  int    // values in one update
	JSONDepth    int    // of an embed or an attribute's value
	DeleteRanges int    // in one update
	Vector       int    // entries of a state vector

	Depth           int    // nesting of shared types
	DocClients      int    // client ids in the document
	DocItems        int    // items in the document, tombstones included
	DocBytes        int    // content in the document
	ParkedStructs   int    // structs that wait for others
	ParkedBytes     int    // content of those
	ParkedRanges    int    // deletes of unknown units
	IntegrationCost uint64 // scan steps to integrate an update's items
}

// LiveLimits are the limits for updates of an editing peer.
func LiveLimits() Limits {
	return Limits{
		Update: 960 << 10, Clients: 256, Structs: 100_000, StructLength: 1 << 31,
		String: 256 << 10, Key: 256, Name: 128,
		AnyDepth: 32, AnyElements: 100_000, JSONDepth: 64,
		DeleteRanges: 100_000, Vector: 100_000,
		Depth: 64, DocClients: 10_000, DocItems: 2_000_000, DocBytes: 64 << 20,
		ParkedStructs: 10_000, ParkedBytes: 8 << 20, ParkedRanges: 10_000,
		IntegrationCost: 10_000_000,
	}
}

// StateLimits are the limits for a whole state: a snapshot, or a trusted replica's state.
func StateLimits() Limits {
	l := LiveLimits()
	l.Update = 256 << 20
	l.Clients = 65_536
	l.Structs = 5_000_000
	l.String = 64 << 20
	l.AnyElements = 5_000_000
	l.DeleteRanges = 5_000_000
	return l
}

func (l *Limits) any() lib0.AnyLimits {
	return lib0.AnyLimits{Depth: l.AnyDepth, Elements: l.AnyElements, String: l.String, Key: l.Key}
}
