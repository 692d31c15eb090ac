package main

import (
	"strings"
	"testing"
)

const list = `# A spec

Status: implemented

- HUB-AA: the first
- Req 4.5: the second
- Property 16: the third
`

func mustParse(t *testing.T, text string) spec {
	t.Helper()
	s, err := parseSpec(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTestsAreFoundByTheIDsTheyName(t *testing.T) {
	refs := references{}
	refs.scan("a_test.go", `package a

// HUB-AA: said in the comment.
func TestOne(t *testing.T) {
	// Requirement 4.5, within; Req 9.1, 9.2, 10.3.
}

// HUB-AA belongs to the helper and to nobody else.
func helper() {}

func TestProperty16Holds(t *testing.T) {}
`)
	for id, want := range map[string]string{"HUB-AA": "TestOne in a_test.go", "Req 4.5": "TestOne in a_test.go", "Property 16": "TestProperty16Holds in a_test.go",
		"Req 9.1": "TestOne in a_test.go", "Req 9.2": "TestOne in a_test.go", "Req 10.3": "TestOne in a_test.go"} {
		if got := strings.Join(refs[id], ";"); got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
	all := list + "- Req 9.1: a\n- Req 9.2: b\n- Req 10.3: c\n"
	if err := verify([]spec{mustParse(t, all)}, refs); err != nil {
		t.Error(err)
	}
}

func TestClausesWithoutTestsAndUnknownOnesAreErrors(t *testing.T) {
	refs := references{}
	refs.scan("a_test.go", "// HUB-BB and REQ-OTHER-001\nfunc TestOne(t *testing.T) {}\n")
	err := verify([]spec{mustParse(t, list)}, refs)
	for _, want := range []string{"HUB-AA has no test", "Req 4.5 has no test", "no list has HUB-BB"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if strings.Contains(err.Error(), "REQ-OTHER") {
		t.Errorf("%v: REQ has no list", err)
	}
	if err := verify([]spec{mustParse(t, strings.Replace(list, "implemented", "planned", 1))}, references{}); err != nil {
		t.Errorf("a planned specification needs no tests yet: %v", err)
	}
}

func TestWrongListsAreErrors(t *testing.T) {
	for name, text := range map[string]string{
		"no status": "# T\n- A-B: x\n", "twice": list + "- HUB-AA: again\n", "no clause": list + "- nothing\n", "no title": "Status: planned\n- A-B: x\n",
		"no clauses": "# T\nStatus: planned\n", "unknown status": "# T\nStatus: done\n- A-B: x\n",
	} {
		if _, err := parseSpec(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestClausesWithAReasonNeedNoTest(t *testing.T) {
	text := "# T\n\nStatus: implemented\n\n- A-B: npm. Counterpart: a Go module\n- A-C: a browser. Not applicable: there is none\n" +
		"- A-D: more. Planned: less is there\n- A-E: counts. Counterpart:\n\nStatus: planned\n\n- A-F: later\n"
	s := mustParse(t, text)
	if err := verify([]spec{s}, references{}); err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "A-E has no test") {
		t.Errorf("got %v, want only the clause whose reason is empty", err)
	}
	if out := string(render([]spec{s}, references{})); !strings.Contains(out, "0 of 5 clauses are held by tests, 1 have a counterpart in Go, 1 do not apply, 2 are planned.") {
		t.Error(out)
	}
}

func TestRenderLinksTests(t *testing.T) {
	refs := references{"HUB-AA": {"TestB in x/b_test.go", "TestA in x/a_test.go"}}
	out := string(render([]spec{mustParse(t, list)}, refs))
	for _, want := range []string{"1 of 3 clauses", "| HUB-AA | the first | [TestA](../x/a_test.go), [TestB](../x/b_test.go) |", "| Req 4.5 | the second |  |"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
