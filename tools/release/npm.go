package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/parleyhub/parley/internal/base/local"
)

// npmName is the package that people install; those with the programs are named after it.
const npmName = "@parleyhub/parley"

// mcpName is the server's name in the MCP Registry, which reads it in the npm package and in the image.
const mcpName = "io.github.parleyhub/parley"

// description is what the packages say of Parley. The MCP Registry allows 100 characters.
const description = "The meeting place for coding agents: they find each other, talk and hand work over"

// npmPlatform returns what Node calls a platform.
func npmPlatform(platform string) (system, cpu string) {
	system, cpu, _ = strings.Cut(platform, "/")
	if system == "windows" {
		system = "win32"
	}
	if cpu == "amd64" {
		cpu = "x64"
	}
	return system, cpu
}

// writeNPM writes the tarballs for npm publish: one with the program for each platform, one that depends on all of them
// and runs the one that npm has installed, and one for each further name. No script runs at installation.
func (r *release) writeNPM(work string, platforms []string) error {
	optional := map[string]string{}
	common := map[string]any{
		"version": r.version, "description": description, "license": "MIT", "homepage": repository,
		"repository": map[string]string{"type": "git", "url": "git+" + repository + ".git"},
	}
	for _, p := range platforms {
		system, cpu := npmPlatform(p)
		name := npmName + "-" + system + "-" + cpu
		optional[name] = r.version
		manifest := maps.Clone(common)
		maps.Copy(manifest, map[string]any{
			"name": name, "description": "The program of " + npmName + " for " + system + " on " + cpu, "os": []string{system}, "cpu": []string{cpu}, "preferUnplugged": true,
		})
		program := executable(local.ProgramParley, strings.Split(p, "/")[0])
		from := filepath.Join(work, strings.ReplaceAll(p, "/", "-"), program)
		if err := r.packNPM(work, manifest, map[string]string{"bin/" + program: from}, []string{"LICENSE", "NOTICE"}); err != nil {
			return err
		}
	}
	manifest := maps.Clone(common)
	bins := map[string]string{}
	scripts := filepath.Join(work, "npm-bin")
	programs := map[string]string{"bin/run.js": filepath.Join(scripts, "run.js")}
	files := map[string][]byte{"run.js": template("run.js")}
	for _, name := range append([]string{local.ProgramParley}, names...) {
		bins[name] = "bin/" + name + ".js"
		files[name+".js"] = []byte("#!/usr/bin/env node\n\"use strict\";\nrequire(\"./run.js\")(\"" + name + "\");\n")
		programs["bin/"+name+".js"] = filepath.Join(scripts, name+".js")
	}
	for name, text := range files {
		if err := writeFile(filepath.Join(scripts, name), text); err != nil {
			return err
		}
	}
	maps.Copy(manifest, map[string]any{
		"name": npmName, "mcpName": mcpName, "bin": bins, "optionalDependencies": optional, "engines": node,
		"keywords": []string{"mcp", "a2a", "acp", "agents", "claude", "codex", "gemini", "nats"},
	})
	err := r.packNPM(work, manifest, programs, []string{"LICENSE", "README.md"})
	return errors.Join(err, r.writeNames(work, common))
}

// writeNames writes a package for each further name of the program, so that `npx nats-mcp-server` runs it. Each depends on the main
// package, and has the schema of the MCP server's configuration.
func (r *release) writeNames(work string, common map[string]any) error {
	for _, name := range names {
		script := filepath.Join(work, "npm-names", name+".js")
		if err := writeFile(script, []byte("#!/usr/bin/env node\n\"use strict\";\nrequire(\""+npmName+"/bin/run.js\")(\""+name+"\");\n")); err != nil {
			return err
		}
		manifest := maps.Clone(common)
		maps.Copy(manifest, map[string]any{
			"name": name, "bin": map[string]string{name: "bin/" + name + ".js"}, "dependencies": map[string]string{npmName: r.version}, "engines": node,
		})
		if err := r.packNPM(work, manifest, map[string]string{"bin/" + name + ".js": script}, []string{"LICENSE", "README.md", "schema/mcp-config.schema.json"}); err != nil {
			return err
		}
	}
	return nil
}

// node is the oldest Node.js that the scripts run with.
var node = map[string]string{"node": ">=18"}

// packNPM writes one tarball: its package.json, its programs by their name in the package, and documents of the repository.
func (r *release) packNPM(work string, manifest map[string]any, programs map[string]string, documents []string) error {
	name := strings.NewReplacer("@", "", "/", "-").Replace(manifest["name"].(string))
	path := filepath.Join(work, name, "package.json")
	if err := writeJSON(path, manifest); err != nil {
		return err
	}
	files := []file{{name: "package/package.json", path: path}}
	for _, d := range documents {
		files = append(files, file{name: "package/" + d, path: d})
	}
	for name, from := range programs {
		files = append(files, file{name: "package/" + name, path: from, program: true})
	}
	sortFiles(files)
	return r.pack(filepath.Join("npm", name+"-"+r.version+".tgz"), files, packTar)
}

// pack writes an archive of the release.
func (r *release) pack(name string, files []file, pack packer) error {
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(pack(f, files, r.at), f.Close())
}

func writeFile(path string, text []byte) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644))
}
