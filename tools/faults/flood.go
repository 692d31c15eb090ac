package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// floodTime bounds one call of a flood: many wait for others. memoryCap is what the hub's memory may be then.
const (
	floodTime = 2 * time.Minute
	floodSize = 1 << 20
	memoryCap = 256 << 20
)

var floodPaths = []struct{ path, method, params string }{
	{"a2a", "SendMessage", `{"message":{"messageId":"m%d","role":"ROLE_USER","parts":[{"text":"%s"}],"metadata":{"targetAgent":"echo"}}}`},
	{"", "message/send", `{"message":{"kind":"message","messageId":"m%d","role":"user","metadata":{"targetAgent":"echo"},"parts":[{"kind":"text","text":"%s"}]}}`},
}

// runFloods sends to each interface and returns what was broken: the cap of the hub's memory, an answer of another kind, a health request
// that took over a second.
func runFloods(ctx context.Context, out io.Writer, c campaign, sends, size int, limit int64) (broken []string, err error) {
	for i := range floodPaths {
		more, err := runFlood(ctx, out, c, i, sends, size, limit)
		broken = append(broken, more...)
		if err != nil {
			return broken, err
		}
	}
	return broken, nil
}

// runFlood starts a hub of its own: the peak of its memory is since its start.
func runFlood(ctx context.Context, out io.Writer, c campaign, way, sends, size int, limit int64) (broken []string, err error) {
	dir, err := os.MkdirTemp("", "parley-flood-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	h, err := newHub(ctx, dir, c.program)
	if err != nil {
		return nil, err
	}
	h.env = settings()
	defer h.kill()
	if err := h.start(ctx); err != nil {
		return nil, err
	}
	before, err := peakMemory(h.process.Process.Pid)
	if err != nil {
		return nil, err
	}
	text := strings.Repeat("x", size)
	var answered, refused, failed atomic.Int64
	var unexpected atomic.Value
	client := &http.Client{Timeout: floodTime, Transport: &http.Transport{MaxIdleConnsPerHost: sends}}
	defer client.CloseIdleConnections()
	var wait sync.WaitGroup
	began := time.Now()
	for i := range sends {
		wait.Go(func() {
			switch err := floodOnce(ctx, client, h.url(), way, i, text); {
			case err == nil:
				answered.Add(1)
			case errors.Is(err, errBusy):
				refused.Add(1)
			default:
				failed.Add(1)
				unexpected.Store(err.Error())
			}
		})
	}
	over := make(chan struct{})
	go func() { wait.Wait(); close(over) }()
	slowest := watchHealth(client, h.url(), over)
	took := time.Since(began)
	after, err := peakMemory(h.process.Process.Pid)
	if err != nil {
		return nil, err
	}
	path := "/" + floodPaths[way].path
	fmt.Fprintf(out, "%d sends of %d bytes to %s in %v: %d answered, %d refused as busy, %d failed; the hub had %d MiB before and at most %d MiB; health answered within %v\n",
		sends, size, path, took.Round(time.Millisecond), answered.Load(), refused.Load(), failed.Load(), before>>20, after>>20, slowest.Round(time.Millisecond))
	if after > limit {
		broken = append(broken, fmt.Sprintf("memory: %d MiB with sends to %s, more than %d MiB", after>>20, path, limit>>20))
	}
	if n := failed.Load(); n > 0 {
		broken = append(broken, fmt.Sprintf("flood: %d of %d sends to %s failed: %s", n, sends, path, unexpected.Load()))
	}
	if slowest > time.Second {
		broken = append(broken, fmt.Sprintf("flood: a request for the health took %v", slowest))
	}
	return broken, nil
}

// errBusy says that the hub has refused a request because others use the memory for requests.
var errBusy = errors.New("busy")

func floodOnce(ctx context.Context, client *http.Client, url string, way, number int, text string) error {
	w := floodPaths[way]
	before, after, _ := strings.Cut(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"`+w.method+`","params":`+w.params+`}`, number, "%s"), "%s")
	body := io.MultiReader(strings.NewReader(before), strings.NewReader(text), strings.NewReader(after)) // one text for all
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+w.path, body)
	if err != nil {
		return err
	}
	req.ContentLength = int64(len(before) + len(text) + len(after))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("A2A-Version", "1.0")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it is read below
	head := make([]byte, 200)
	n, err := io.ReadFull(resp.Body, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return err
	}
	if resp.StatusCode == http.StatusServiceUnavailable {
		return errBusy
	}
	rest, err := io.Copy(io.Discard, resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK || int(rest) < len(text):
		return fmt.Errorf("status %d: %s", resp.StatusCode, head[:n])
	}
	return nil
}

// watchHealth asks for the hub's health until over is closed and returns the longest time of an answer.
func watchHealth(client *http.Client, url string, over <-chan struct{}) (slowest time.Duration) {
	var took []time.Duration
	for {
		select {
		case <-over:
			return slices.Max(append(took, 0))
		case <-time.After(50 * time.Millisecond):
		}
		began := time.Now()
		resp, err := client.Get(url + "health")
		if err != nil {
			return floodTime
		}
		_ = resp.Body.Close() // nothing is read
		took = append(took, time.Since(began))
	}
}
