package dialect_test

import (
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
)

type fakeSenders []dialect.AllowedSender

func (f *fakeSenders) AllowedSenders() []dialect.AllowedSender { return *f }

func (f *fakeSenders) RevokeSender(id string) (dialect.AllowedSender, error) {
	for i, x := range *f {
		if x.ID == id {
			*f = append((*f)[:i:i], (*f)[i+1:]...)
			return x, nil
		}
	}
	return dialect.AllowedSender{}, &hub.Error{Code: hub.CodeInvalid, Subject: "id", Message: "no such sender"}
}

func TestSendersAreListedAndRevoked(t *testing.T) {
	f := &fakeSenders{{ID: "3f2a", Kind: "peer", Sender: "k", Since: dialect.Time{Time: time.Unix(0, 0)}}}
	s := newService(&fakeHub{}, func(c *dialect.Config) { c.Senders = f })
	const one = `{"id":"3f2a","kind":"peer","sender":"k","since":"1970-01-01T00:00:00.000Z"}`
	if answer, _ := call(t, s, method("hub/senders/list", `{}`)); !strings.Contains(answer, `"result":[`+one+`]`) {
		t.Errorf("the list: %s", answer)
	}
	answer, _ := call(t, s, method("hub/senders/revoke", `{"id":"x"}`))
	wantError(t, answer, -32602, "INVALID_PARAMS", "id")
	if answer, _ = call(t, s, method("hub/senders/revoke", `{"id":"3f2a"}`)); !strings.Contains(answer, one) {
		t.Errorf("revoked: %s", answer)
	}
	if answer, _ = call(t, s, method("hub/senders/list", `{}`)); !strings.Contains(answer, `"result":[]`) {
		t.Errorf("the list: %s", answer)
	}
	for _, name := range []string{"hub/senders/list", "hub/senders/revoke"} { // as over HTTP
		answer, _ := call(t, newService(&fakeHub{}), method(name, `{"id":"3f2a"}`))
		wantError(t, answer, -32601, "METHOD_NOT_FOUND", "")
	}
}
