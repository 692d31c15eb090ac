package process

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"strings"
)

// MarkerEnv is the variable that marks a process and its descendants. Its value
// is a list, parted by colons: a hub that was started by an agent of another
// hub adds its own marker to the outer one. Whoever starts a process that is to
// outlive an agent's turn (the hub in the background) must take it out.
const MarkerEnv = "PARLEY_MARK"

// Marker is the mark of one process and its descendants: the owner's name, a
// dot, and 32 random hex digits.
type Marker string

// NewMarker makes a marker that belongs to owner, which may be empty and holds
// neither a colon nor a dot.
func NewMarker(owner string) Marker {
	var b [16]byte
	rand.Read(b[:]) // never fails: see crypto/rand
	return Marker(owner + "." + hex.EncodeToString(b[:]))
}

func (m Marker) addTo(env []string) []string {
	value := string(m)
	if outer := os.Getenv(MarkerEnv); outer != "" {
		value = outer + ":" + value
	}
	return append(env[:len(env):len(env)], MarkerEnv+"="+value)
}

// in reports whether a value of MarkerEnv names the marker.
func (m Marker) in(value string) bool {
	for id := range strings.SplitSeq(value, ":") {
		if id == string(m) {
			return true
		}
	}
	return false
}

// SweepOwner kills every process that carries a marker of owner, and reports how
// many there were: what an earlier run left behind when it was killed itself. Call
// it only while nothing of owner runs. Where the platform cannot find markers it
// does nothing.
func SweepOwner(owner string) (int, error) {
	if owner == "" {
		return 0, nil
	}
	return sweepOwner(owner)
}

// ownedBy reports whether a value of MarkerEnv names a marker of owner.
func ownedBy(value, owner string) bool {
	for id := range strings.SplitSeq(value, ":") {
		if strings.HasPrefix(id, owner+".") {
			return true
		}
	}
	return false
}
