package hub

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/edits"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// HeldFile is a file that another agent has claimed exclusively.
type HeldFile struct {
	Path   string // as it was asked for
	Holder string // the agent's name
	Until  string // ISO 8601
	// Held says who holds it, why, and until when, Ask how to get it. The reason is the holder's words, quoted as such.
	Held, Ask string
}

const (
	claimTime = time.Second // for one check of claims
	maxHeld   = 3           // files that a refusal names
	maxEdited = 2000        // files of a turn that are checked once they were changed
)

// Claimed implements runner.Guard. On any doubt the tool may run.
func (h *handler) Claimed(ctx context.Context, call runner.ToolCall) (refusal runner.Refusal) {
	tn := (*turn)(h)
	tn.task.mu.Lock()
	call = tn.tools[call.ID].Update(call) // the request may leave out what is known
	tn.task.mu.Unlock()
	held := tn.held(ctx, tn.filesOf(call))
	if len(held) == 0 {
		return refusal
	}
	var reasons, names []string
	for _, f := range held[:min(len(held), maxHeld)] {
		reasons = append(reasons, f.Held+" "+f.Ask)
		names = append(names, fmt.Sprintf("%q, which %s holds until %s", shown(f.Path), f.Holder, f.Until), f.Ask)
	}
	const why = "Parley: nothing was changed, because another agent has claimed a file. "
	tn.task.mu.Lock()
	for _, f := range held[:min(len(held), maxHeld)] {
		tn.task.notice(fmt.Sprintf("a change of %q was refused: the agent %s has claimed it until %s", shown(f.Path), f.Holder, f.Until))
	}
	tn.task.flushSoon()
	tn.task.mu.Unlock()
	return runner.Refusal{Text: why + strings.Join(reasons, " "), Plain: why + strings.Join(names, " ")}
}

// filesOf returns the files that a tool changes.
func (tn *turn) filesOf(call runner.ToolCall) []string {
	files := edits.Files(call.Name, call.Input, tn.dir)
	for _, path := range edits.Absolute(call.Files, tn.dir) {
		if !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	return files[:min(len(files), edits.MaxFiles)]
}

// held returns those of the files that other agents hold.
func (tn *turn) held(ctx context.Context, files []string) []HeldFile {
	check := tn.task.hub.cfg.HeldFiles
	if check == nil || len(files) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, claimTime)
	defer cancel()
	held, err := check(ctx, tn.task.agentID, tn.task.contextID, files)
	if err != nil {
		tn.task.hub.log.Debug("it is not known whether files are claimed", "task", tn.task.id, "error", err)
	}
	return held
}

// edited notes the files that a tool has changed, to say whether other agents held them: some programs do not ask before. mu is held.
func (tn *turn) edited(call runner.ToolCall) {
	if call.Status != runner.ToolCompleted || tn.task.hub.cfg.HeldFiles == nil {
		return
	}
	for _, path := range tn.filesOf(call) {
		if len(tn.checked) >= maxEdited || tn.checked[path] {
			continue
		}
		if tn.checked == nil {
			tn.checked = make(map[string]bool)
		}
		tn.checked[path] = true
		tn.toCheck = append(tn.toCheck, path)
	}
	if len(tn.toCheck) > 0 && !tn.checking {
		tn.checking = true
		tn.checks.Go(tn.checkEdited)
	}
}

// checkEdited adds notices about changed files that other agents hold, until none waits to be checked.
func (tn *turn) checkEdited() {
	t := tn.task
	for {
		t.mu.Lock()
		files := tn.toCheck[:min(len(tn.toCheck), edits.MaxFiles)]
		tn.toCheck = tn.toCheck[len(files):]
		tn.checking = len(files) > 0
		t.mu.Unlock()
		if len(files) == 0 {
			return
		}
		held := tn.held(context.WithoutCancel(tn.ctx), files)
		t.mu.Lock()
		for _, f := range held {
			t.notice(fmt.Sprintf("%q was changed, although the agent %s has claimed it until %s: the program did not ask before", shown(f.Path), f.Holder, f.Until))
		}
		t.flushSoon()
		t.mu.Unlock()
	}
}

// shown returns a path for a notice: its last names.
func shown(path string) string {
	dir, name := filepath.Split(path)
	return text.Clip(strings.ToValidUTF8(filepath.Join(filepath.Base(dir), name), "\uFFFD"), 200)
}
