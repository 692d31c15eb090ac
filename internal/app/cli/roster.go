package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/agent"
)

// rosterEntry is one element of the command's JSON output.
type rosterEntry struct {
	ID    string `json:"id"`
	Tier  int    `json:"tier"`
	Agent string `json:"agent,omitempty"` // that plays it; "" for nobody
	Own   bool   `json:"own,omitempty"`   // an agent of this id is configured under agents
}

func (a *app) rosterCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "roster",
		Short: "List the 21 planetary agents, their tiers, and who plays them",
		Long: "Lists the 21 planetary agents of the specification with their tiers. The key roster of the\n" +
			"configuration has agents play them:\n\n" +
			"  roster:\n    mars: {agent: codex, prompt: \"You review code. Be strict.\"}",
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.load()
			if err != nil {
				return err
			}
			var list []rosterEntry
			for _, id := range agent.PlanetaryIDs() {
				e := rosterEntry{ID: id, Tier: agent.PlanetaryTier(id).Level(), Agent: cfg.Roster[id].Agent}
				_, e.Own = cfg.Agents[id]
				e.Own = e.Own && e.Agent == ""
				list = append(list, e)
			}
			if a.json() {
				writeJSON(a.stdout, list)
				return nil
			}
			t := table{headings: []string{"AGENT", "TIER", "PLAYED BY"}, paint: a.paintFirst}
			for _, e := range list {
				by := e.Agent
				if e.Own {
					by = "itself"
				}
				t.add(e.ID, fmt.Sprintf("L%d", e.Tier), by)
			}
			t.write(a.stdout, a.style)
			return nil
		},
	}
}
