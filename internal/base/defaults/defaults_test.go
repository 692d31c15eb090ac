package defaults_test

import (
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/base/defaults"
)

func TestDefaultsReplaceNumbersThatAreNotPositive(t *testing.T) {
	for given, want := range map[int]int{-1: 7, 0: 7, 1: 1, 9: 9} {
		got := given
		defaults.Set(&got, 7)
		if or := defaults.Or(given, 7); got != want || or != want {
			t.Errorf("%d becomes %d and %d, want %d", given, got, or, want)
		}
	}
	if got := defaults.Or(time.Duration(0), time.Second); got != time.Second {
		t.Errorf("a zero duration becomes %v", got)
	}
}
