//go:build unix

package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// BenchmarkViewers measures message/send with and without ten viewers of the screens, in turns on one hub. msg/s is the rate
// without viewers, of-alone that with them relative to it, cpu-of-alone the messages for each second of the processors, which
// other programs on the computer disturb less; all are medians of the turns. A viewer follows the events and loads what waits
// and the latest tasks every three seconds, as the page does on a busy hub; it is in the same process, so that its own
// cost counts too. Every other turn begins with the viewers, since a hub with more tasks is slower.
//
//	go test ./internal/api/server -run '^$' -bench Viewers -benchtime 1x
func BenchmarkViewers(b *testing.B) {
	const viewers, turns, length, senders = 10, 10, 1500 * time.Millisecond, 16
	r := hubWithEcho(b, bus.DurabilityFast)
	transport := &http.Transport{MaxIdleConnsPerHost: senders + 2*viewers}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	sends := func() (n int64) {
		var sent atomic.Int64
		end := time.Now().Add(length)
		var all sync.WaitGroup
		for range senders {
			all.Go(func() {
				for time.Now().Before(end) {
					if err := discard(b.Context(), client, r.url, rpc(1, "message/send", sendParams("hello"))); err != nil {
						b.Error(err)
						return
					}
					sent.Add(1)
				}
			})
		}
		all.Wait()
		return sent.Load()
	}
	sends() // warms up
	type sample struct{ rate, perCPU float64 }
	measured := func() sample {
		cpu, start := processorTime(b), time.Now()
		n := float64(sends())
		return sample{n / time.Since(start).Seconds(), n / (processorTime(b) - cpu).Seconds()}
	}
	var rates, perCPU, alones []float64
	var heard atomic.Int64
	var took int64
	viewed := func() sample {
		before := heap()
		ctx, stop := context.WithCancel(b.Context())
		var all sync.WaitGroup
		for i := range viewers {
			all.Go(func() { heard.Add(view(ctx, client, r.url, loadEvery*time.Duration(i)/viewers)) })
		}
		with := measured()
		took = max(took, heap()-before)
		stop()
		all.Wait()
		return with
	}
	for turn := range b.N * turns {
		var alone, with sample
		if turn%2 == 0 {
			alone, with = measured(), viewed()
		} else {
			with, alone = viewed(), measured()
		}
		rates, perCPU, alones = append(rates, with.rate/alone.rate), append(perCPU, with.perCPU/alone.perCPU), append(alones, alone.rate)
	}
	slices.Sort(alones)
	slices.Sort(rates)
	slices.Sort(perCPU)
	b.ReportMetric(alones[len(alones)/2], "msg/s")
	b.ReportMetric(rates[len(rates)/2], "of-alone")
	b.ReportMetric(perCPU[len(perCPU)/2], "cpu-of-alone")
	b.ReportMetric(float64(took)/(1<<20), "MiB")
	b.ReportMetric(float64(heard.Load())/float64(viewers*b.N*turns), "bytes/viewer")
	b.ReportMetric(0, "ns/op")
}

// processorTime returns the time of the processors that this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// heap returns the bytes of the heap after a collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// discard posts a request and reads the answer.
func discard(ctx context.Context, client *http.Client, url, body string) error {
	req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// loadEvery is how often a page loads on a busy hub.
const loadEvery = 3 * time.Second

// view does what a page does until ctx ends, and returns how many bytes of events it has read. It loads first after some
// time.
func view(ctx context.Context, client *http.Client, url string, first time.Duration) int64 {
	var loads sync.WaitGroup
	defer loads.Wait()
	loads.Go(func() {
		for pause := first; wait.Pause(ctx, pause); pause = loadEvery {
			_ = discard(ctx, client, url, rpc(1, "hub/needs", "{}"))
			_ = discard(ctx, client, url, rpc(1, "hub/tasks/page", `{"limit":60,"historyLength":0}`))
		}
	})
	req, err := http.NewRequestWithContext(ctx, "GET", url+"/events?follow=true&brief=true", nil)
	if err != nil {
		return 0
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	n, _ := io.Copy(io.Discard, resp.Body) // ends with ctx
	_ = resp.Body.Close()
	return n
}
