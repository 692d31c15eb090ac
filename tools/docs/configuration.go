package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/config"
)

const configurationHead = `# Configuration

Written by ` + "`go run ./tools/docs`" + ` from the code.

The hub reads ` + "`config.yaml`" + ` in its data directory, ` + "`~/.a2a-hub`" + `, or the file that ` + "`--config`" + ` or
` + "`PARLEY_CONFIG`" + ` names. No file is needed: every key has a default that works. Later layers win: defaults, the
file, the environment, the command line.

Reading is strict. An unknown key, a wrong type, a value out of range or a key that is given twice is an error with
file, line and column, and what would be right; all of them are reported at once. Anchors, aliases and tags are not
supported. Durations are written as ` + "`30s`, `5m`, `1h30m` or `7d`" + `. A path may begin with ` + "`~`" + `; a relative one is
relative to the file's directory.

` + "```sh\n" + `parley config validate     # every mistake, with its line
parley config show         # what is in force, and where each value comes from; secrets stay hidden
parley config path
` + "```\n" + `
Secrets belong in a file of their own (` + "`http.tokenFile`, `bus.passwordFile`" + `) or in the environment. They are
never taken from the command line, where other users could read them. A file with a secret that others may read
(anything but mode 0600) is warned of.

An example:

` + "```yaml\n" + `version: 1
http:
  port: 9090
agents:
  claude-code:              # built in: what is not set here stays as it is
    model: opus
    limits: {run: 1h}
  reviewer:                 # a second agent of the same program
    extends: claude-code
    systemPrompt: You review code. You never change it.
  vibe: {disabled: true}
  my-agent:                 # any program that reads a prompt and prints an answer
    driver: exec
    command: my-agent
    args: [--quiet]
` + "```\n"

// configurationDoc describes every key.
func configurationDoc() ([]byte, error) {
	comments, err := fieldComments("internal/config", "internal/hub/runner")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString(configurationHead)
	d := docWriter{b: &b, comments: comments}
	d.section("The hub", "", reflect.ValueOf(*config.Default("~")))
	d.section("An agent", "agents.ID.", reflect.Zero(reflect.TypeOf(config.Config{}.Agents).Elem()))
	b.WriteString("\n## The environment\n\n| Variable | Key |\n|---|---|\n| `PARLEY_CONFIG` | the file itself |\n")
	for _, v := range config.Variables {
		fmt.Fprintf(&b, "| `%s` | `%s` |\n", v.Name, v.Key)
	}
	return b.Bytes(), nil
}

type docWriter struct {
	b        *bytes.Buffer
	comments map[string]string
}

func (d docWriter) section(title, prefix string, v reflect.Value) {
	fmt.Fprintf(d.b, "\n## %s\n\n| Key | Type | Default | |\n|---|---|---|---|\n", title)
	d.rows(prefix, v)
}

func (d docWriter) rows(prefix string, v reflect.Value) {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			d.rows(prefix, v.Field(i))
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "" || name == "-" || name == "agents" {
			continue
		}
		value := v.Field(i)
		ft := f.Type
		if ft.Kind() == reflect.Pointer && ft.Elem().Kind() == reflect.Struct {
			ft, value = ft.Elem(), reflect.Zero(ft.Elem())
		}
		switch {
		case ft.Kind() == reflect.Struct:
			fmt.Fprintf(d.b, "| **`%s`** | section | | %s |\n", prefix+name, d.comment(t, f.Name, ft))
			d.rows(prefix+name+".", value)
		case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct:
			fmt.Fprintf(d.b, "| **`%s`** | list of sections | | %s |\n", prefix+name, d.comment(t, f.Name, ft.Elem()))
			d.rows(prefix+name+"[].", reflect.Zero(ft.Elem()))
		default:
			fmt.Fprintf(d.b, "| `%s` | %s | %s | %s |\n", prefix+name, typeName(ft), defaultText(value), d.comment(t, f.Name, nil))
		}
	}
}

// comment returns the comment of a field of t, or of its section's type, with the names of fields replaced by their
// keys.
func (d docWriter) comment(t reflect.Type, field string, section reflect.Type) string {
	text, of := d.comments[docName(t)+"."+field], t
	if section != nil && d.comments[docName(section)] != "" {
		text, of = d.comments[docName(section)], section
	}
	text = strings.Join(strings.Fields(text), " ")
	for i := range of.NumField() {
		key, _, _ := strings.Cut(of.Field(i).Tag.Get("yaml"), ",")
		if key != "" && key != "-" {
			text = regexp.MustCompile(`\b`+of.Field(i).Name+`\b`).ReplaceAllString(text, "`"+key+"`")
		}
	}
	if section != nil {
		text = strings.TrimPrefix(text, section.Name()+" ")
	}
	return strings.ReplaceAll(text, "|", `\|`)
}

func docName(t reflect.Type) string {
	return t.PkgPath()[strings.LastIndexByte(t.PkgPath(), '/')+1:] + "." + t.Name()
}

var durationType = reflect.TypeFor[time.Duration]()

func typeName(t reflect.Type) string {
	switch {
	case t == durationType:
		return "duration"
	case t.Kind() == reflect.Pointer:
		return typeName(t.Elem())
	case t.Kind() == reflect.Slice:
		return "list of " + typeName(t.Elem())
	case t.Kind() == reflect.Map:
		return "map of " + typeName(t.Elem())
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Bool:
		return "true or false"
	}
	return "number"
}

func defaultText(v reflect.Value) string {
	if v.IsZero() {
		if v.Kind() == reflect.Bool {
			return "`false`"
		}
		return ""
	}
	if v.Type() == durationType {
		return "`" + config.FormatDuration(time.Duration(v.Int())) + "`"
	}
	return fmt.Sprintf("`%v`", v)
}

// fieldComments returns the comments of the fields of all structs, above a field or behind it, by
// "package.Type.Field".
func fieldComments(dirs ...string) (map[string]string, error) {
	comments := map[string]string{}
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			for _, decl := range file.Decls {
				if decl, ok := decl.(*ast.GenDecl); ok {
					addComments(file.Name.Name, decl, comments)
				}
			}
		}
	}
	return comments, nil
}

func addComments(pkg string, decl *ast.GenDecl, comments map[string]string) {
	for _, spec := range decl.Specs {
		spec, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		name := pkg + "." + spec.Name.Name
		comments[name] = decl.Doc.Text()
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				for _, field := range f.Names {
					comments[name+"."+field.Name] = cmp.Or(f.Doc.Text(), f.Comment.Text())
				}
			}
		}
	}
}
