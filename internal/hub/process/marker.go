package process

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"os"
	"slices"
	"strings"
)

// MarkerEnv is the variable that marks a process and its descendants. Its value is a
// list, separated by colons: a hub that was started by an agent of another hub adds its
// own marker. A process that must outlive an agent's turn (the hub in the background)
// must be started without it.
const MarkerEnv = "PARLEY_MARK"

// Marker marks one process and its descendants: the owner's name, a dot, and 32 random
// hex digits.
type Marker string

// NewMarker returns a new marker of owner, which may be empty and holds neither a colon
// nor a dot.
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

// in reports whether a value of MarkerEnv contains the marker.
func (m Marker) in(value string) bool {
	return slices.Contains(strings.Split(value, ":"), string(m))
}

// SweepOwner kills every process with a marker of owner and returns their number: the
// processes of an earlier run that was killed. Call it only while owner runs no
// process. On platforms without markers it does nothing.
func SweepOwner(owner string) (int, error) {
	if owner == "" {
		return 0, nil
	}
	return sweepOwner(owner)
}

// ownedBy reports whether a value of MarkerEnv contains a marker of owner.
func ownedBy(value, owner string) bool {
	return strings.HasPrefix(value, owner+".") || strings.Contains(value, ":"+owner+".")
}

var markerPrefix = []byte(MarkerEnv + "=")

// markerIn finds the last value of MarkerEnv in NUL-separated variables.
func markerIn(env []byte) string {
	value := ""
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, markerPrefix); ok {
			value = string(v)
		}
	}
	return value
}
