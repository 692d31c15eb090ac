package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// fuzz runs every fuzz target of the module for c.fuzzTime, in sequence. The step runs only if -only names it.
func (c *check) fuzz(ctx context.Context) error {
	targets, err := listTargets(ctx)
	if err != nil {
		return err
	}
	for _, t := range targets {
		fmt.Printf("== %s %s\n", t.pkg, t.name)
		if err := command(ctx, nil, "go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", c.fuzzTime.String(), t.pkg); err != nil {
			return fmt.Errorf("%s %s: %w", t.pkg, t.name, err)
		}
	}
	fmt.Printf("%d targets held\n", len(targets))
	return nil
}

type target struct{ pkg, name string }

// listTargets returns the targets. go test -list prints a package's names, then a line with the package.
func listTargets(ctx context.Context) ([]target, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-list", "^Fuzz", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the targets: %w", err)
	}
	var targets []target
	var names []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 1:
			names = append(names, fields[0])
		case len(fields) > 1 && fields[0] == "ok":
			for _, name := range names {
				targets = append(targets, target{fields[1], name})
			}
			names = nil
		}
	}
	return targets, nil
}
