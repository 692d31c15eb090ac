package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
)

// newRegistry serves the tarballs of a directory as npm's registry does.
func newRegistry(dir string) (*httptest.Server, error) {
	tarballs, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil {
		return nil, err
	}
	packages := map[string]map[string]any{}
	for _, path := range tarballs {
		manifest, err := npmManifest(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		packages[manifest["name"].(string)] = manifest
	}
	server := httptest.NewUnstartedServer(nil)
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if manifest, ok := packages[q.URL.Path[1:]]; ok {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(packument(manifest, server.URL))
			return
		}
		http.FileServer(http.Dir(dir)).ServeHTTP(w, q)
	})
	server.Start()
	return server, nil
}

// packument is what a registry says of a package with one version.
func packument(manifest map[string]any, url string) map[string]any {
	version, one := manifest["version"].(string), map[string]any{}
	for key, value := range manifest {
		one[key] = value
	}
	one["dist"] = map[string]any{"tarball": url + "/" + manifest["_file"].(string), "integrity": manifest["_integrity"]}
	return map[string]any{"name": manifest["name"], "dist-tags": map[string]string{"latest": version}, "versions": map[string]any{version: one}}
}

// npmManifest reads the package.json of a tarball, and adds the name and the digest of its file.
func npmManifest(path string) (map[string]any, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	manifest := map[string]any{}
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if err != nil {
			return nil, err
		}
		if h.Name != "package/package.json" {
			continue
		}
		if err := json.NewDecoder(tr).Decode(&manifest); err != nil {
			return nil, err
		}
		break
	}
	if _, ok := manifest["name"].(string); !ok {
		return nil, fmt.Errorf("package.json has no name")
	}
	sum := sha512.Sum512(content)
	manifest["_file"], manifest["_integrity"] = filepath.Base(path), "sha512-"+base64.StdEncoding.EncodeToString(sum[:])
	return manifest, nil
}
