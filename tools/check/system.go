package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// systemPrograms are the programs that the interop tests need and that npm does not have: the names of each program's
// executable, by its Debian package.
var systemPrograms = map[string][]string{
	"chromium": {"chromium", "chromium-browser", "google-chrome"},
	"tmux":     {"tmux"},
}

// system checks that the programs are installed. In continuous integration it installs missing programs if possible;
// elsewhere the tests that need them are skipped.
func (c *check) system(ctx context.Context) error {
	missing := missingPrograms(func(name string) bool { _, err := exec.LookPath(name); return err == nil })
	if len(missing) == 0 || !c.ci {
		return nil
	}
	fmt.Println("installing", strings.Join(missing, ", "))
	err := command(ctx, []string{"DEBIAN_FRONTEND=noninteractive"}, "apt-get", "-qq", "update")
	if err == nil {
		err = command(ctx, []string{"DEBIAN_FRONTEND=noninteractive"}, "apt-get", append([]string{"-qq", "-y", "--no-install-recommends", "install"}, missing...)...)
	}
	if err != nil {
		return fmt.Errorf("the tests need %s, which cannot be installed here: %w", strings.Join(missing, " and "), err)
	}
	return nil
}

// missingPrograms returns the packages without an installed program.
func missingPrograms(there func(name string) bool) (packages []string) {
	for pkg, names := range systemPrograms {
		if !slices.ContainsFunc(names, there) {
			packages = append(packages, pkg)
		}
	}
	slices.Sort(packages)
	return packages
}
