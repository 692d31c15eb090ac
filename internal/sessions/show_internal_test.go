package sessions

import (
	"slices"
	"sync"
	"testing"
)

// A state that changes while it is shown is shown again: another caller has shown the new one meanwhile, and this one the old one after it.
func TestAStateThatChangesMeanwhileIsShownAgain(t *testing.T) {
	var mu sync.Mutex
	quiet := false
	var shown []bool
	if err := show(&mu, func() bool { return quiet }, func(now bool) error {
		if len(shown) == 0 {
			mu.Lock()
			quiet = true
			mu.Unlock()
			shown = append(shown, true) // by the other one
		}
		shown = append(shown, now)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(shown, []bool{true, false, true}) {
		t.Errorf("it was shown as %v", shown)
	}
}
