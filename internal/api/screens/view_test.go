package screens_test

import (
	"testing"

	"github.com/parleyhub/parley/internal/api/screens"
)

func TestARequestMayBeViewOnly(t *testing.T) {
	if screens.ViewOnly(t.Context()) {
		t.Error("a request is view-only by itself")
	}
	if !screens.ViewOnly(screens.WithViewOnly(t.Context())) {
		t.Error("a view-only request may change something")
	}
}
