package budget_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/internal/base/budget"
)

func TestABudgetIsNeverExceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(100, time.Second)
		whole, err := b.Acquire(t.Context(), 1000) // more than there is: all of it
		if err != nil || b.Total() != 100 {
			t.Fatal(err, b.Total())
		}
		begin := time.Now()
		if _, err := b.Acquire(t.Context(), 1); !errors.Is(err, budget.ErrSpent) || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		whole.Shrink(200) // no more than it has
		whole.Shrink(60)
		if _, err := b.Acquire(t.Context(), 41); !errors.Is(err, budget.ErrSpent) {
			t.Error(err)
		}
		rest, err := b.Acquire(t.Context(), 40)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Second / 2)
			whole.Release()
			whole.Release()
		}()
		next, err := b.Acquire(t.Context(), 60) // waits for it
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.Acquire(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		rest.Release()
		next.Release()
		none := (*budget.Share)(nil)
		none.Release()
		if again, err := b.Acquire(t.Context(), 100); err != nil {
			t.Error(err)
		} else {
			again.Release()
		}
	})
}

func TestWhatIsStoredGivesMemoryBack(t *testing.T) {
	b := budget.New(100, time.Millisecond)
	share, err := b.Acquire(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	budget.Stored(t.Context()) // of a request without a share
	budget.Stored(budget.WithShare(t.Context(), nil, 1))
	budget.Stored(budget.WithShare(t.Context(), share, 30))
	rest, err := b.Acquire(t.Context(), 70)
	if err != nil {
		t.Fatal(err)
	}
	rest.Release()
	share.Release()
}
