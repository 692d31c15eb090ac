package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	texttemplate "text/template"

	"github.com/parleyhub/parley/internal/base/local"
)

//go:embed templates
var templates embed.FS

// template returns a file of the directory templates.
func template(name string) []byte {
	text, err := templates.ReadFile("templates/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return text
}

// image is the container image, without a version.
const image = "ghcr.io/parleyhub/parley"

// url is where the files of the release are, once they are published.
func (r *release) url() string { return repository + "/releases/download/v" + r.version }

// system is an operating system with its archives, for the templates.
type system struct {
	Name     string
	Archives []archived
}

type archived struct{ Arch, Name, Sum string }

// writeManifests writes what package managers and registries read: the installers, Homebrew's formula, scoop's manifest, the
// bundles for MCP clients, the entry of the MCP Registry and the compose file.
func (r *release) writeManifests(work string, platforms []string) error {
	var systems []system
	for _, p := range platforms {
		name, arch, _ := strings.Cut(p, "/")
		sum, err := fileSum(filepath.Join(r.dir, archiveName(r.version, p)))
		if err != nil {
			return err
		}
		i := slices.IndexFunc(systems, func(s system) bool { return s.Name == name })
		if i < 0 {
			systems = append(systems, system{Name: name})
			i = len(systems) - 1
		}
		systems[i].Archives = append(systems[i].Archives, archived{arch, archiveName(r.version, p), sum})
	}
	isWindows := func(s system) bool { return s.Name == "windows" }
	unix := slices.DeleteFunc(slices.Clone(systems), isWindows)
	for _, name := range []string{"install.sh", "install.ps1", "parley.rb", "compose.yaml"} {
		if err := r.fill(name, unix); err != nil {
			return err
		}
	}
	if i := slices.IndexFunc(systems, isWindows); i >= 0 {
		if err := r.writeScoop(systems[i]); err != nil {
			return err
		}
	}
	bundles, err := r.writeBundles(work, platforms)
	if err != nil {
		return err
	}
	return r.writeRegistryEntry(bundles)
}

// fill writes a template.
func (r *release) fill(name string, systems []system) error {
	t, err := texttemplate.New(name).Parse(string(template(name)))
	if err != nil {
		return err
	}
	var b bytes.Buffer
	err = t.Execute(&b, map[string]any{
		"Version": r.version, "URL": r.url(), "Repository": repository, "Description": description, "Image": image, "Systems": systems,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dir, name), b.Bytes(), 0o644)
}

// writeScoop writes the manifest for a bucket of scoop.
func (r *release) writeScoop(windows system) error {
	words := map[string]string{"amd64": "64bit", "arm64": "arm64"}
	architecture, update := map[string]any{}, map[string]any{}
	for _, a := range windows.Archives {
		dir := strings.TrimSuffix(a.Name, ".zip")
		architecture[words[a.Arch]] = map[string]string{"url": r.url() + "/" + a.Name, "hash": a.Sum, "extract_dir": dir}
		update[words[a.Arch]] = map[string]string{
			"url":         repository + "/releases/download/v$version/" + strings.ReplaceAll(a.Name, r.version, "$version"),
			"extract_dir": strings.ReplaceAll(dir, r.version, "$version"),
		}
	}
	return writeJSON(filepath.Join(r.dir, "parley.json"), map[string]any{
		"version": r.version, "description": description, "homepage": repository, "license": "MIT", "architecture": architecture,
		// The archive has no links: a program's further names are made before scoop looks for them.
		"pre_install": []string{
			`foreach ($name in 'a2a-hub', 'nats-mcp-server') { New-Item -ItemType HardLink -Path "$dir\$name.exe" -Value "$dir\parley.exe" | Out-Null }`,
		},
		"bin":      []string{"parley.exe", "a2a-hub.exe", "nats-mcp-server.exe"},
		"checkver": "github",
		"autoupdate": map[string]any{
			"architecture": update,
			"hash":         map[string]string{"url": "$baseurl/" + sumsName},
		},
	})
}

// writeBundles writes an MCPB bundle for each platform: a program that a desktop client installs with a click. The user chooses
// the project, since such a client has no current directory. It returns the names of the bundles.
func (r *release) writeBundles(work string, platforms []string) (bundles []string, err error) {
	for _, p := range platforms {
		system, _ := npmPlatform(p)
		program := executable(local.ProgramParley, strings.Split(p, "/")[0])
		manifest := filepath.Join(work, strings.ReplaceAll(p, "/", "-")+".mcpb.json")
		err := writeJSON(manifest, map[string]any{
			"manifest_version": "0.3", "name": "parley", "display_name": "Parley", "version": r.version, "description": description, "license": "MIT",
			"author":     map[string]string{"name": "Parley", "url": repository},
			"repository": map[string]string{"type": "git", "url": repository + ".git"},
			"homepage":   repository, "documentation": repository + "/blob/main/docs/mcp.md", "support": repository + "/issues",
			"keywords": []string{"agents", "a2a", "nats"}, "tools_generated": true, "prompts_generated": true,
			"compatibility": map[string]any{"platforms": []string{system}},
			"server": map[string]any{
				"type": "binary", "entry_point": "server/" + program,
				"mcp_config": map[string]any{
					"command": "${__dirname}/server/" + program, "args": []string{"mcp", "--dir", "${user_config.project}"},
				},
			},
			"user_config": map[string]any{"project": map[string]any{
				"type": "directory", "title": "Project", "description": "The directory of the project whose agents you talk to", "required": true,
			}},
		})
		if err != nil {
			return nil, err
		}
		name := "parley_" + r.version + "_" + strings.ReplaceAll(p, "/", "_") + ".mcpb"
		files := []file{
			{name: "LICENSE", path: "LICENSE"}, {name: "NOTICE", path: "NOTICE"}, {name: "manifest.json", path: manifest},
			{name: "server/" + program, path: filepath.Join(work, strings.ReplaceAll(p, "/", "-"), program), program: true},
		}
		if err := r.pack(name, files, packZip); err != nil {
			return nil, err
		}
		bundles = append(bundles, name)
	}
	return bundles, nil
}

// writeRegistryEntry writes server.json for the MCP Registry: the npm package, the image and the bundles.
func (r *release) writeRegistryEntry(bundles []string) error {
	stdio := map[string]string{"type": "stdio"}
	mcp := []map[string]string{{"type": "positional", "value": "mcp"}}
	packages := []map[string]any{
		{"registryType": "npm", "identifier": npmName, "version": r.version, "transport": stdio, "runtimeHint": "npx", "packageArguments": mcp},
		{"registryType": "oci", "identifier": image + ":" + r.version, "transport": stdio, "runtimeHint": "docker", "packageArguments": mcp},
	}
	for _, name := range bundles {
		sum, err := fileSum(filepath.Join(r.dir, name))
		if err != nil {
			return err
		}
		packages = append(packages, map[string]any{"registryType": "mcpb", "identifier": r.url() + "/" + name, "fileSha256": sum, "transport": stdio})
	}
	return writeJSON(filepath.Join(r.dir, "server.json"), map[string]any{
		"$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
		"name":    mcpName, "title": "Parley", "description": description, "version": r.version, "packages": packages,
		"websiteUrl": repository, "repository": map[string]string{"url": repository, "source": "github"},
	})
}

// pluginManifests are the manifests of the plugins in the tree, which people install from the repository itself. Each has the
// version of the release, as the CLIs update a plugin when its version changes.
var pluginManifests = []string{"plugins/claude/.claude-plugin/plugin.json", "plugins/codex/.codex-plugin/plugin.json", "plugins/gemini/gemini-extension.json"}

// checkPlugins returns an error for a plugin with another version than the release.
func checkPlugins(version string) error {
	for _, path := range pluginManifests {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var manifest struct{ Version string }
		if err := json.Unmarshal(text, &manifest); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if manifest.Version != version {
			return fmt.Errorf("%s has the version %q; set it to %s and commit it before the release", path, manifest.Version, version)
		}
	}
	return nil
}
