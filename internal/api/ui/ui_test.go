package ui_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/screens"
	"github.com/parleyhub/parley/internal/api/ui"
)

// serve returns the answer of the page's handler.
func serve(t *testing.T, method, path, etag string) (*http.Response, string) {
	t.Helper()
	page, err := ui.New()
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	page.Mount(mux.Handle)
	r := httptest.NewRequest(method, path, nil)
	if etag != "" {
		r.Header.Set("If-None-Match", etag)
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	answer := w.Result()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(body)
}

// Who may change nothing gets a page that knows it.
func TestThePageKnowsWhoMayOnlyLook(t *testing.T) {
	page, err := ui.New()
	if err != nil {
		t.Fatal(err)
	}
	var etags []string
	for _, viewOnly := range []bool{false, true} {
		r := httptest.NewRequest(http.MethodGet, ui.Path, nil)
		if viewOnly {
			r = r.WithContext(screens.WithViewOnly(r.Context()))
		}
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		if got := strings.Contains(w.Body.String(), `<html class="view" lang="en">`); got != viewOnly {
			t.Errorf("view only %t: %.80s", viewOnly, w.Body)
		}
		etags = append(etags, w.Header().Get("ETag"))
	}
	if etags[0] == etags[1] {
		t.Errorf("both have the tag %s", etags[0])
	}
}

var (
	fileNames = regexp.MustCompile(`(?:src|href)="(/ui/[^"]+)"`)
	imports   = regexp.MustCompile(`from "\./([a-z]+\.js)"`)
	inline    = regexp.MustCompile(`(?i)<script>|<style|\son[a-z]+=|\sstyle=|https?://`)
	unsafe    = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|https?://`)
)

func TestThePageHasAllItsFilesAndNothingElse(t *testing.T) {
	answer, index := serve(t, http.MethodGet, "/ui", "")
	policy := answer.Header.Get("Content-Security-Policy")
	if answer.StatusCode != http.StatusOK || !strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self';") ||
		strings.Contains(policy, "unsafe") || answer.Header.Get("Cache-Control") != "no-cache" {
		t.Errorf("%s: %v", answer.Status, answer.Header)
	}
	if inline.MatchString(index) {
		t.Errorf("inline code or another origin: %s", inline.FindString(index))
	}
	var paths []string
	for _, m := range fileNames.FindAllStringSubmatch(index, -1) {
		paths = append(paths, m[1])
	}
	if len(paths) != 10 { // each file is named, so that the browser loads all at once
		t.Fatalf("files: %q", paths)
	}
	size, seen := len(index), map[string]bool{}
	for len(paths) > 0 {
		path := paths[0]
		if paths = paths[1:]; seen[path] {
			continue
		}
		seen[path] = true
		answer, body := serve(t, http.MethodGet, path, "")
		if size += len(body); answer.StatusCode != http.StatusOK || !strings.HasSuffix(answer.Header.Get("Cache-Control"), "immutable") ||
			!strings.HasPrefix(answer.Header.Get("Content-Type"), "text/") {
			t.Errorf("%s: %s, %v", path, answer.Status, answer.Header)
		}
		body = strings.Replace(body, "http://www.w3.org/2000/svg", "", 1) // a name, not an address
		if unsafe.MatchString(body) {
			t.Errorf("%s has %s", path, unsafe.FindString(body))
		}
		for _, m := range imports.FindAllStringSubmatch(body, -1) {
			paths = append(paths, path[:strings.LastIndex(path, "/")+1]+m[1])
		}
	}
	if len(seen) != 10 || size > 300_000 {
		t.Errorf("%d files, %d bytes: %v", len(seen), size, seen)
	}
}

func TestUnchangedFilesAreNotSentAgain(t *testing.T) {
	answer, _ := serve(t, http.MethodGet, "/ui/", "")
	etag := answer.Header.Get("ETag")
	if answer, body := serve(t, http.MethodGet, "/ui/", etag); answer.StatusCode != http.StatusNotModified || body != "" {
		t.Errorf("%s %q", answer.Status, body)
	}
}

func TestThereAreNoOtherFiles(t *testing.T) {
	for _, path := range []string{"/ui/x/app.js", "/ui/app.js", "/ui/index.html", "/ui/page/app.js"} {
		if answer, _ := serve(t, http.MethodGet, path, ""); answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, answer.Status)
		}
	}
	if answer, _ := serve(t, http.MethodPost, "/ui", ""); answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", answer.Status)
	}
}
