package fault_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/base/fault"
)

type code string

type detailed struct {
	fault.ToolError[code]
	Detail int
}

func TestErrorText(t *testing.T) {
	for want, err := range map[string]error{
		"m":      &fault.Error[code]{Message: "m", Remedy: "r"},
		"m: EOF": &fault.Error[code]{Message: "m", Err: io.EOF},
		"u":      &fault.UserError[code]{Message: "u", Err: io.EOF},
		"u; r":   &fault.UserError[code]{Message: "u", Remedy: "r", Err: io.EOF},
		"T. R.":  &fault.ToolError[code]{Message: "T.", Remedy: "R.", Err: io.EOF},
	} {
		if err.Error() != want {
			t.Errorf("text %q, want %q", err, want)
		}
	}
}

func TestCodeOf(t *testing.T) {
	type other string
	for _, err := range []error{
		&fault.Error[code]{Code: "C"},
		&fault.UserError[code]{Code: "C"},
		&detailed{ToolError: fault.ToolError[code]{Code: "C"}},
		fmt.Errorf("wrapped: %w", &fault.Error[other]{Code: "O", Err: &fault.Error[code]{Code: "C"}}),
	} {
		if got := fault.CodeOf[code](err); got != "C" {
			t.Errorf("code of %#v: %q", err, got)
		}
	}
	for _, err := range []error{nil, io.EOF, &fault.Error[other]{Code: "O"}} {
		if got := fault.CodeOf[code](err); got != "" {
			t.Errorf("code of %v: %q", err, got)
		}
	}
	if err := error(&fault.UserError[code]{Err: io.EOF}); !errors.Is(err, io.EOF) {
		t.Error("the cause is not found")
	}
}

func TestToolErrorsExplainThemselves(t *testing.T) {
	err := (&fault.ToolError[code]{Code: "C", Message: "There is no x.", RetryAfter: time.Second, Err: io.EOF}).WithRemedy("Use %s.", "y")
	if category, message, remedy := err.Explain(); category != "C" || message != "There is no x." || remedy != "Use y." {
		t.Errorf("explained as %q, %q, %q", category, message, remedy)
	}
	if err.RetryIn() != time.Second || !errors.Is(err, io.EOF) {
		t.Errorf("retry in %v, cause %v", err.RetryIn(), err.Err)
	}
	if err := error(&fault.Error[code]{Err: io.EOF}); !errors.Is(err, io.EOF) {
		t.Error("the cause is not found")
	}
}

func TestTextOfReadsACodeOfAnyType(t *testing.T) {
	type other string
	for err, want := range map[error]string{
		fmt.Errorf("wrapped: %w", &fault.Error[code]{Code: "C"}): "C",
		&fault.UserError[other]{Code: "O"}:                       "O",
		&detailed{ToolError: fault.ToolError[code]{Code: "T"}}:   "T",
		io.EOF: "",
	} {
		if got := fault.TextOf(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

func TestPanicsAreCaught(t *testing.T) {
	if p := fault.Catch(func() {}); p != nil {
		t.Errorf("caught %v, but nothing panicked", p)
	}
	p := fault.Catch(func() { panic("too hot") })
	if p == nil || p.Value != "too hot" || !strings.Contains(p.Detail(), "too hot") || !strings.Contains(p.Detail(), "TestPanicsAreCaught") {
		t.Errorf("caught %v", p)
	}
	if err := fault.CatchError(func() error { return io.EOF }); err != io.EOF {
		t.Errorf("the error is %v", err)
	}
	err := fault.CatchError(func() error { panic(io.EOF) })
	if caught, ok := errors.AsType[*fault.Panic](err); !ok || caught.Value != io.EOF || err.Error() != "panic: EOF" {
		t.Errorf("the panic is %v", err)
	}
	if err := fault.CatchError(func() error { return nil }); err != nil {
		t.Errorf("an error without a failure: %v", err)
	}
}
