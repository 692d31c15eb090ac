package ralph_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/parleyhub/parley/ralph"
)

// shout is a Dispatcher that completes work at once.
type shout struct{}

func (shout) Dispatch(_ context.Context, j ralph.Job, begins func(ref string) error) (ralph.Outcome, error) {
	if err := begins(j.Item.ID); err != nil {
		return ralph.Outcome{}, err
	}
	fmt.Println(strings.ToUpper(j.Item.Text), "attempt", j.Attempt)
	return ralph.Outcome{Text: "done"}, nil
}

func (s shout) Resume(ctx context.Context, j ralph.Job, ref string) (ralph.Outcome, error) {
	return s.Dispatch(ctx, j, func(string) error { return nil })
}

// secondTry is a Validator that accepts the second attempt of an item.
type secondTry struct{}

func (secondTry) Validate(_ context.Context, j ralph.Job, _ ralph.Outcome) (ralph.Verdict, error) {
	return ralph.Verdict{OK: j.Attempt == 2, Report: "the tests fail"}, nil
}

// A loop works through a Markdown list and ticks its boxes.
func Example() {
	dir, err := os.MkdirTemp("", "ralph")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "todo.md")
	if err := os.WriteFile(path, []byte("- [x] plan\n- [ ] build\n"), 0o600); err != nil {
		panic(err)
	}

	list, err := ralph.Open(path)
	if err != nil {
		panic(err)
	}
	loop, err := ralph.New(ralph.Options{
		List: list, Dispatcher: shout{}, Validator: secondTry{}, StateFile: filepath.Join(dir, "loop.json"),
	})
	if err != nil {
		panic(err)
	}
	summary, err := loop.Run(context.Background())
	if err != nil {
		panic(err)
	}
	ticked, err := os.ReadFile(path)
	fmt.Printf("%d completed, %v\n%s", summary.Completed, err, ticked)
	// Output:
	// BUILD attempt 1
	// BUILD attempt 2
	// 1 completed, <nil>
	// - [x] plan
	// - [x] build
}
