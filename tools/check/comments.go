package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"strings"
)

// comments reports exported identifiers without a doc comment. staticcheck checks how the comments begin.
func comments(ctx context.Context) error {
	missing, err := inGoFiles(ctx, func(path string) ([]string, error) { return undescribed(path, nil) }, ":!*_test.go")
	if len(missing) > 0 {
		return fmt.Errorf("without a comment:\n  %s", strings.Join(missing, "\n  "))
	}
	return err
}

// thirdParty has other projects' code with small changes: it keeps their style, and their tests stay with them.
const thirdParty = "internal/third_party/"

// inGoFiles returns the joined findings of find in the Go files of the tree, with those that are not committed yet,
// without those that match the git patterns exclude.
func inGoFiles(ctx context.Context, find func(path string) ([]string, error), exclude ...string) (found []string, err error) {
	args := append([]string{"ls-files", "--cached", "--others", "--exclude-standard", "*.go", ":!" + thirdParty}, exclude...)
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	if err != nil {
		return nil, err
	}
	for _, path := range strings.Fields(string(out)) {
		if _, err := os.Stat(path); err != nil {
			continue // deleted and not committed
		}
		more, err := find(path)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// undescribed lists the exported functions, methods and types of a file that have no doc comment. src is as for
// [parser.ParseFile].
func undescribed(path string, src any) ([]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var missing []string
	note := func(name *ast.Ident, described bool) {
		if name.IsExported() && !described {
			missing = append(missing, fmt.Sprintf("%s: %s", files.Position(name.Pos()), name.Name))
		}
	}
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			// An Error method needs no comment.
			note(d.Name, d.Doc != nil || d.Recv != nil && (d.Name.Name == "Error" || !ast.IsExported(receiver(d.Recv.List[0].Type))))
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if t, ok := s.(*ast.TypeSpec); ok {
					note(t.Name, t.Doc != nil || d.Doc != nil)
				}
			}
		}
	}
	return missing, nil
}

// receiver returns the name of a method's type.
func receiver(expr ast.Expr) string {
	switch e := expr.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	}
	return ""
}
