package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// noticeFile lists the modules that the programs of cmd are linked with on any
// platform, with their licences, read from the module cache.
func noticeFile() ([]byte, error) {
	modules, err := linked()
	if err != nil {
		return nil, err
	}
	return notice(modules)
}

// module is a module in the cache.
type module struct{ path, version, dir string }

// linked lists the modules of the packages in cmd, on all platforms.
func linked() ([]module, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	modules := []module{{path: "Go standard library", dir: strings.TrimSpace(string(root))}}
	for _, system := range []string{"linux", "darwin", "windows"} {
		cmd := exec.Command("go", "list", "-deps", "-f",
			"{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}", "./cmd/...")
		cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list the packages for %s: %w", system, err)
		}
		for line := range strings.Lines(string(out)) {
			path, rest, _ := strings.Cut(strings.TrimSpace(line), "\t")
			version, dir, _ := strings.Cut(rest, "\t")
			if m := (module{path, version, dir}); path != "" && !slices.Contains(modules, m) {
				modules = append(modules, m)
			}
		}
	}
	// Changed, and therefore in the tree: see its README.md.
	modules = append(modules, module{"github.com/santhosh-tekuri/jsonschema/v6", "v6.0.3 (changed)", "internal/third_party/jsonschema"})
	slices.SortFunc(modules[1:], func(a, b module) int { return cmp.Compare(a.path, b.path) })
	return modules, nil
}

// notice writes every licence once, with the modules that it is for.
func notice(modules []module) ([]byte, error) {
	texts := map[string][]string{} // modules by their licence's text
	var order []string
	for _, m := range modules {
		text, err := licence(m.dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.path, err)
		}
		if texts[text] == nil {
			order = append(order, text)
		}
		texts[text] = append(texts[text], strings.TrimSpace(m.path+" "+m.version))
	}
	var b bytes.Buffer
	b.WriteString("Parley is distributed under the MIT licence, see LICENSE. Its programs are linked\n" +
		"with the following modules, each under its own licence.\n")
	for _, text := range order {
		b.WriteString("\n" + strings.Repeat("=", 80) + "\n")
		for _, name := range texts[text] {
			b.WriteString(name + "\n")
		}
		b.WriteString(strings.Repeat("-", 80) + "\n" + text + "\n")
	}
	return b.Bytes(), nil
}

// licence joins the licence files of a module.
func licence(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var texts []string
	for _, e := range entries {
		base, _, _ := strings.Cut(strings.ToUpper(e.Name()), ".")
		if e.IsDir() || !slices.Contains([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE"}, base) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		clean := strings.ReplaceAll(string(text), "\r\n", "\n")
		texts = append(texts, strings.TrimSpace(clean))
	}
	if len(texts) == 0 {
		return "", errors.New("there is no licence")
	}
	return strings.Join(texts, "\n\n"), nil
}
