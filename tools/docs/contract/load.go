package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Code is the type-checked source of some packages.
type Code struct {
	fset     *token.FileSet
	packages map[string]*checked
}

// checked is one package with its syntax.
type checked struct {
	types *types.Package
	info  *types.Info
	files []*ast.File
}

// listed is what `go list` says of a package.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

// Load type-checks packages from their source, as the go command builds them for linux. What they import is read from the build cache,
// which the go command fills.
func Load(paths ...string) (*Code, error) {
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles"}, paths...)...)
	cmd.Env = append(os.Environ(), "GOOS=linux")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	all := map[string]listed{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		all[p.ImportPath] = p
	}
	c := &Code{fset: token.NewFileSet(), packages: map[string]*checked{}}
	imports := importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(all[path].Export) })
	for _, path := range paths {
		p, err := c.check(all[path], imports)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		c.packages[path] = p
	}
	return c, nil
}

func (c *Code) check(p listed, imports types.Importer) (*checked, error) {
	out := &checked{info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		Instances: map[*ast.Ident]types.Instance{},
	}}
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(c.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		out.files = append(out.files, file)
	}
	var err error
	out.types, err = (&types.Config{Importer: imports}).Check(p.ImportPath, c.fset, out.files, out.info)
	return out, err
}
