package a2a

import (
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// Large answers are encoded one after the other; small ones wait for nobody.
func TestLargeAnswersShareABudget(t *testing.T) {
	s := New(Options{})
	all := s.reserveEncoding(maxEncodings + 1)
	s.reserveEncoding(smallAnswer)()
	waiting := make(chan struct{})
	go func() {
		s.reserveEncoding(smallAnswer + 1)()
		close(waiting)
	}()
	all()
	<-waiting
}

func TestTheSizeOfAResultIsThatOfItsContent(t *testing.T) {
	task := &a2a.Task{History: []*a2a.Message{a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(strings.Repeat("x", 1000)))}}
	for _, result := range []any{task, a2a.StreamResponse{Event: task}, &a2a.ListTasksResponse{Tasks: []*a2a.Task{task}}} {
		if n := resultSize(result); n < 1000 || n > 1100 {
			t.Errorf("%T: %d bytes", result, n)
		}
	}
	if n := resultSize(nil); n != 0 {
		t.Errorf("nothing: %d bytes", n)
	}
}
