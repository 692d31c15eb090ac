// Package ui serves the hub's own page: the screens of package screens in a browser. Its files are embedded. It has no
// data: the page calls the hub's methods as any client does, behind the same checks.
package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"

	"github.com/parleyhub/parley/internal/api/screens"
)

// Path is where the page is. Its files are below it.
const Path = "/ui"

// policy lets the page load its own files and call the hub, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

//go:embed page
var embedded embed.FS

// types are the media types by extension: those of the operating system differ.
var types = map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}

// file is a file as it is served.
type file struct {
	mime, hash string
	body       []byte
}

// Handler serves the page and its files. The hash in the path of a file is that of all files, so that browsers keep files for good and
// never mix those of two versions.
type Handler struct {
	base  string // Path/HASH/
	index file
	view  file // the index for those who may change nothing: it shows no button that would be refused
	files map[string]file
}

// New reads the embedded files.
func New() (*Handler, error) {
	files := map[string]file{}
	err := fs.WalkDir(embedded, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := embedded.ReadFile(name)
		files[strings.TrimPrefix(name, "page/")] = newFile(name, body)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the hub's page: %w", err)
	}
	contract, err := json.Marshal(screens.Data())
	if err != nil {
		return nil, fmt.Errorf("the hub's page: %w", err)
	}
	files["contract.js"] = newFile("contract.js", append(append([]byte("export default "), contract...), ";\n"...))
	h := &Handler{index: files["index.html"], files: files}
	h.base = Path + "/" + hashOf(files) + "/"
	h.index = newFile("index.html", bytes.ReplaceAll(h.index.body, []byte("BASE/"), []byte(h.base)))
	h.view = newFile("index.html", bytes.Replace(h.index.body, []byte("<html "), []byte(`<html class="view" `), 1))
	delete(files, "index.html")
	return h, nil
}

func newFile(name string, body []byte) file {
	sum := sha256.Sum256(body)
	return file{types[path.Ext(name)], base64.RawURLEncoding.EncodeToString(sum[:12]), body}
}

// hashOf returns one hash of all files.
func hashOf(files map[string]file) string {
	names := map[string]string{}
	for name, f := range files {
		names[name] = f.hash
	}
	all, _ := json.Marshal(names) // sorted; strings cannot fail
	return newFile("", all).hash
}

// Mount adds the page with the function of a server that adds handlers.
func (h *Handler) Mount(mount func(pattern string, h http.Handler)) {
	mount("GET "+Path, h)
	mount("GET "+Path+"/", h)
}

// ServeHTTP answers with the page or one of its files.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	if r.URL.Path == Path || r.URL.Path == Path+"/" {
		header.Set("Cache-Control", "no-cache")
		index := h.index
		if screens.ViewOnly(r.Context()) {
			index = h.view
		}
		h.write(w, r, index)
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, h.base)
	f, found := h.files[name]
	if !ok || !found {
		header.Set("Cache-Control", "no-store")
		http.Error(w, "there is no such file of the page", http.StatusNotFound)
		return
	}
	header.Set("Cache-Control", "private, max-age=31536000, immutable")
	h.write(w, r, f)
}

func (h *Handler) write(w http.ResponseWriter, r *http.Request, f file) {
	etag := `"` + f.hash + `"`
	w.Header().Set("Content-Type", f.mime)
	w.Header().Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(f.body) // fails only if the client has disconnected
}
