// Fuzz runs every fuzz target of the module for a while, one after another.
//
//	go run ./tools/fuzz [-time 30s] [package ...]
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

func main() {
	duration := flag.String("time", "30s", "how long each target runs")
	flag.Parse()
	packages := flag.Args()
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	if err := run(*duration, packages); err != nil {
		fmt.Fprintf(os.Stderr, "fuzz: %v\n", err)
		os.Exit(1)
	}
}

func run(duration string, packages []string) error {
	targets, err := list(packages)
	if err != nil {
		return err
	}
	for _, t := range targets {
		fmt.Printf("== %s %s\n", t.pkg, t.name)
		cmd := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", duration, t.pkg)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s %s: %w", t.pkg, t.name, err)
		}
	}
	fmt.Printf("%d targets held\n", len(targets))
	return nil
}

type target struct{ pkg, name string }

// list finds the targets: go test -list prints a package's names, and then the
// line with the package.
func list(packages []string) ([]target, error) {
	cmd := exec.Command("go", append([]string{"test", "-list", "^Fuzz"}, packages...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the targets: %w", err)
	}
	var targets []target
	var names []string
	scanner := bufio.NewScanner(bytes.NewReader(out))
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
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
	return targets, scanner.Err()
}
