package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/doctor"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

func (a *app) doctorCommand() *cobra.Command {
	cmd := command("doctor", "Find problems and print remedies", func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := a.interruptible(cmd.Context())
		defer cancel()
		cfg, err := a.load(ctx)
		spinner := a.spin("checking the agents")
		project, projectErr := mcpconfig.Load(mcpconfig.Sources{})
		patient := doctor.Patient{Config: cfg, Err: err, Project: project, ProjectErr: projectErr, Program: a.self()}
		if at, err := a.place(false); err == nil { // without a home there is nothing to look at
			patient.Install = &at
		}
		findings := patient.Examine(ctx)
		spinner.end()
		if ctx.Err() != nil {
			return errInterrupted
		}
		worst := doctor.Worst(findings)
		err = a.print(map[string]any{"level": worst, "findings": findings}, func() { a.printFindings(findings) })
		if worst == doctor.Failure {
			return &failure{Exit: exitFailure, Kind: "unhealthy", Message: "a problem prevents the hub or the channels from working", quiet: a.json()}
		}
		return err
	})
	cmd.Long = "Check the configuration, what install has entered into other programs, the data\n" +
		"directory, the socket, the ports, the bus, paired hubs, every agent and MCP server,\n" +
		"and the channels of the project in the current directory. It needs no hub and starts none; an MCP server that no running hub uses is\n" +
		"started and stopped again. The exit code is 1 if a problem prevents the hub or the\n" +
		"channels from working. An agent or MCP server that cannot be used is only a warning."
	return cmd
}

func (a *app) printFindings(findings []doctor.Finding) {
	for _, f := range findings {
		mark := a.style.green("ok  ")
		switch f.Level {
		case doctor.Warning:
			mark = a.style.yellow("warn")
		case doctor.Failure:
			mark = a.style.red("FAIL")
		}
		subject := f.Check
		switch {
		case f.Agent != "":
			subject = f.Agent
		case f.Server != "":
			subject = f.Server
			f.Message = "(MCP server) " + f.Message
		}
		fmt.Fprintf(a.stdout, "%s  %s %s\n", mark, a.style.bold(fmt.Sprintf("%-14s", subject)), plain(f.Message))
		if f.Remedy != "" {
			fmt.Fprintf(a.stdout, "      %-14s %s\n", "", a.style.dim("→ "+plain(f.Remedy)))
		}
	}
}
