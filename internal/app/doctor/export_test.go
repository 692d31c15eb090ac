package doctor

import "github.com/parleyhub/parley/internal/api/dialect"

// Link checks a hub's link to a cluster.
func (p Patient) Link(hub *dialect.Status) []Finding { return p.link(hub) }

// Damage checks the damage of a hub's store.
func (p Patient) Damage(hub *dialect.Status) []Finding { return p.damage(hub) }
