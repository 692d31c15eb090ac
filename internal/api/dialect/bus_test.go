package dialect_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/bus"
)

// gate is a Gate with results that the test sets.
type gate struct {
	asked   bus.GrantRequest
	revoked string
	grant   bus.Grant
	err     error
}

func (g *gate) Grant(_ context.Context, req bus.GrantRequest) (bus.Grant, error) {
	g.asked = req
	return g.grant, g.err
}

func (g *gate) Revoke(user string) error {
	g.revoked = user
	return g.err
}

func TestBusMethodsNeedAGate(t *testing.T) {
	s := newService(&fakeHub{})
	wantErrorOf := func(request string) {
		answer, _ := call(t, s, request)
		wantError(t, answer, -32601, "METHOD_NOT_FOUND", "")
	}
	wantErrorOf(method("hub/bus/join", `{"namespace":"a"}`))
	wantErrorOf(method("hub/bus/leave", `{"user":"a"}`))
}

func TestBusJoinAndLeave(t *testing.T) {
	g := &gate{grant: bus.Grant{
		User: "ns-a.1", Password: "secret", Expires: time.Date(2026, 11, 21, 6, 50, 1, 0, time.UTC),
		Address: "127.0.0.1:36313", StoreDir: "/home/me/.a2a-hub/bus", Durability: bus.DurabilityCommit, PID: 4711,
	}}
	s := newService(&fakeHub{}, func(c *dialect.Config) { c.Gate = g })
	answer, _ := call(t, s, method("hub/bus/join", `{"namespace":"a","access":"project"}`))
	const want = `{"address":"127.0.0.1:36313","user":"ns-a.1","password":"secret","expires":"2026-11-21T06:50:01.000Z",` +
		`"storeDir":"/home/me/.a2a-hub/bus","durability":"commit","pid":4711}`
	if !strings.Contains(answer, want) || !reflect.DeepEqual(g.asked, bus.GrantRequest{Access: bus.AccessProject, Namespace: "a"}) {
		t.Errorf("the gate received %+v; the answer is %s", g.asked, answer)
	}
	answer, _ = call(t, s, method("hub/bus/leave", `{"user":"ns-a.1"}`))
	if !strings.Contains(answer, `"status":"left"`) || g.revoked != "ns-a.1" {
		t.Errorf("the gate revoked %q; the answer is %s", g.revoked, answer)
	}
}

func TestBusErrors(t *testing.T) {
	for _, tt := range []struct {
		request string
		err     error
		code    int
		name    string
		field   string
	}{
		{method("hub/bus/join", `{"namespace":1}`), nil, -32602, "INVALID_PARAMS", "namespace"},
		{method("hub/bus/join", `[]`), nil, -32602, "INVALID_PARAMS", ""},
		{method("hub/bus/leave", `{}`), nil, -32602, "INVALID_PARAMS", "user"},
		{method("hub/bus/leave", `{"user":"x"}`), &bus.Error{Code: bus.CodeUnsupported}, -32005, "UNSUPPORTED_OPERATION", ""},
		{method("hub/bus/join", `{"namespace":"global"}`), &bus.Error{Code: bus.CodeConfig, Message: "reserved"}, -32602, "INVALID_PARAMS", ""},
		{method("hub/bus/join", `{"namespace":"a"}`), &bus.Error{Code: bus.CodeLimit}, -32000, "SERVER_BUSY", ""},
		{method("hub/bus/join", `{"namespace":"a"}`), &bus.Error{Code: bus.CodeUnsupported}, -32005, "UNSUPPORTED_OPERATION", ""},
		{method("hub/bus/join", `{"access":"cluster"}`), &bus.Error{Code: bus.CodeNotRunning}, -32004, "CLUSTER_UNAVAILABLE", ""},
	} {
		s := newService(&fakeHub{}, func(c *dialect.Config) { c.Gate = &gate{err: tt.err} })
		answer, _ := call(t, s, tt.request)
		wantError(t, answer, tt.code, tt.name, tt.field)
	}
	for _, err := range []error{errors.New("disk"), &bus.Error{Code: bus.CodeStorage, Message: "the hub's own fault"}} {
		s := newService(&fakeHub{}, func(c *dialect.Config) { c.Gate = &gate{err: err} })
		if answer, _ := call(t, s, method("hub/bus/join", `{"namespace":"a"}`)); strings.Contains(answer, err.Error()) {
			t.Errorf("the answer contains the cause: %s", answer)
		}
	}
}

// admission keeps what an agent has asked for.
type admission struct{ asked dialect.NetworkJoinParams }

func (a *admission) Admit(_ context.Context, p dialect.NetworkJoinParams) (dialect.NetworkGrant, error) {
	a.asked = p
	return dialect.NetworkGrant{}, nil
}

// A field that is not read would give an agent the identity of another one.
func TestEveryFieldOfAJoinArrives(t *testing.T) {
	var sent dialect.NetworkJoinParams
	fields := reflect.ValueOf(&sent).Elem()
	for i := range fields.NumField() {
		switch f := fields.Field(i); f.Kind() {
		case reflect.String:
			f.SetString(fields.Type().Field(i).Name)
		case reflect.Int:
			f.SetInt(int64(i + 1))
		case reflect.Bool:
			f.SetBool(true)
		default:
			t.Fatalf("%s is a %s", fields.Type().Field(i).Name, f.Kind())
		}
	}
	params, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	a := &admission{}
	s := newService(&fakeHub{}, func(c *dialect.Config) { c.Admission = a })
	answer, _ := call(t, s, method("hub/network/join", string(params)))
	if a.asked != sent {
		t.Errorf("%+v arrived of %+v; the answer is %s", a.asked, sent, answer)
	}
}
