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
	Agent string `json:"agent,omitempty"` // the agent that plays it; "" for none
	Own   bool   `json:"own,omitempty"`   // an agent with this id is configured under agents
}

func (a *app) rosterCommand() *cobra.Command {
	cmd := command("roster", "List the 21 planetary agents, their tiers, and who plays them",
		func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load(cmd.Context())
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
			listing[rosterEntry]{columns: headings("AGENT", "TIER", "PLAYED BY"), paint: a.paintFirst, row: func(e rosterEntry) []string {
				by := e.Agent
				if e.Own {
					by = "itself"
				}
				return []string{e.ID, fmt.Sprintf("L%d", e.Tier), by}
			}}.print(a, a.stdout, list)
			return nil
		})
	cmd.Long = "Lists the 21 planetary agents of the specification with their tiers. The key roster of the\n" +
		"configuration assigns agents to them:\n\n" +
		"  roster:\n    mars: {agent: codex, prompt: \"You review code. Be strict.\"}"
	return cmd
}
