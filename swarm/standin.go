package swarm

import (
	"strings"

	"github.com/parleyhub/parley/agent"
)

// contact returns the agent that is invited and given work for a participant: its stand-in if it has one.
func (c *Coordinator) contact(id string) string {
	if c.o.StandIns == "" {
		return id
	}
	if known, ok := c.r.Registry().Identity(c.o.StandIns + id); ok && known.Origin == agent.Local {
		return known.ID
	}
	return id
}

// participant returns the agent for which another one speaks: itself, or the one whose stand-in it is. It is "" for an agent
// that has a stand-in, which alone speaks for it.
func (c *Coordinator) participant(id string) string {
	name, isStandIn := strings.CutPrefix(id, c.o.StandIns)
	if c.o.StandIns != "" && isStandIn && c.contact(name) == id {
		return name
	}
	if c.contact(id) != id {
		return ""
	}
	return id
}
