package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"strings"
)

// comments makes sure that everything exported is described. How a comment
// begins is staticcheck's matter.
func comments(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "git", "ls-files", "*.go", ":!*_test.go").Output()
	if err != nil {
		return err
	}
	var missing []string
	for _, path := range strings.Fields(string(out)) {
		names, err := undescribed(path, nil)
		if err != nil {
			return err
		}
		missing = append(missing, names...)
	}
	if len(missing) > 0 {
		return fmt.Errorf("without a comment:\n  %s", strings.Join(missing, "\n  "))
	}
	return nil
}

// undescribed lists the exported functions, methods and types of a file that
// have no comment. src is as for [parser.ParseFile].
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
			// A type's Error method needs none: everybody knows what it does.
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

// receiver is the name of a method's type.
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
