package registry_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/registry"
)

// An entry that differs in any field but the heartbeat's time says something new.
func TestOnlyTheTimeOfAHeartbeatIsNoNews(t *testing.T) {
	entry := registry.Entry{GUID: "g", Handle: "ann", Capabilities: []string{"go"}, LastHeartbeat: "then"}
	for i := range reflect.TypeFor[registry.Entry]().NumField() {
		later := entry
		later.Capabilities = slices.Clone(entry.Capabilities)
		field := reflect.ValueOf(&later).Elem().Field(i)
		switch field.Kind() {
		case reflect.String:
			field.SetString("other")
		case reflect.Float64:
			field.SetFloat(7)
		case reflect.Slice:
			later.Capabilities[0] = "rust"
		default:
			t.Fatalf("a field of kind %s", field.Kind())
		}
		name := reflect.TypeFor[registry.Entry]().Field(i).Name
		if got := entry.OnlyBeat(&later); got != (name == "LastHeartbeat") {
			t.Errorf("with another %s: %t", name, got)
		}
	}
}
