package ui_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// writes types "mine" into a field; what becomes of the answer to the edit is told by the argument.
const writes = `import { Editor } from "./document.mjs"
const fate = process.argv[2]
let text = "a text", version = 0
const content = () => ({ version: String(version), content: { notes: text } })
const splice = (at, count, more) => { text = text.slice(0, at) + more + text.slice(at + count); version++ }
const field = { value: "", selectionStart: 0, selectionEnd: 0, setSelectionRange() {}, addEventListener(_, f) { this.typed = f } }
const type = async more => { field.value += more; await field.typed() }
let times = 0
const editor = new Editor(field, "notes", content(), async (seen, [e]) => {
  if (seen !== String(version)) throw Object.assign(new Error("changed"), { code: "DOCUMENT_CHANGED" })
  const first = times++ === 0
  if (fate === "refused" && first) throw new Error("the hub is away")
  splice(e.index, e.count ?? 0, e.text ?? "")
  const answer = content()
  if (fate === "late" && first) { splice(0, 0, "theirs "); editor.adopt(content()) }
  if (fate === "lost" && first) throw new Error("the answer is lost")
  return answer
}, async () => content(), () => {})
editor.push = editor.push.bind(editor)
field.typed = editor.push
await type(" mine")
if (fate !== "late") splice(0, 0, "theirs ")
await type(" more")
editor.adopt(content())
console.log(field.value + "|" + text)
`

// What is typed is in the document once, also if the answer to an edit is lost or comes late.
func TestNothingTypedIsLostOrDoubled(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not here")
	}
	dir := t.TempDir()
	module, err := os.ReadFile("page/document.js")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"document.mjs": string(module), "main.mjs": writes} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, fate := range []string{"known", "late", "lost", "refused"} {
		cmd := exec.CommandContext(ctx, node, "main.mjs", fate)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if want := "theirs a text mine more|theirs a text mine more\n"; err != nil || string(out) != want {
			t.Errorf("%s: %v, %q, want %q", fate, err, out, want)
		}
	}
}
