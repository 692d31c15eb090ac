package fault_test

import (
	"errors"
	"fmt"
	"io"
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
