package hub

import (
	"context"
	"errors"
	"testing"
)

func TestLargeWritesShareABudget(t *testing.T) {
	h := &Hub{writes: newWrites()}
	all, err := h.reserveWrite(t.Context(), maxWrites+1) // larger than the budget: alone
	if err != nil {
		t.Fatal(err)
	}
	small, err := h.reserveWrite(t.Context(), smallWrite) // needs nothing
	if err != nil {
		t.Fatal(err)
	}
	small()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.reserveWrite(ctx, smallWrite+1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	all()
	some, err := h.reserveWrite(t.Context(), smallWrite+1)
	if err != nil {
		t.Fatal(err)
	}
	some()
}
