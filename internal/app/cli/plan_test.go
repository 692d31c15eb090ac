package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/swarm"
)

var wantedPlan = swarm.Plan{
	TaskDescription: "Review it", Agents: []string{"a", "b"}, MaxAttempts: 2,
	SubTasks: []swarm.SubTaskPlan{
		{ID: "api", Description: "the API", RequiredCapabilities: []string{"go"}, Input: json.RawMessage(`{"n":1}`)},
		{ID: "all", Description: "together", DependsOn: []string{"api"}},
	},
}

func TestPlansAreReadFromJSONAndYAML(t *testing.T) {
	for name, text := range map[string]string{
		"JSON": `{"taskDescription":"Review it","agents":["a","b"],"maxAttempts":2,"subTasks":[
			{"id":"api","description":"the API","requiredCapabilities":["go"],"input":{"n":1}},
			{"id":"all","description":"together","dependsOn":["api"]}]}`,
		"YAML": "taskDescription: Review it\nagents: [a, b]\nmaxAttempts: 2\nsubTasks:\n- id: api\n  description: the API\n" +
			"  requiredCapabilities: [go]\n  input: {n: 1}\n- {id: all, description: together, dependsOn: [api]}\n",
	} {
		got, err := cli.ReadPlan([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i, s := range got.SubTasks {
			if len(s.Input) > 0 {
				got.SubTasks[i].Input = json.RawMessage(strings.ReplaceAll(string(s.Input), " ", ""))
			}
		}
		if diff := cmp.Diff(wantedPlan, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestWrongPlansAreRefused(t *testing.T) {
	for text, part := range map[string]string{
		"":                                "empty",
		`{"task":"x"}`:                    "unknown field",
		`{"taskDescription":"x"} {}`:      "after the plan",
		"taskDescription: [":              "neither",
		strings.Repeat("[", 100):          "nested",
		`{"subTasks":"all"}`:              "cannot be read",
		strings.Repeat("a", 2<<20):        "at most",
		"taskDescription: x\nshell: rm\n": "unknown field",
	} {
		if _, err := cli.ReadPlan([]byte(text)); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%.40q: %v, want %q", text, err, part)
		}
	}
}

func TestThePlannersAnswerMayHaveTextAroundThePlan(t *testing.T) {
	for _, answer := range []string{
		`{"subTasks":[{"id":"a","description":"x"}]}`,
		"Here {is} the plan:\n```json\n{\"subTasks\":[{\"id\":\"a\",\"description\":\"x\"}], \"agents\": [\"root\"]}\n```\nGood luck!",
	} {
		got, err := cli.SubTasksIn(answer)
		if err != nil || len(got) != 1 || got[0].ID != "a" {
			t.Errorf("%q: %+v, %v", answer, got, err)
		}
	}
	for _, answer := range []string{"", "I cannot", `{"subTasks":[]}`, `{"subTasks":3}`, strings.Repeat("{", 1<<20)} {
		if got, err := cli.SubTasksIn(answer); err == nil {
			t.Errorf("%.40q: %+v", answer, got)
		}
	}
}

func TestThePromptNamesTaskAndWorkers(t *testing.T) {
	p := cli.PlannerPrompt("build\nit", []dialect.Agent{{ID: "codex", Description: "two\nlines", Capabilities: []string{"go", "js"}}})
	for _, part := range []string{"build\nit", "- codex: two lines (capabilities: go, js)\n", `"subTasks"`} {
		if !strings.Contains(p, part) {
			t.Errorf("no %q in:\n%s", part, p)
		}
	}
}

func FuzzReadPlan(f *testing.F) {
	f.Add([]byte(`{"taskDescription":"x","subTasks":[{"id":"a","description":"y"}]}`))
	f.Add([]byte("taskDescription: x\nsubTasks:\n- id: a\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := cli.ReadPlan(data)
		if err != nil {
			return
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cli.ReadPlan(again); err != nil {
			t.Fatalf("the encoded plan cannot be read: %v\n%s", err, again)
		}
	})
}

func FuzzSubTasksIn(f *testing.F) {
	f.Add(`sure: {"subTasks":[{"id":"a","description":"x"}]}`)
	f.Add("{{{")
	f.Fuzz(func(t *testing.T, answer string) {
		if parts, err := cli.SubTasksIn(answer); err == nil && len(parts) == 0 {
			t.Fatal("no sub-tasks and no error")
		}
	})
}
