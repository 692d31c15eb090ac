package agent

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Tier is an agent's level in the hierarchy, L0 (orchestrator) to L3 (specialist); in JSON the number 0 to 3. The
// zero value is [NoTier], so that a card without a tier does not become the orchestrator.
type Tier uint8

// The tiers.
const (
	NoTier Tier = iota // not stated; no valid card has it
	L0                 // orchestrator
	L1                 // strategic
	L2                 // operational
	L3                 // specialist
)

// Tiers lists the valid tiers from L0 to L3.
func Tiers() []Tier { return []Tier{L0, L1, L2, L3} }

// TierOf returns the tier of a level 0 to 3, and NoTier for any other number.
func TierOf(level int) Tier {
	if level < 0 || level > 3 {
		return NoTier
	}
	return Tier(level + 1)
}

// Valid reports whether t is one of L0 to L3.
func (t Tier) Valid() bool { return t >= L0 && t <= L3 }

// Level returns 0 to 3, or -1 for NoTier.
func (t Tier) Level() int {
	if !t.Valid() {
		return -1
	}
	return int(t) - 1
}

// String returns "L0" to "L3", or "no tier".
func (t Tier) String() string {
	if !t.Valid() {
		return "no tier"
	}
	return "L" + strconv.Itoa(t.Level())
}

// MarshalJSON writes the level, or null for NoTier.
func (t Tier) MarshalJSON() ([]byte, error) {
	if !t.Valid() {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, int64(t.Level()), 10), nil
}

// UnmarshalJSON reads a level, 0 to 3, or null.
func (t *Tier) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*t = NoTier
		return nil
	}
	var level int
	if err := json.Unmarshal(data, &level); err != nil {
		return fmt.Errorf("tier %.20s is not a number from 0 to 3", data)
	}
	tier := TierOf(level)
	if !tier.Valid() {
		return fmt.Errorf("tier %d is not one of 0, 1, 2, 3", level)
	}
	*t = tier
	return nil
}

// planetary holds the 21 planetary agents of the specification, in its order.
var planetary = []struct {
	id   string
	tier Tier
}{
	{"sun", L0},
	{"mercury", L1}, {"earth", L1}, {"jupiter", L1},
	{"venus", L2}, {"mars", L2}, {"pluto", L2}, {"saturn", L2}, {"titan", L2},
	{"enceladus", L3}, {"ganymede", L3}, {"neptune", L3}, {"charon", L3}, {"uranus", L3}, {"europa", L3},
	{"mimas", L3}, {"io", L3}, {"triton", L3}, {"callisto", L3}, {"atlas", L3}, {"andromeda", L3},
}

// PlanetaryIDs returns the ids of the 21 planetary agents, "sun" first.
func PlanetaryIDs() []string {
	ids := make([]string, len(planetary))
	for i, p := range planetary {
		ids[i] = p.id
	}
	return ids
}

// PlanetaryTier returns the tier that the specification assigns to a planetary agent, and NoTier for any other id. A
// planetary agent of another hub, such as venus@KEY, is one too; the name alone gives its card no tier.
func PlanetaryTier(id string) Tier {
	name, _ := SplitID(id)
	for _, p := range planetary {
		if p.id == name {
			return p.tier
		}
	}
	return NoTier
}
