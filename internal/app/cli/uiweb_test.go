//go:build unix

package cli_test

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/cli"
)

// visit opens a link as a browser does and returns the status and the cookie.
func visit(t *testing.T, link string) (status int, cookie string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link, nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := browser.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("Set-Cookie")
}

// webHub runs a hub with HTTP.
func webHub(t *testing.T) setup {
	t.Helper()
	p := newSetup(t)
	file := filepath.Join(p.dir, "config.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	with := strings.Replace(string(text), "http: {enabled: false}", "http: {port: 0}", 1)
	if err := os.WriteFile(file, []byte(with), 0o600); err != nil {
		t.Fatal(err)
	}
	p.hub(t)
	return p
}

func TestThePageOpensByALink(t *testing.T) {
	p := webHub(t)
	o := p.run(t, "ui", "--web", "--no-open")
	link := strings.TrimSpace(o.stdout)
	if status, cookie := visit(t, link); o.code != 0 || status != http.StatusOK || !strings.HasPrefix(cookie, "parley-ui-") {
		t.Errorf("exit %d, %d %q at %q: %s", o.code, status, cookie, o.stdout, o.stderr)
	}
	if status, cookie := visit(t, link); status != http.StatusForbidden || cookie != "" {
		t.Errorf("a second time: %d %q", status, cookie)
	}
	shown := decode[dialect.PageLink](t, p.run(t, "--format", "json", "ui", "--web", "--view-only", "--no-start"))
	if status, cookie := visit(t, shown.URL); status != http.StatusOK || !strings.Contains(cookie, "=view-") || time.Until(shown.Expires.Time) > time.Minute {
		t.Errorf("view only: %+v: %d %q", shown, status, cookie)
	}
	if o := p.run(t, "ui", "--view-only"); o.code != 2 || !strings.Contains(o.stderr, "are for --web") {
		t.Errorf("without --web: exit %d, %s", o.code, o.stderr)
	}
}

// What the program is called with is in TestBrowsers.
func TestThePageOpensInTheBrowser(t *testing.T) {
	works, err := exec.LookPath("true")
	if err != nil {
		t.Skip("there is no program that does nothing")
	}
	p := webHub(t)
	for browser, want := range map[string]string{works: "", filepath.Join(p.dir, "missing"): "There is no browser here: open the link within a minute.\n"} {
		var stdout, stderr bytes.Buffer
		code := cli.Run(t.Context(), "parley", p.args("ui", "--web"), strings.NewReader(""), &stdout, &stderr, map[string]string{"BROWSER": browser}, nil)
		if code != 0 || stderr.String() != want || !strings.HasPrefix(stdout.String(), "http://127.0.0.1:") {
			t.Errorf("%s: exit %d, %q, %q", browser, code, stdout.String(), stderr.String())
		}
	}
}
