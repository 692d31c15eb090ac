package swarm_test

import (
	"testing"

	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/swarm/swarmtest"
)

func TestMemoryJournal(t *testing.T) {
	swarmtest.Journal(t, func(*testing.T) swarm.Journal { return new(swarm.MemoryJournal) })
}
