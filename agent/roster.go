package agent

import "slices"

// planetary holds the 21 planetary agents in the order of the specification.
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

// PlanetaryTier returns the tier that the specification assigns to a planetary
// agent, and NoTier for any other id.
func PlanetaryTier(id string) Tier {
	i := slices.IndexFunc(planetary, func(p struct {
		id   string
		tier Tier
	}) bool {
		return p.id == id
	})
	if i < 0 {
		return NoTier
	}
	return planetary[i].tier
}
