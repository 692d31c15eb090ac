//go:build ignore

package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

const (
	repository  = "https://github.com/parleyhub/parley"
	description = "The meeting place for coding agents: they find each other, talk and hand work over"
)

// unit lets each user run the hub: systemctl --user enable --now parley.
const unit = `[Unit]
Description=Parley's hub
Documentation=man:parley(1) ` + repository + `

[Service]
ExecStart=/usr/bin/parley start --foreground
Restart=on-failure
RestartSec=2

[Install]
WantedBy=default.target
`

// linux writes a package for Linux. It runs no script: it has files only.
func (p packages) linux(format, arch string) error {
	contents, err := p.contents(format, arch)
	if err != nil {
		return err
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "parley", Arch: arch, Platform: "linux", Version: p.version, Section: "devel", Priority: "optional", Release: "1",
		Maintainer: "Parley <parley@users.noreply.github.com>", Description: description, Homepage: repository, License: "MIT", MTime: p.at,
		Overridables: nfpm.Overridables{
			Contents: contents,
			RPM:      nfpm.RPM{Compression: "gzip:9", BuildHost: "localhost"},
			Deb:      nfpm.Deb{Compression: "gzip"},
		},
	})
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(p.out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	return errors.Join(packager.Package(info, f), f.Close())
}

// shared are the directories of an rpm that other packages may have, too. dpkg removes an empty directory that no package has any
// more; rpm removes those only that a package names.
var shared = []string{
	"/usr/lib/systemd/user", "/usr/share/doc/parley", "/usr/share/zsh", zshOfFedora, "/usr/share/fish", "/usr/share/fish/vendor_completions.d",
}

// The directories of zsh's completions.
const (
	zshOfDebian = "/usr/share/zsh/vendor-completions"
	zshOfFedora = "/usr/share/zsh/site-functions"
)

// contents are the files of a package for Linux.
func (p packages) contents(format, arch string) (files.Contents, error) {
	var all files.Contents
	zsh := zshOfDebian
	if format == "rpm" {
		zsh = zshOfFedora
		for _, dir := range shared {
			all = append(all, &files.Content{Destination: dir, Type: files.TypeDir, FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: p.at, Owner: "root", Group: "root"}})
		}
	}
	add := func(from, to string, mode os.FileMode) {
		all = append(all, &files.Content{Source: from, Destination: to, FileInfo: &files.ContentFileInfo{Mode: mode, MTime: p.at, Owner: "root", Group: "root"}})
	}
	add(filepath.Join(p.work, "linux-"+arch, "parley"), "/usr/bin/parley", 0o755)
	for _, name := range []string{"a2a-hub", "nats-mcp-server"} {
		all = append(all, &files.Content{Source: "parley", Destination: "/usr/bin/" + name, Type: files.TypeSymlink, FileInfo: &files.ContentFileInfo{MTime: p.at}})
	}
	service := filepath.Join(p.work, "parley.service")
	if err := os.WriteFile(service, []byte(unit), 0o644); err != nil {
		return nil, err
	}
	add(service, "/usr/lib/systemd/user/parley.service", 0o644)
	docs := filepath.Join(p.work, "docs")
	pages, err := filepath.Glob(filepath.Join(docs, "man", "*.1"))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		add(page, "/usr/share/man/man1/"+filepath.Base(page), 0o644)
	}
	for _, program := range []string{"parley", "a2a-hub"} {
		from := filepath.Join(docs, "completions", program)
		add(from+".bash", "/usr/share/bash-completion/completions/"+program, 0o644)
		add(from+".zsh", zsh+"/_"+program, 0o644)
		add(from+".fish", "/usr/share/fish/vendor_completions.d/"+program+".fish", 0o644)
	}
	for _, name := range []string{"README.md", "CHANGELOG.md", "NOTICE"} {
		add(filepath.Join(docs, name), "/usr/share/doc/parley/"+name, 0o644)
	}
	add(filepath.Join(docs, "LICENSE"), "/usr/share/doc/parley/copyright", 0o644)
	return all, nil
}
