package push

import "github.com/a2aproject/a2a-go/v2/a2a"

// These are exported to the tests in package push_test.
var (
	NewClient  = newClient
	ErrBlocked = errBlocked
	Public     = public
	EncodeKey  = func(task, id string) string { return encodeKey(key{a2a.TaskID(task), id}) }
	DecodeKey  = func(s string) (task, id string, ok bool) { k, ok := decodeKey(s); return string(k.task), k.id, ok }
	Encode     = encode
)
