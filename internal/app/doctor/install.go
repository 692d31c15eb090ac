package doctor

import (
	"fmt"
	"os/exec"
	"strings"

	"github.com/parleyhub/parley/internal/app/install"
)

// installed says what of Parley each program on this computer has, and what keeps it from working.
func (p Patient) installed() (findings []Finding) {
	if p.Install == nil {
		return nil
	}
	for _, program := range install.Programs() {
		if program.Present(exec.LookPath) {
			findings = append(findings, p.entered(program)...)
		}
	}
	return findings
}

func (p Patient) entered(program install.Program) (findings []Finding) {
	const check = "install"
	repeat := "run: " + p.Program + " install " + program.Name
	s, err := program.State(*p.Install)
	switch {
	case err != nil:
		return []Finding{warning(check, program.Title+": "+err.Error(), "")}
	case s.Missing == s.Parts:
		return []Finding{good(check, "%s: nothing of Parley is entered; enter it with: %s install %s", program.Title, p.Program, program.Name)}
	case s.Missing > 0:
		findings = append(findings, warning(check, fmt.Sprintf("%s: %d of %d parts are missing", program.Title, s.Missing, s.Parts), repeat))
	case len(s.Outdated) > 0:
		findings = append(findings, warning(check, program.Title+": another Parley has entered "+strings.Join(s.Outdated, " and "), repeat))
	default:
		findings = append(findings, good(check, "%s: the MCP server, the hooks and the skill are entered", program.Title))
	}
	for _, o := range program.Overruled(*p.Install) {
		findings = append(findings, warning(check, program.Title+": "+o.Message, o.Remedy))
	}
	return findings
}
