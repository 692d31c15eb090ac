package parley_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sharedCodes are the error codes that several packages have: each is one fault, which one package passes on from the
// other or finds as well. Every other code belongs to one package.
var sharedCodes = map[string][]string{
	"AGENT_NOT_FOUND":  {"registry", "router", "swarm"},
	"DELIVERY_FAILED":  {"channel", "router"},
	"INVALID_CARD":     {"agent", "registry"},
	"INVALID_ENVELOPE": {"envelope", "router"},
	"PANIC":            {"crdt/replica", "ralph", "telemetry"},
}

// specifiedCodes are those of the specification, and the package that has each.
var specifiedCodes = map[string]string{
	"AGENT_NOT_FOUND": "router", "CAPABILITY_NOT_FOUND": "router", "TIER_VIOLATION": "router", "SANDBOX_VIOLATION": "router",
	"ESCALATION_REQUIRED": "router", "CHANNEL_CLOSED": "channel", "DELIVERY_FAILED": "channel", "DUPLICATE_TOOL": "toolbox",
	"INVALID_CARD": "registry", "SCHEMA_VERSION_MISMATCH": "envelope", "PROPOSAL_TIMEOUT": "negotiation", "CRDT_DESERIALIZATION_FAILED": "crdt",
}

// The error codes of the public packages agree: the same code means the same fault everywhere, no package has two names
// for one, and the specified codes are there.
func TestErrorCodesAgreeBetweenPackages(t *testing.T) {
	owners := make(map[string][]string)
	for _, room := range []string{"agent", "channel", "crdt", "discovery", "envelope", "identity", "negotiation", "ralph", "registry", "router", "swarm",
		"telemetry", "toolbox", "transport"} {
		err := filepath.WalkDir(room, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			for _, code := range codesOf(t, file) {
				owners[code] = append(owners[code], path.Dir(filepath.ToSlash(file)))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(owners)) {
		slices.Sort(owners[code])
		if want := sharedCodes[code]; len(owners[code]) > 1 && !slices.Equal(owners[code], want) {
			t.Errorf("%s is the code of %v; unless it is one fault, which belongs in the table, each package needs its own", code, owners[code])
		}
	}
	for code, want := range sharedCodes {
		if !slices.Equal(owners[code], want) {
			t.Errorf("%s is the code of %v, want %v", code, owners[code], want)
		}
	}
	for code, in := range specifiedCodes {
		if !slices.Contains(owners[code], in) {
			t.Errorf("package %s does not have the specified code %s", in, code)
		}
	}
}

// codesOf returns the values of a file's constants whose names begin with Code.
func codesOf(t *testing.T, file string) (codes []string) {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, s := range group.Specs {
			spec := s.(*ast.ValueSpec)
			for i, name := range spec.Names {
				if !strings.HasPrefix(name.Name, "Code") || i >= len(spec.Values) {
					continue
				}
				if value, ok := spec.Values[i].(*ast.BasicLit); ok && value.Kind == token.STRING {
					code, err := strconv.Unquote(value.Value)
					if err != nil {
						t.Fatal(err)
					}
					codes = append(codes, code)
				}
			}
		}
	}
	return codes
}
