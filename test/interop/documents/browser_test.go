//go:build interop && linux

package documents_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/test/interop/rig"
)

// browsers are the names of Chromium's program.
var browsers = []string{"chromium", "chromium-browser", "google-chrome"}

// browser is a headless Chromium that is controlled over its DevTools protocol.
type browser struct {
	devtools string // its HTTP address
}

var devtoolsLine = regexp.MustCompile(`DevTools listening on ws://([^/]+)/`)

// startBrowser starts Chromium with a new profile. It ends with the test.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	var program string
	for _, name := range browsers {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		const why = "no Chromium is in PATH; on Debian: apt-get install chromium"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	// The sandbox is off, since it does not work for root; only the test's page is opened.
	cmd := exec.Command(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--disable-background-networking", "--no-first-run", "--remote-debugging-port=0",
		"--user-data-dir="+t.TempDir(), "about:blank")
	errors, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		lines := bufio.NewScanner(errors)
		for lines.Scan() {
			if m := devtoolsLine.FindStringSubmatch(lines.Text()); m != nil {
				said <- m[1]
			}
		}
		close(said)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended; Wait reports that
		<-drained
		_ = cmd.Wait() // reports that it was killed
	})
	select {
	case address, ok := <-said:
		if !ok {
			t.Fatal("Chromium ended at once")
		}
		return &browser{devtools: "http://" + address}
	case <-t.Context().Done():
		t.Fatal("Chromium does not answer")
	}
	return nil
}

// tab is one page of a browser.
type tab struct {
	ws *websocket.Conn
	id int
}

// open opens a page in a new tab and waits until its script has run.
func (b *browser) open(t *testing.T, url string) *tab {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, b.devtools+"/json/new?"+url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var target struct{ WebSocketDebuggerURL string }
	if err := json.NewDecoder(resp.Body).Decode(&target); err != nil {
		t.Fatal(err)
	}
	ws, _, err := websocket.Dial(t.Context(), target.WebSocketDebuggerURL, nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(64 << 20)
	t.Cleanup(func() { ws.CloseNow() })
	p := &tab{ws: ws}
	wait.Eventually(t, "the page's script has run", func() bool {
		var ran bool
		p.eval(t, `typeof window.open_ === 'function'`, &ran)
		return ran
	})
	return p
}

// eval evaluates an expression in the page and waits for its promise.
func (p *tab) eval(t *testing.T, expression string, result any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p.id++
	call, err := json.Marshal(map[string]any{"id": p.id, "method": "Runtime.evaluate", "params": map[string]any{
		"expression": expression, "awaitPromise": true, "returnByValue": true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.ws.Write(ctx, websocket.MessageText, call); err != nil {
		t.Fatal(err)
	}
	for {
		_, data, err := p.ws.Read(ctx)
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		var answer struct {
			ID     int
			Error  json.RawMessage
			Result struct {
				Result           struct{ Value json.RawMessage }
				ExceptionDetails json.RawMessage
			}
		}
		if err := json.Unmarshal(data, &answer); err != nil {
			t.Fatal(err)
		}
		if answer.ID != p.id {
			continue // an event
		}
		if answer.Error != nil || answer.Result.ExceptionDetails != nil {
			t.Fatalf("%s: %s %s", expression, answer.Error, answer.Result.ExceptionDetails)
		}
		if result != nil {
			if err := json.Unmarshal(answer.Result.Result.Value, result); err != nil {
				t.Fatalf("%s: %v in %s", expression, err, data)
			}
		}
		return
	}
}

// servePage serves page.html and the published npm packages, with an import map instead of
// a bundler. It returns the page's origin.
func servePage(t *testing.T) string {
	t.Helper()
	packages := []string{"yjs", "lib0", "y-websocket", "y-protocols", "isomorphic.js"}
	modules := rig.Modules(t, packages...)
	imports := map[string]string{}
	for _, name := range packages {
		addImports(t, imports, modules, name)
	}
	table, err := json.Marshal(map[string]any{"imports": imports})
	if err != nil {
		t.Fatal(err)
	}
	html, err := os.ReadFile("page.html")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /modules/", http.StripPrefix("/modules/", http.FileServer(http.Dir(modules))))
	mux.HandleFunc("GET /page.mjs", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "page.mjs") })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, strings.Replace(string(html), "IMPORTS", string(table), 1)) // the browser reports missing files
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// addImports adds a package's exports for browsers.
func addImports(t *testing.T, imports map[string]string, modules, name string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(modules, name, "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Exports map[string]json.RawMessage
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		t.Fatal(err)
	}
	for key, value := range manifest.Exports {
		if file := forBrowsers(value); file != "" {
			imports[path.Join(name, key)] = "/" + path.Join("modules", name, file)
		}
	}
}

// forBrowsers returns the file that an entry of a package's exports selects for a browser,
// or "".
func forBrowsers(entry json.RawMessage) string {
	var file string
	if json.Unmarshal(entry, &file) == nil {
		return file
	}
	var conditions map[string]json.RawMessage
	if json.Unmarshal(entry, &conditions) != nil {
		return ""
	}
	for _, condition := range []string{"browser", "module", "import", "default"} {
		if next, ok := conditions[condition]; ok {
			return forBrowsers(next)
		}
	}
	return ""
}

// opening returns the script that opens a document in a page.
func opening(server, room, token string) string {
	return fmt.Sprintf("open_({server: %q, room: %q, token: %q})", server, room, token)
}
