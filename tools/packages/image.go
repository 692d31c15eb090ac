//go:build ignore

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is whom the hub runs as in a container: nobody that a computer has.
const user = 65532

// imageName is what the image is called once it is loaded; compose.yaml names it.
const imageName = "ghcr.io/parleyhub/parley"

// image writes the container image for all architectures: an OCI layout in a tar file. It has the program, the roots that public
// servers' certificates come from, and nothing else. Podman and Docker with containerd's store take the name from an annotation; Docker
// with a store of its own reads manifest.json, and there the name is that of the first architecture.
func (p packages) image(arches []string) error {
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var loads []tarball.Descriptor
	for _, arch := range arches {
		img, err := p.imageFor(arch)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
		load, err := p.load(img, arch, len(loads) == 0)
		if err != nil {
			return err
		}
		loads = append(loads, load)
	}
	dir := filepath.Join(p.work, "oci")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	names := map[string]string{"org.opencontainers.image.ref.name": p.version, "io.containerd.image.name": imageName + ":" + p.version}
	if err := path.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return err
	}
	text, err := json.Marshal(loads)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(p.out, "parley_"+p.version+"_oci.tar"))
	if err != nil {
		return err
	}
	return errors.Join(p.tarDir(f, dir), f.Close())
}

// load is the entry of manifest.json for the image of an architecture.
func (p packages) load(img v1.Image, arch string, first bool) (tarball.Descriptor, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return tarball.Descriptor{}, err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	d := tarball.Descriptor{Config: blob(manifest.Config.Digest), RepoTags: []string{imageName + ":" + p.version + "-" + arch}}
	if first {
		d.RepoTags = append(d.RepoTags, imageName+":"+p.version)
	}
	for _, layer := range manifest.Layers {
		d.Layers = append(d.Layers, blob(layer.Digest))
	}
	return d, nil
}

func (p packages) imageFor(arch string) (v1.Image, error) {
	program, err := os.ReadFile(filepath.Join(p.work, "linux-"+arch, "parley"))
	if err != nil {
		return nil, err
	}
	files, err := p.layer(program)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	img := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, p.config(img, arch))
}

// config is how the image runs: the hub in the foreground, with its data in /data.
func (p packages) config(img v1.Image, arch string) *v1.ConfigFile {
	file, err := img.ConfigFile()
	if err != nil {
		panic(err) // it is in memory
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", arch, v1.Time{Time: p.at}
	for i := range file.History {
		file.History[i].Created = v1.Time{Time: p.at}
	}
	file.Config = v1.Config{
		User: "65532:65532", WorkingDir: "/data", Entrypoint: []string{"/usr/bin/parley"}, Cmd: []string{"start", "--foreground"},
		Env:          []string{"PATH=/usr/bin", "HOME=/data", "PARLEY_DATA_DIR=/data/hub"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}}, Volumes: map[string]struct{}{"/data": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title": "Parley", "org.opencontainers.image.description": description, "org.opencontainers.image.version": p.version,
			"org.opencontainers.image.source": repository, "org.opencontainers.image.licenses": "MIT",
			"io.modelcontextprotocol.server.name": "io.github.parleyhub/parley",
		},
	}
	return file
}

// layer returns the image's files as a tar archive.
func (p packages) layer(program []byte) ([]byte, error) {
	notice, err := os.ReadFile(filepath.Join(p.work, "docs", "NOTICE"))
	if err != nil {
		return nil, err
	}
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, text []byte) {
		h.Size, h.ModTime, h.Format = int64(len(text)), p.at, tar.FormatPAX
		err = errors.Join(err, w.WriteHeader(&h))
		_, writeErr := w.Write(text)
		err = errors.Join(err, writeErr)
	}
	for _, dir := range []string{"etc/", "etc/ssl/", "etc/ssl/certs/", "usr/", "usr/bin/", "usr/share/", "usr/share/doc/", "usr/share/doc/parley/"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, nil)
	}
	add(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, nil)
	add(tar.Header{Typeflag: tar.TypeDir, Name: "data/", Mode: 0o700, Uid: user, Gid: user}, nil)
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, []byte("parley:x:65532:65532::/data:/sbin/nologin\n"))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, []byte("parley:x:65532:\n"))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/ssl/certs/ca-certificates.crt", Mode: 0o644}, roots.Bytes())
	add(tar.Header{Typeflag: tar.TypeReg, Name: "usr/share/doc/parley/NOTICE", Mode: 0o644}, notice)
	add(tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/parley", Mode: 0o755}, program)
	for _, name := range []string{"a2a-hub", "nats-mcp-server"} {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/bin/" + name, Linkname: "parley", Mode: 0o777}, nil)
	}
	return b.Bytes(), errors.Join(err, w.Close())
}

// tarDir writes the files of a directory as a tar archive, in the order of their names.
func (p packages) tarDir(to io.Writer, dir string) error {
	w := tar.NewWriter(to)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return addFile(w, filepath.ToSlash(name), path, p.at)
	})
	return errors.Join(err, w.Close())
}

func addFile(w *tar.Writer, name, path string, at time.Time) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o644, ModTime: at, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}
