package hub

import (
	"context"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

const (
	titleTime  = 100 * time.Millisecond // for the title of a task that is read from the store
	titlePause = time.Second            // after one that was not read in time: a list must not wait for each
	maxTitles  = 10_000                 // that are kept
)

// titles are the first lines of tasks that wait for a person: those are not in memory, so each is read once. It is safe for concurrent use.
type titles struct {
	mu   sync.Mutex
	byID map[a2a.TaskID]string
	next time.Time // the store is not asked before
}

// get returns the title of a task. ask is whether it is to be read from the store instead.
func (x *titles) get(id a2a.TaskID) (title string, ask bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	title, known := x.byID[id]
	return title, !known && !time.Now().Before(x.next)
}

// put keeps the title of a task. Beyond maxTitles all are read again.
func (x *titles) put(id a2a.TaskID, title string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byID == nil || len(x.byID) >= maxTitles {
		x.byID = map[a2a.TaskID]string{}
	}
	x.byID[id] = title
}

// pause has the store not be asked for a while.
func (x *titles) pause() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.next = time.Now().Add(titlePause)
}

// titleOf returns the first line of a task, "" if it cannot be read in time.
func (h *Hub) titleOf(id a2a.TaskID) string {
	if t := h.acquireLive(id); t != nil {
		defer h.release(t)
		t.mu.Lock()
		defer t.mu.Unlock()
		return titleIn(t.history)
	}
	title, ask := h.titles.get(id)
	if !ask {
		return title
	}
	ctx, cancel := context.WithTimeout(h.background, titleTime)
	defer cancel()
	rec, err := h.read(ctx, id)
	switch {
	case err == nil:
		title = titleIn(rec.History)
		h.titles.put(id, title)
	case ctx.Err() != nil:
		h.titles.pause()
	}
	return title
}

func titleIn(history []*a2a.Message) string {
	if len(history) == 0 {
		return ""
	}
	return promptLine(history[0].Parts)
}
