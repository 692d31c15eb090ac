//go:build interop && linux

package rig

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/parleyhub/parley/internal/base/wait"
)

// browsers are the names of Chromium's program.
var browsers = []string{"chromium", "chromium-browser", "google-chrome"}

// pagePatience bounds each call of a browser.
const pagePatience = 60 * time.Second

// Browser is a headless Chromium that is controlled over its DevTools protocol.
type Browser struct {
	devtools string // its HTTP address
	front    *Page  // whose tab is shown; the others draw nothing and take no keys
}

var devtoolsLine = regexp.MustCompile(`DevTools listening on ws://([^/]+)/`)

// StartBrowser starts Chromium with a new profile. It ends with the test, and so do the processes that it started.
// Without an installed Chromium the test is skipped, but fails in continuous integration.
func StartBrowser(t *testing.T) *Browser {
	t.Helper()
	profile, err := os.MkdirTemp("", "parley-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	// The sandbox is off, since it does not work for root; only the test's page is opened.
	cmd := exec.Command(chromium(t), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--disable-background-networking", "--no-first-run", "--hide-scrollbars", "--remote-debugging-port=0",
		"--user-data-dir="+profile, "about:blank")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
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
		defer close(said)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			if m := devtoolsLine.FindStringSubmatch(lines.Text()); m != nil {
				said <- m[1]
			}
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have ended; Wait reports that
		<-drained
		_ = cmd.Wait() // reports that it was killed
		// Processes of the group may still end, and write.
		wait.Eventually(t, "Chromium's profile is removed", func() bool { return os.RemoveAll(profile) == nil })
	})
	select {
	case address, ok := <-said:
		if !ok {
			t.Fatal("Chromium ended at once")
		}
		return &Browser{devtools: "http://" + address}
	case <-time.After(pagePatience):
		t.Fatal("Chromium does not answer")
	}
	return nil
}

func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range browsers {
		if found, err := exec.LookPath(name); err == nil {
			return found
		}
	}
	const why = "no Chromium is in PATH; on Debian: apt-get install chromium"
	if os.Getenv("CI") == "true" || slices.Contains(strings.Split(os.Getenv("PARLEY_INTEROP_REQUIRE"), ","), "chromium") {
		t.Fatal(why)
	}
	t.Skip(why)
	return ""
}

// Page is a page in a tab of its own. It is not safe for concurrent use.
type Page struct {
	browser  *Browser
	ws       *websocket.Conn
	id       int
	problems []string
}

// Open opens an address in a new tab. The caller waits for the page to be ready.
func (b *Browser) Open(t *testing.T, url string) *Page {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pagePatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, b.devtools+"/json/new?about:blank", nil)
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
	ws, _, err := websocket.Dial(ctx, target.WebSocketDebuggerURL, nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(64 << 20)
	t.Cleanup(func() { ws.CloseNow() })
	p := &Page{browser: b, ws: ws}
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		p.Call(t, domain+".enable", nil, nil)
	}
	p.toFront(t)
	p.Call(t, "Page.navigate", map[string]any{"url": url}, nil)
	return p
}

// toFront shows the page's tab.
func (p *Page) toFront(t *testing.T) {
	t.Helper()
	if p.browser.front == p {
		return
	}
	p.Call(t, "Page.bringToFront", nil, nil)
	p.browser.front = p
}

// event is an event or an answer of the protocol.
type event struct {
	ID     int
	Method string
	Params struct {
		Type, Message string
		Entry         struct{ Level, Text, URL string }
		Args          []struct{ Value, Description any }
		Details       json.RawMessage `json:"exceptionDetails"`
	}
	Error  json.RawMessage
	Result json.RawMessage
}

// Call calls a method of the protocol and decodes its result.
func (p *Page) Call(t *testing.T, method string, params, result any) {
	t.Helper()
	if err := p.tryCall(t, method, params, result); err != nil {
		t.Fatalf("%s %.300v: %v", method, params, err)
	}
}

func (p *Page) tryCall(t *testing.T, method string, params, result any) error {
	ctx, cancel := context.WithTimeout(t.Context(), pagePatience)
	defer cancel()
	id, err := p.send(ctx, method, params)
	for err == nil {
		var e event
		if e, err = p.receive(ctx); err != nil || e.ID != id {
			continue
		}
		if e.Error != nil {
			err = fmt.Errorf("%s", e.Error)
		} else if result != nil {
			err = json.Unmarshal(e.Result, result)
		}
		break
	}
	return err
}

func (p *Page) send(ctx context.Context, method string, params any) (id int, err error) {
	p.id++
	call := map[string]any{"id": p.id, "method": method}
	if params != nil {
		call["params"] = params
	}
	text, err := json.Marshal(call)
	if err != nil {
		return 0, err
	}
	return p.id, p.ws.Write(ctx, websocket.MessageText, text)
}

// receive reads one event or answer. It records problems, and closes dialogs, which would block the page.
func (p *Page) receive(ctx context.Context) (e event, err error) {
	_, data, err := p.ws.Read(ctx)
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, err
	}
	switch {
	case e.Method == "Page.javascriptDialogOpening":
		p.problems = append(p.problems, "dialog: "+e.Params.Message)
		_, err = p.send(ctx, "Page.handleJavaScriptDialog", map[string]any{"accept": false})
	case e.Method == "Runtime.exceptionThrown":
		p.problems = append(p.problems, "exception: "+string(e.Params.Details))
	case e.Method == "Runtime.consoleAPICalled" && slices.Contains([]string{"error", "warning", "assert"}, e.Params.Type):
		p.problems = append(p.problems, fmt.Sprint("console: ", e.Params.Args))
	case e.Method == "Log.entryAdded" && e.Params.Entry.Level == "error":
		p.problems = append(p.problems, "log: "+e.Params.Entry.Text+" "+e.Params.Entry.URL)
	}
	return e, err
}

// Problems returns the dialogs, exceptions, and errors in the console that were received since the last call: violations of the
// page's content security policy are such errors.
func (p *Page) Problems(t *testing.T) []string {
	t.Helper()
	p.toFront(t)
	p.Eval(t, "new Promise(done => requestAnimationFrame(() => setTimeout(done)))", nil) // what was caused before has happened
	found := p.problems
	p.problems = nil
	return found
}

// Eval evaluates an expression in the page, waits for its promise and decodes its value.
func (p *Page) Eval(t *testing.T, expression string, result any) {
	t.Helper()
	if err := p.TryEval(t, expression, result); err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
}

// TryEval is Eval for a page that may be loading, or leaving for another one.
func (p *Page) TryEval(t *testing.T, expression string, result any) error {
	t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	if err := p.tryCall(t, "Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &answer); err != nil {
		return err
	}
	if answer.ExceptionDetails != nil {
		return errors.New(string(answer.ExceptionDetails))
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer.Result.Value, result)
}

// Until waits until an expression is true in the page.
func (p *Page) Until(t *testing.T, expression string) {
	t.Helper()
	for end := time.Now().Add(pagePatience); ; time.Sleep(20 * time.Millisecond) {
		var is bool
		if err := p.TryEval(t, "Boolean("+expression+")", &is); err == nil && is {
			return
		}
		if time.Now().After(end) {
			var text string
			p.Eval(t, "document.body.innerText.slice(0, 3000)", &text)
			t.Fatalf("not within %v: %s\nproblems: %q\nthe page:\n%s", pagePatience, expression, p.problems, text)
		}
	}
}

// codes are the codes of keys without a character.
var codes = map[string]int{"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, "End": 35, "Home": 36, "Backspace": 8}

// Press presses keys, one after the other.
func (p *Page) Press(t *testing.T, keys ...string) {
	t.Helper()
	p.toFront(t)
	for _, key := range keys {
		down := map[string]any{"type": "keyDown", "key": key}
		switch code, named := codes[key]; {
		case key == "Enter":
			down["text"], down["windowsVirtualKeyCode"], down["code"] = "\r", code, key
		case named:
			down["windowsVirtualKeyCode"], down["code"] = code, key
		default:
			down["text"] = key
		}
		p.Call(t, "Input.dispatchKeyEvent", down, nil)
		delete(down, "text")
		down["type"] = "keyUp"
		p.Call(t, "Input.dispatchKeyEvent", down, nil)
	}
}

// Type enters a text where the cursor is.
func (p *Page) Type(t *testing.T, text string) {
	t.Helper()
	p.toFront(t)
	p.Call(t, "Input.insertText", map[string]any{"text": text}, nil)
}

// Show sets the size of the page, and whether the user prefers a dark one.
func (p *Page) Show(t *testing.T, width, height int, dark bool) {
	t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	p.Call(t, "Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	p.Call(t, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// Picture returns a picture of what the page shows, as PNG.
func (p *Page) Picture(t *testing.T) []byte {
	t.Helper()
	p.toFront(t)
	var shot struct{ Data string }
	p.Call(t, "Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		t.Fatal(err)
	}
	return png
}
