//go:build interop && linux

package page_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parleyhub/parley/test/interop/rig"
)

var figures = flag.Bool("figures", false, "measure the page with many tasks and streams, not with a few")

// TestFigures reports how fast the page paints, and how long its frames take with 10,000 tasks and 100 answers that stream; without
// -figures with 200 tasks only. It asserts no times.
//
//	go test -tags interop ./test/interop/page -run TestFigures -v -args -figures
func TestFigures(t *testing.T) {
	tasks, loads, scrolls := 200, 1, 10
	if *figures {
		tasks, loads, scrolls = 10_000, 7, 200
	}
	h := newHub(t, "")
	b := rig.StartBrowser(t)
	p := h.open(t, b)
	p.Show(t, 1200, 800, false)
	paint(t, p, loads, "an empty hub")
	h.many(t, p, tasks, "echo", "hello")
	paint(t, p, loads, fmt.Sprint(tasks, " tasks"))
	p.Press(t, "3")
	p.Until(t, fmt.Sprintf(`document.querySelector("#many").textContent >= "%d"`, tasks))
	frames(t, p, scrolls, fmt.Sprint(tasks, " tasks"))
	if *figures {
		const streams = 100
		h.many(t, p, streams, "actor", "STREAM")
		p.Until(t, `document.querySelectorAll(".row .busy").length > 5`)
		openRow(t, p, "STREAM")
		p.Until(t, `document.querySelector(".live pre")?.textContent.length > 100`)
		frames(t, p, scrolls, fmt.Sprint(tasks, " tasks and ", streams, " streams"))
	}
	fine(t, p, "measuring")
}

// many gives an agent n tasks over HTTP and does not wait for their ends.
func (h *hub) many(t *testing.T, p *rig.Page, n int, agent, text string) {
	t.Helper()
	var origin string
	p.Eval(t, `location.origin`, &origin)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	defer client.CloseIdleConnections()
	var sent atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := sent.Add(1); i <= int64(n); i = sent.Add(1) {
				body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"%s-%d","role":"user","parts":[{"kind":"text","text":"%s %d"}],"metadata":{"targetAgent":"%s"}},"configuration":{"blocking":%t}}}`,
					agent, i, text, i, agent, agent == "echo")
				if err := post(client, origin, body); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// post calls a method of the hub.
func post(client *http.Client, origin, body string) error {
	resp, err := client.Post(origin+"/", "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(resp.Body)
	var got struct{ Error json.RawMessage }
	if err = errors.Join(err, resp.Body.Close(), json.Unmarshal(answer, &got)); err == nil && got.Error != nil {
		err = fmt.Errorf("%s", got.Error)
	}
	return err
}

// paint loads the page anew some times, without the browser's cache, and reports the times of its first paint and its size.
func paint(t *testing.T, p *rig.Page, loads int, what string) {
	t.Helper()
	var first []float64
	var load struct {
		Paint, Bytes float64
		Files        int
	}
	for range loads {
		p.Eval(t, `window.old = true`, nil)
		p.Call(t, "Page.reload", map[string]any{"ignoreCache": true}, nil)
		p.Until(t, `!window.old && performance.getEntriesByName("first-contentful-paint").length && document.querySelector("#screens button[aria-current]")`)
		p.Eval(t, `(all => ({ paint: performance.getEntriesByName("first-contentful-paint")[0].startTime, files: all.length,
			bytes: all.reduce((n, r) => n + r.encodedBodySize, performance.getEntriesByType("navigation")[0].encodedBodySize) }))(performance.getEntriesByType("resource"))`, &load)
		first = append(first, load.Paint)
	}
	slices.Sort(first)
	t.Logf("%s: first paint %.0f ms (%.0f to %.0f), %d files and answers, %.0f kB", what, first[len(first)/2], first[0], first[len(first)-1], load.Files, load.Bytes/1000)
}

// frames scrolls the list, moves in it by keys and filters it, and reports how long the frames took.
func frames(t *testing.T, p *rig.Page, scrolls int, what string) {
	t.Helper()
	var took struct {
		Median, Most, Tail float64
		Frames, Long       int
		Longest            float64
	}
	p.Eval(t, fmt.Sprintf(`(async () => {
		const list = document.querySelector("#list"), filter = document.querySelector("#filter"), took = [], long = [];
		const seen = new PerformanceObserver(l => long.push(...l.getEntries().map(e => e.duration)));
		seen.observe({ type: "longtask" });
		const key = key => list.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
		let last = performance.now();
		const frame = async () => { const now = await new Promise(requestAnimationFrame); took.push(now - last); last = now; };
		for (let i = 0; i < %d; i++) { list.scrollTop += i %% 20 ? 300 : 20000; await frame(); }
		for (let i = 0; i < 60; i++) { key("j"); await frame(); }
		filter.hidden = false;
		for (const text of ["h", "he", "hel", "hell", "hello", "hello 9", "hello 99", ""]) { filter.value = text; filter.dispatchEvent(new Event("input")); for (let i = 0; i < 5; i++) await frame(); }
		seen.disconnect();
		took.sort((a, b) => a - b);
		return { median: took[took.length >> 1], tail: took[Math.floor(took.length * 0.99)], most: took.at(-1), frames: took.length, long: long.length, longest: Math.max(0, ...long) };
	})()`, scrolls), &took)
	t.Logf("%s: %d frames, median %.0f ms, 99 of 100 within %.0f ms, longest %.0f ms; %d tasks of the page over 50 ms, the longest %.0f ms", what, took.Frames, took.Median, took.Tail, took.Most, took.Long, took.Longest)
}
