package screens_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/screens"
	"github.com/parleyhub/parley/internal/hub/events"
)

func TestScreensAndKeysAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for i, s := range screens.All() {
		if s.Key != strconv.Itoa(i+1) || s.Title == "" || s.Shows == "" || s.None == "" || s.Method == "" || seen[s.ID] {
			t.Errorf("screen %d: %+v", i+1, s)
		}
		seen[s.ID], seen[s.Key] = true, true
	}
	if len(screens.All()) != 9 {
		t.Errorf("%d screens", len(screens.All()))
	}
	for _, k := range screens.Keys() {
		if seen[k.Key] || k.Word == "" || k.Does == "" {
			t.Errorf("key %+v", k)
		}
		seen[k.Key] = true
	}
}

func TestStatesHaveRolesAndSigns(t *testing.T) {
	for state, want := range map[string]screens.Role{
		"failed": screens.Bad, "completed": screens.Good, "input-required": screens.Waits, "working": screens.Busy, "anything": screens.Plain,
	} {
		if got := screens.RoleOf(state); got != want {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
		if screens.Mark(state) == "" {
			t.Errorf("%s has no sign", state)
		}
	}
}

func TestTheContractIsData(t *testing.T) {
	raw, err := json.Marshal(screens.Data())
	if err != nil {
		t.Fatal(err)
	}
	var got screens.Contract
	if err := json.Unmarshal(raw, &got); err != nil || len(got.Screens) != 9 || got.States["failed"] != screens.Bad || got.Marks[screens.Bad] == "" || got.Words["task.state"] != screens.Word("task.state") {
		t.Errorf("%s, %v", raw, err)
	}
}

func TestPeopleReadWordsForNames(t *testing.T) {
	for name, want := range map[string]string{"input-required": "waits for you", "deadletter": "failed work", "completed": "completed"} {
		if got := screens.Word(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, k := range events.Kinds() {
		if w := screens.Word(string(k)); strings.ContainsAny(w, ".-_") || len(w) > 19 {
			t.Errorf("%s is %q on the timeline", k, w)
		}
	}
	for name := range screens.Words() {
		if role := screens.RoleOf(screens.Word(name)); role != screens.Plain {
			t.Errorf("the word of %s is a state", name)
		}
	}
}
