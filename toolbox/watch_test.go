package toolbox_test

import (
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/toolbox"
)

func TestAWatchCountsTheChangesThatItsCallerSees(t *testing.T) {
	box := toolbox.New(toolbox.Options{})
	changed := 0
	watch := box.Watch("", func() { changed++ })
	counts := func() [4]int {
		tools, resources, prompts := watch.Changes()
		return [4]int{int(tools), int(resources), int(prompts), changed}
	}
	venus, err := box.Provider("venus")
	if err != nil {
		t.Fatal(err)
	}
	prompt := func(name string) {
		t.Helper()
		if err := venus.AddPrompt(&mcp.Prompt{Name: name, Description: "Asks for a review."}, "Review."); err != nil {
			t.Fatal(err)
		}
	}
	load := toolbox.Text(nil)
	for _, step := range []struct {
		do   func()
		want [4]int
	}{
		{func() {}, [4]int{}},
		{func() { prompt("review") }, [4]int{0, 0, 1, 1}},
		{func() { box.Refresh() }, [4]int{0, 0, 1, 1}},
		{func() {
			if err := venus.AddResource(&mcp.Resource{URI: "venus://plan", Name: "plan"}, load); err != nil {
				t.Fatal(err)
			}
		}, [4]int{0, 1, 1, 2}},
		{func() { venus.Close() }, [4]int{0, 2, 2, 3}},
		{func() {
			watch.Stop()
			box.Refresh()
		}, [4]int{0, 2, 2, 3}},
	} {
		step.do()
		if got := counts(); got != step.want {
			t.Errorf("%v, not %v", got, step.want)
		}
	}
}
