package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// repository is where the sources are.
const repository = "https://github.com/parleyhub/parley"

// component is a part of a program in the format CycloneDX 1.6.
type component struct {
	Type     string        `json:"type"`
	Ref      string        `json:"bom-ref"`
	Name     string        `json:"name"`
	Version  string        `json:"version"`
	PURL     string        `json:"purl"`
	Hashes   []hash        `json:"hashes,omitempty"`
	Licenses []licenseElse `json:"licenses,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type licenseElse struct {
	License struct {
		ID string `json:"id"`
	} `json:"license"`
}

// writeMaterials writes the bill of materials: the modules that any of the programs is linked with, as the programs say.
func (r *release) writeMaterials(programs []string) error {
	notice, err := os.ReadFile("NOTICE")
	if err != nil {
		return err
	}
	licences := licencesOf(string(notice))
	modules := map[string]component{}
	toolchain := ""
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return err
		}
		toolchain = info.GoVersion
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			c := module(m.Path, m.Version, licences)
			modules[c.Ref] = c
		}
	}
	std := module("std", strings.TrimPrefix(toolchain, "go"), nil)
	std.Licenses = licence("BSD-3-Clause")
	modules[std.Ref] = std
	components := make([]component, 0, len(modules))
	for _, c := range modules {
		components = append(components, c)
	}
	slices.SortFunc(components, func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })
	parley := component{Type: "application", Ref: "parley", Name: "parley", Version: r.version, PURL: "pkg:golang/github.com/parleyhub/parley@v" + r.version, Licenses: licence("MIT")}
	return writeJSON(filepath.Join(r.dir, "parley_"+r.version+".cdx.json"), map[string]any{
		"$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"serialNumber": "urn:uuid:" + uuid.NewSHA1(uuid.NameSpaceURL, []byte(repository+"@"+r.version+"@"+r.commit)).String(),
		"metadata":     map[string]any{"timestamp": r.at.Format(time.RFC3339), "component": parley},
		"components":   components,
	})
}

func module(path, version string, licences map[string]string) component {
	purl := "pkg:golang/" + path + "@" + version
	c := component{Type: "library", Ref: purl, Name: path, Version: version, PURL: purl}
	if id := licences[path]; id != "" {
		c.Licenses = licence(id)
	}
	return c
}

func licence(id string) []licenseElse {
	var l licenseElse
	l.License.ID = id
	return []licenseElse{l}
}

// licencesOf returns the SPDX identifiers of the licences in NOTICE by module; a module whose licence is not known is left out.
func licencesOf(notice string) map[string]string {
	ids := map[string]string{}
	for _, part := range strings.Split(notice, strings.Repeat("=", 80)+"\n")[1:] {
		modules, text, _ := strings.Cut(part, strings.Repeat("-", 80)+"\n")
		for line := range strings.Lines(modules) {
			path, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			if id := spdx(text); id != "" {
				ids[path] = id
			}
		}
	}
	return ids
}

// spdx recognizes the text of a licence.
func spdx(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case has("Apache License"):
		return "Apache-2.0"
	case has("Mozilla Public License"):
		return "MPL-2.0"
	case has("Permission is hereby granted, free of charge"):
		return "MIT"
	case has("Redistribution and use in source and binary forms") && (has("Neither the name") || has("may not be used to endorse")):
		return "BSD-3-Clause"
	case has("Redistribution and use in source and binary forms"):
		return "BSD-2-Clause"
	case has("Permission to use, copy, modify, and"):
		return "ISC"
	}
	return ""
}

// writeProvenance writes how the files were made, as an in-toto statement with SLSA's provenance. It names no machine and no time
// but the commit's, since the files do not depend on them.
func (r *release) writeProvenance() error {
	names, err := contents(r.dir)
	if err != nil {
		return err
	}
	type digest map[string]string
	subjects := []map[string]any{}
	for _, name := range names {
		text, err := fileSum(filepath.Join(r.dir, name))
		if err != nil {
			return err
		}
		subjects = append(subjects, map[string]any{"name": name, "digest": digest{"sha256": text}})
	}
	sums, err := fileSum("go.sum")
	if err != nil {
		return err
	}
	return writeJSON(filepath.Join(r.dir, "parley_"+r.version+".intoto.json"), map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "subject": subjects, "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":          repository + "/tools/release/v1",
				"externalParameters": map[string]any{"version": r.version, "snapshot": r.snapshot},
				"internalParameters": map[string]any{"go": runtime.Version(), "tags": buildTags},
				"resolvedDependencies": []map[string]any{
					{"uri": "git+" + repository, "digest": digest{"gitCommit": r.commit}},
					{"uri": "git+" + repository + "#go.sum", "digest": digest{"sha256": sums}},
				},
			},
			"runDetails": map[string]any{
				"builder":  map[string]any{"id": repository + "/tools/release"},
				"metadata": map[string]any{"startedOn": r.at.Format(time.RFC3339)},
			},
		},
	})
}

func fileSum(path string) (string, error) {
	h := sha256.New()
	if err := copyFrom(h, path); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// writeJSON writes a value for people to read, too.
func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
