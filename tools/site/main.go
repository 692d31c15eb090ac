// Site writes the documentation's web site: static files, a directory for each version.
//
//	go run ./tools/site -version 1.2.3 -out site     # site/1.2.3/, and the list of the versions that are there
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/mod/semver"

	"github.com/parleyhub/parley/docs"
	"github.com/parleyhub/parley/internal/api/site/render"
)

func main() {
	version := flag.String("version", "devel", "the version, without a v in front")
	out := flag.String("out", "site", "the directory; other versions in it stay")
	flag.Parse()
	if err := write(*out, *version); err != nil {
		fmt.Fprintf(os.Stderr, "site: %v\n", err)
		os.Exit(1)
	}
}

func write(out, version string) error {
	files, err := render.Build(docs.Files, version)
	if err != nil {
		return err
	}
	dir := filepath.Join(out, version)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return list(out)
}

// list writes which versions are there, the newest first, and lets the start lead to that.
func list(out string) error {
	entries, err := os.ReadDir(out)
	if err != nil {
		return err
	}
	var versions []string
	for _, e := range entries {
		if e.IsDir() {
			versions = append(versions, e.Name())
		}
	}
	slices.SortFunc(versions, func(a, b string) int { return semver.Compare("v"+b, "v"+a) })
	text, err := json.Marshal(versions)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "versions.json"), text, 0o644); err != nil {
		return err
	}
	start := fmt.Sprintf("<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"refresh\" content=\"0; url=%s/index.html\">\n", versions[0])
	return os.WriteFile(filepath.Join(out, "index.html"), []byte(start), 0o644)
}
