package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
type module struct {
	Path, Version, Dir string
	Main               bool
}

// linked lists the modules of the packages in cmd, on all platforms.
func linked() ([]module, error) {
	found := map[string]module{}
	for _, system := range []string{"linux", "darwin", "windows"} {
		cmd := exec.Command("go", "list", "-deps", "-json=Module", "./cmd/...")
		cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list the packages for %s: %w", system, err)
		}
		if err := collect(out, found); err != nil {
			return nil, err
		}
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	modules := []module{{Path: "Go standard library", Dir: strings.TrimSpace(string(root))}}
	for _, m := range found {
		modules = append(modules, m)
	}
	slices.SortFunc(modules, func(a, b module) int { return cmp.Compare(a.Path, b.Path) })
	return modules, nil
}

func collect(list []byte, found map[string]module) error {
	dec := json.NewDecoder(bytes.NewReader(list))
	for {
		var p struct{ Module *module }
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if m := p.Module; m != nil && !m.Main {
			found[m.Path] = *m
		}
	}
}

// notice writes every licence once, with the modules that it is for.
func notice(modules []module) ([]byte, error) {
	texts := map[string][]string{} // modules by their licence's text
	var order []string
	for _, m := range modules {
		text, err := licence(m.Dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Path, err)
		}
		if texts[text] == nil {
			order = append(order, text)
		}
		texts[text] = append(texts[text], strings.TrimSpace(m.Path+" "+m.Version))
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
