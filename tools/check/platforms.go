package main

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/tools/go/packages"
)

// platforms checks that programs and tests compile for the other supported systems. It checks types from the sources of
// all packages: a compiler would first build every dependency for each system, which takes minutes. No file depends on
// the architecture.
func (c *check) platforms(ctx context.Context) error {
	if c.quick {
		return nil
	}
	for _, system := range []string{"darwin", "windows"} {
		fmt.Println(system)
		if err := checkTypes(ctx, ".", system); err != nil {
			return err
		}
	}
	return nil
}

// checkTypes checks the types of the packages below dir and of their tests as they are built for a system, and prints the errors.
func checkTypes(ctx context.Context, dir, system string) error {
	found, err := packages.Load(&packages.Config{
		Context: ctx,
		Dir:     dir,
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps |
			packages.NeedTypes | packages.NeedTypesSizes | packages.NeedModule,
		Tests: true,
		Env:   append(os.Environ(), "GOOS="+system, "GOARCH=arm64", "CGO_ENABLED=0"),
	}, "./...")
	if err != nil {
		return fmt.Errorf("%s: %w", system, err)
	}
	if n := packages.PrintErrors(found); n > 0 {
		return fmt.Errorf("%s: %d errors", system, n)
	}
	return nil
}
