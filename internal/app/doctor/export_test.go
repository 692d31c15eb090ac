package doctor

import "github.com/parleyhub/parley/internal/api/dialect"

// Link looks at a hub's link to a cluster.
func (p Patient) Link(hub *dialect.Status) []Finding { return p.link(hub) }
