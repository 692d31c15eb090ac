package hub_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/hub"
)

// The test compares pages with those of a plain loop over all tasks.
func TestTasksSelectsLikeAPlainFilter(t *testing.T) {
	h := newHub(t, hub.Config{BreakerFailures: 1 << 20}, map[string]*fakeAgent{"a": actor(), "b": actor()})
	var model []*a2a.Task
	agents := map[a2a.TaskID]string{}
	for i := range 300 {
		agent := []string{"a", "b"}[i%2]
		m := message([]string{"say:x", "fail", "input", "auth"}[i%4])
		m.ContextID = fmt.Sprintf("c%d", i%7)
		task := send(t, h, hub.SendRequest{AgentID: agent, Message: m})
		agents[task.ID] = agent
		model = append(model, task)
	}
	for _, i := range []int{2, 50, 122} { // changed tasks are listed first
		model = append(model, send(t, h, follow(model[i], "say:x")))
		model[i] = nil
	}
	model = slices.DeleteFunc(model, func(t *a2a.Task) bool { return t == nil })
	slices.Reverse(model)

	rapid.Check(t, func(rt *rapid.T) {
		q := hub.TaskQuery{
			AgentID:   rapid.SampledFrom([]string{"", "a", "b", "none"}).Draw(rt, "agent"),
			ContextID: rapid.SampledFrom([]string{"", "c0", "c3", "none"}).Draw(rt, "context"),
			State:     rapid.SampledFrom([]a2a.TaskState{"", a2a.TaskStateCompleted, a2a.TaskStateInputRequired, a2a.TaskStateWorking}).Draw(rt, "state"),
			Limit:     rapid.IntRange(1, 100).Draw(rt, "limit"),
			Offset:    rapid.SampledFrom([]int{0, 0, 1, 30, 1000}).Draw(rt, "offset"),
		}
		if rapid.Bool().Draw(rt, "after") {
			q.After = *model[rapid.IntRange(0, len(model)-1).Draw(rt, "since")].Status.Timestamp
		}
		var want []a2a.TaskID
		for _, m := range model {
			if (q.AgentID == "" || agents[m.ID] == q.AgentID) && (q.ContextID == "" || m.ContextID == q.ContextID) &&
				(q.State == "" || m.Status.State == q.State) && !m.Status.Timestamp.Before(q.After) {
				want = append(want, m.ID)
			}
		}
		total := len(want)
		want = want[min(q.Offset, len(want)):]
		var got []a2a.TaskID
		for {
			page, err := h.Tasks(context.Background(), q)
			if err != nil {
				rt.Fatal(err)
			}
			if page.Total != total {
				rt.Fatalf("%+v: total %d, want %d", q, page.Total, total)
			}
			if len(page.Tasks) > q.Limit {
				rt.Fatalf("%d tasks on a page of %d", len(page.Tasks), q.Limit)
			}
			for _, task := range page.Tasks {
				got = append(got, task.ID)
				if task.Artifacts != nil {
					rt.Fatal("artifacts without IncludeArtifacts")
				}
			}
			if page.NextCursor == "" {
				break
			}
			if len(page.Tasks) != q.Limit {
				rt.Fatalf("the page of %d tasks should be the last one", len(page.Tasks))
			}
			q.Cursor = page.NextCursor
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("%+v: got %v, want %v", q, got, want)
		}
	})
}

func TestACursorStaysValidWhileTasksAreAdded(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor()})
	old := map[a2a.TaskID]bool{}
	for range 50 {
		old[send(t, h, request("a", "say:x")).ID] = true
	}
	seen := map[a2a.TaskID]bool{}
	q := hub.TaskQuery{Limit: 7}
	for {
		page, err := h.Tasks(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range page.Tasks {
			if seen[task.ID] || !old[task.ID] {
				t.Errorf("task %s is listed twice, or was added later", task.ID)
			}
			seen[task.ID] = true
		}
		if page.NextCursor == "" {
			break
		}
		q.Cursor = page.NextCursor
		for range 10 {
			send(t, h, request("a", "say:new"))
		}
	}
	if len(seen) != len(old) {
		t.Errorf("%d of %d tasks seen", len(seen), len(old))
	}
}

// A page of long answers has fewer tasks than its limit; the cursor continues after them.
func TestAPageIsBoundedInBytes(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": echo()})
	const tasks, size = 12, 1 << 20
	long := strings.Repeat("x", size)
	sent := map[a2a.TaskID]bool{}
	for range tasks {
		sent[send(t, h, request("a", long)).ID] = true
	}
	q := hub.TaskQuery{Limit: 1000} // a task's size is that of its prompt, its answer and its last status
	pages := 0
	for {
		page, err := h.Tasks(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		pages++
		if n := len(page.Tasks); n == 0 || n*2*size > 20<<20 {
			t.Fatalf("%d tasks of %d bytes on a page", n, 2*size)
		}
		if page.Total != tasks {
			t.Errorf("total %d, want %d", page.Total, tasks)
		}
		for _, task := range page.Tasks {
			if !sent[task.ID] {
				t.Errorf("task %s is listed twice, or was never sent", task.ID)
			}
			delete(sent, task.ID)
		}
		if page.NextCursor == "" {
			break
		}
		q.Cursor = page.NextCursor
	}
	if pages < 2 || len(sent) > 0 {
		t.Errorf("%d pages, %d tasks not listed", pages, len(sent))
	}
}

func TestTasksRefusesInvalidQueries(t *testing.T) {
	h := newHub(t, hub.Config{}, nil)
	minus := -1
	for field, q := range map[string]hub.TaskQuery{
		"limit":         {Limit: 1001},
		"offset":        {Offset: -1},
		"state":         {State: "TASK_STATE_DREAMING"},
		"historyLength": {HistoryLength: &minus},
		"cursor":        {Cursor: "????"},
	} {
		_, err := h.Tasks(t.Context(), q)
		if he, _ := err.(*hub.Error); he == nil || he.Code != hub.CodeInvalid || he.Subject != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := h.Tasks(t.Context(), hub.TaskQuery{Cursor: "AAAAAAAAAAA"}); hub.CodeOf(err) != hub.CodeInvalid {
		t.Errorf("an empty cursor: %v", err)
	}
	if _, err := h.Task(t.Context(), "x", &minus); hub.CodeOf(err) != hub.CodeInvalid {
		t.Errorf("historyLength of a task: %v", err)
	}
	if _, err := h.Contexts(t.Context(), -1); hub.CodeOf(err) != hub.CodeInvalid {
		t.Errorf("limit of contexts: %v", err)
	}
	page, err := h.Tasks(t.Context(), hub.TaskQuery{})
	if err != nil || page.Tasks == nil || len(page.Tasks) != 0 {
		t.Errorf("of none: %+v, %v", page, err)
	}
}

// HUB-CONTEXT-TASKS.
func TestContextsAreListedByLastUse(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor(), "b": actor()})
	in := func(context, agent string) a2a.TaskID {
		m := message("say:x")
		m.ContextID = context
		return send(t, h, hub.SendRequest{AgentID: agent, Message: m}).ID
	}
	one, _, three := in("c1", "b"), in("c2", "a"), in("c1", "a")
	infos, err := h.Contexts(t.Context(), 0)
	if err != nil || len(infos) != 2 {
		t.Fatalf("Contexts = %+v, %v", infos, err)
	}
	c := infos[0]
	if c.ID != "c1" || !slices.Equal(c.AgentIDs, []string{"b", "a"}) || !slices.Equal(c.TaskIDs, []a2a.TaskID{one, three}) ||
		!c.ExpiresAt.Equal(c.LastUsedAt.Add(30*24*time.Hour)) || c.CreatedAt.After(c.LastUsedAt) {
		t.Errorf("context %+v", c)
	}
	if infos, err := h.Contexts(t.Context(), 1); err != nil || len(infos) != 1 {
		t.Errorf("Contexts(1) = %+v, %v", infos, err)
	}
	if s := h.Status(); s.TotalTasks != 3 || s.ActiveTasks != 0 || len(s.Agents) != 2 || s.StartedAt.IsZero() {
		t.Errorf("Status = %+v", s)
	}
}

func TestIDsAreFoundByTheirBeginningsAndEnds(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor()})
	in := func(contextID string) *a2a.Task {
		m := message("say:x")
		m.ContextID = contextID
		return send(t, h, hub.SendRequest{AgentID: "a", Message: m})
	}
	first, second := in("talk"), in("other")
	id := string(first.ID)
	for part, want := range map[string][]a2a.TaskID{
		"": {second.ID, first.ID}, id: {first.ID}, strings.ToUpper(id[28:]): {first.ID}, id[:35]: {first.ID}, "no": {}, id + "0": {},
	} {
		if got := h.TasksLike(part, 10); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", part, got, want)
		}
	}
	if got := h.TasksLike("", 1); !slices.Equal(got, []a2a.TaskID{second.ID}) {
		t.Errorf("the newest: %v", got)
	}
	if got := h.ContextsLike("tal", 10); !slices.Equal(got, []string{"talk"}) {
		t.Errorf("contexts: %v", got)
	}
}
