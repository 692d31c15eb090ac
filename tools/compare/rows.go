package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// rows returns what is compared.
func (r *rig) rows() []row {
	return slices.Concat(r.a2aRows(), r.toolRows(), r.messageRows(), r.documentRows(), r.agentRows(), r.startRows(), r.benchmarkRows())
}

func (r *rig) a2aRows() []row {
	var rows []row
	for _, callers := range []int{1, 16} {
		for _, kind := range []string{"send", "stream"} {
			at := func(name string, url func() (string, error)) contender {
				return contender{name, func(ctx context.Context, slice time.Duration) (float64, error) {
					u, err := url()
					if err != nil {
						return 0, err
					}
					c := newClient(u)
					defer c.http.CloseIdleConnections()
					call := c.send
					if kind == "stream" {
						call = c.stream
					}
					return rate(ctx, slice, callers, call)
				}}
			}
			rows = append(rows, row{name: fmt.Sprintf("a2a %s, %d at once", kind, callers), unit: "/s",
				ours:  []contender{at("parley commit", echoOf(r.commit)), at("parley fast", echoOf(r.fast))},
				peers: []contender{at("a2a-go in memory", r.sdk), at("@a2a-js/sdk in memory", r.js)}})
		}
	}
	first := func(name string, url func() (string, error)) contender {
		return r.sampled(name, 50, func() (func(context.Context) (time.Duration, error), error) {
			u, err := url()
			if err != nil {
				return nil, err
			}
			return newClient(u).firstEvent, nil
		})
	}
	return append(rows, row{name: "a2a stream, first event, p50", unit: "ms", less: true,
		ours:  []contender{first("parley commit", echoOf(r.commit)), first("parley fast", echoOf(r.fast))},
		peers: []contender{first("a2a-go in memory", r.sdk), first("@a2a-js/sdk in memory", r.js)}})
}

func echoOf(h func() (*hub, error)) func() (string, error) {
	return func() (string, error) {
		hub, err := h()
		if err != nil {
			return "", err
		}
		return hub.echo(), nil
	}
}

// client calls an A2A agent over JSON-RPC.
type client struct {
	url  string
	http *http.Client
}

func newClient(url string) *client {
	return &client{url, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

const request = `{"jsonrpc":"2.0","id":"1","method":"%s","params":{"message":{"messageId":"m-%d","role":"ROLE_USER","parts":[{"text":"hello"}]}}}`

var ids atomic.Int64

// send sends a message and reads the task that has ended.
func (c *client) send(ctx context.Context) error { return c.call(ctx, "SendMessage") }

// stream sends a message and reads the events until the task has ended.
func (c *client) stream(ctx context.Context) error { return c.call(ctx, "SendStreamingMessage") }

func (c *client) call(ctx context.Context, method string) error {
	return c.answer(ctx, method, func() {})
}

// firstEvent sends a message and returns how long the first event of the stream took.
func (c *client) firstEvent(ctx context.Context) (took time.Duration, err error) {
	began := time.Now()
	err = c.answer(ctx, "SendStreamingMessage", func() { took = time.Since(began) })
	return took, err
}

// answer calls a method and reads the task that has ended. first is called when the answer begins.
func (c *client) answer(ctx context.Context, method string, first func()) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(fmt.Appendf(nil, request, method, ids.Add(1))))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("A2A-Version", "1.0")
	answer, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body := bufio.NewReader(answer.Body)
	_, _ = body.Peek(1) // ReadAll reports the error
	first()
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	if !bytes.Contains(text, []byte("TASK_STATE_COMPLETED")) {
		return fmt.Errorf("status %d: %.300s", answer.StatusCode, text)
	}
	return nil
}

// rate returns the calls a second of several callers.
func rate(ctx context.Context, slice time.Duration, callers int, call func(context.Context) error) (float64, error) {
	var done atomic.Int64
	var failed error
	var once sync.Once
	var all sync.WaitGroup
	began := time.Now()
	for range callers {
		all.Go(func() {
			for time.Since(began) < slice {
				if err := call(ctx); err != nil {
					once.Do(func() { failed = err })
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), failed
}
