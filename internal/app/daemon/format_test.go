//go:build unix

package daemon_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/wait"
)

// oldData unpacks a data directory that the program of 28 November 2026 has written. That of format 0, before formats were counted, has a
// task of the agent echo and the document plan; that of format 1 also an item in the queue typescript, agents, mail and a claim of
// files. What the agents' network keeps for days only has expired when the test runs.
func oldData(t *testing.T, dir, name string) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		text, err := io.ReadAll(tr)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func formatOf(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "format.json"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDataOfTheProgramBeforeFormatsIsRead(t *testing.T) {
	dir := newDir(t)
	oldData(t, dir, "format-0.tar.gz")
	r := run(t, mustLoad(t, dir, "tasks.retention=36500d", "contexts.expiry=36500d"))
	defer r.end(t)
	c := dialHub(t, r.info.Socket)
	if status, err := c.Status(t.Context()); err != nil || status.TotalTasks != 1 {
		t.Errorf("%+v, %v, want its task", status, err)
	}
	if doc, err := c.Document(t.Context(), "plan"); err != nil || !strings.Contains(string(doc.Content), `"open"`) {
		t.Errorf("%+v, %v, want its document", doc, err)
	}
	if got := formatOf(t, dir); !strings.Contains(got, `"format":1,"program":"test"`) {
		t.Errorf("the format is %q", got)
	}
}

func TestDataOfFormat1IsRead(t *testing.T) {
	dir := newDir(t)
	oldData(t, dir, "format-1.tar.gz")
	r := run(t, mustLoad(t, dir, "tasks.retention=36500d", "contexts.expiry=36500d"))
	defer r.end(t)
	c := dialHub(t, r.info.Socket)
	page, err := c.Tasks(t.Context(), dialect.TasksListParams{AgentID: "echo"})
	if err != nil || len(page.Tasks) != 1 || page.Tasks[0].Status.Message.Text() != "hello from format 1" {
		t.Errorf("%+v, %v, want its task", page, err)
	}
	names, err := c.Documents(t.Context())
	if err != nil || len(names) != 1 {
		t.Fatalf("%q, %v, want its document", names, err)
	}
	if doc, err := c.Document(t.Context(), names[0]); err != nil || !strings.Contains(string(doc.Content), "an entry of format 1") {
		t.Errorf("%+v, %v, want its document", doc, err)
	}
	wait.Eventually(t, "the item of the queue is there", func() bool {
		work, err := c.Work(t.Context())
		return err == nil && len(work.Items) == 1 && work.Items[0].TaskID == "item-1"
	})
	if status, err := c.Status(t.Context()); err != nil || status.Bus.Damage != nil {
		t.Errorf("%+v, %v, want no damage", status, err)
	}
}

// No file of the hub that one flipped bit damages keeps it from starting: each is restored from its copy, and the damage is counted.
func TestAHubStartsWithDamagedFiles(t *testing.T) {
	dir := newDir(t)
	r := run(t, mustLoad(t, dir))
	r.end(t)
	files, err := filepath.Glob(filepath.Join(dir, "*.copy"))
	if err != nil || len(files) < 2 {
		t.Fatalf("the copies %v, %v", files, err)
	}
	for _, f := range files {
		f = strings.TrimSuffix(f, ".copy")
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		raw[len(raw)-2] ^= 4
		if err := os.WriteFile(f, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r = run(t, mustLoad(t, dir))
	defer r.end(t)
	status, err := dialHub(t, r.info.Socket).Status(t.Context())
	if err != nil || status.Bus.Damage == nil || status.Bus.Damage.Rebuilt != len(files) || status.Bus.Damage.Lost != 0 {
		t.Errorf("%+v, %v; %d files were damaged", status.Bus.Damage, err, len(files))
	}
}

func TestDataOfANewerProgramIsRefusedAndNotChanged(t *testing.T) {
	for content, want := range map[string]string{
		`{"format":2,"program":"3.4.5"}`: "was written by a newer Parley (3.4.5, data format 2), which this one (test, data format 1) cannot read",
		`{"format":0}`:                   "does not say which format",
		`broken`:                         "does not say which format",
	} {
		dir := newDir(t)
		if err := os.WriteFile(filepath.Join(dir, "format.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := daemon.Run(context.Background(), mustLoad(t, dir), daemon.Options{Version: "test", Logger: slog.New(slog.DiscardHandler)})
		if daemon.CodeOf(err) != daemon.CodeDataDir || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", content, err)
		}
		if checked := daemon.CheckFormat(dir, "test"); checked == nil || !strings.Contains(checked.Error(), want) {
			t.Errorf("%s: checked: %v", content, checked)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 || formatOf(t, dir) != content {
			t.Errorf("%s: %v, %v: want the file and the lock only", content, entries, err)
		}
	}
	if err := daemon.CheckFormat(filepath.Join(t.TempDir(), "none"), "test"); err != nil {
		t.Errorf("no directory: %v", err)
	}
}
