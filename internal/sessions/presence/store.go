package presence

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/wait"
)

const (
	fileVersion = 1
	// savePause is the least time between two writes of the file. What a kill of the hub loses of it, the next report of the
	// hook or the MCP server repairs.
	savePause = time.Second
)

type stored struct {
	Sessions []*Session `json:"sessions"`
	Quiet    []string   `json:"quiet,omitempty"`

	Threads []threadAgent `json:"threads,omitempty"`
}

// Open reads the records of the hub's last run. What the sessions do now is unknown then.
func Open(o Options) (*Records, error) {
	if o.Alive == nil {
		o.Alive = Process.Alive
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Records{opts: o, dirty: make(chan struct{}, 1)}
	if o.Path == "" {
		return r, nil
	}
	f, err := r.file().Read()
	if err != nil {
		return nil, err
	}
	r.list = slices.DeleteFunc(f.Sessions, func(s *Session) bool { return s == nil })
	r.list = r.list[:min(len(r.list), maxSessions)]
	r.quiet = f.Quiet[:min(len(f.Quiet), maxQuiet)]
	r.threads = f.Threads[:min(len(f.Threads), maxThreads)]
	for _, s := range r.list {
		s.State = ""
	}
	return r, nil
}

// Run writes the file when something has changed, until ctx ends. It returns the last error; the records are right all the
// same.
func (r *Records) Run(ctx context.Context) (err error) {
	for {
		select {
		case <-r.dirty:
			err = r.save()
		case <-ctx.Done():
			if len(r.dirty) > 0 {
				err = r.save()
			}
			return err
		}
		wait.Pause(ctx, savePause)
	}
}

func (r *Records) save() error {
	if r.opts.Path == "" {
		return nil
	}
	r.saving.Lock()
	defer r.saving.Unlock()
	r.mu.Lock()
	data, err := json.Marshal(stored{r.list, r.quiet, r.threads}) // which others change meanwhile
	r.mu.Unlock()
	if err != nil {
		return err
	}
	return r.file().WriteJSON(data)
}

func (r *Records) file() statefile.File[stored] {
	return statefile.File[stored]{Path: r.opts.Path, Version: fileVersion, Loss: "open sessions report again", Damaged: r.opts.Damaged}
}
