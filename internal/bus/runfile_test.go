package bus_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/bus"
)

func TestRunFileIsPrivateAndGoesWithTheHub(t *testing.T) {
	cfg := bus.Config{DataDir: filepath.Join(t.TempDir(), "data")}
	var log logBuffer
	cfg.Logger = log.logger()
	b := open(t, cfg)
	dir := filepath.Join(cfg.DataDir, "bus")
	path := filepath.Join(dir, "run.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		PID      int
		Address  string
		Password string
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if r.PID != os.Getpid() || "nats://"+r.Address != b.Info().URL || len(r.Password) < 43 {
		t.Errorf("run file %+v", r)
	}
	if log.contains(r.Password) {
		t.Error("the log shows the password")
	}
	if runtime.GOOS != "windows" {
		for path, want := range map[string]os.FileMode{path: 0o600, dir: 0o700, cfg.DataDir: 0o700} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
			}
		}
	}
	shut(t, b)
	left, err := filepath.Glob(filepath.Join(dir, "run.json*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	open(t, cfg)
	again, err := os.ReadFile(path)
	if err != nil || bytes.Contains(again, []byte(r.Password)) {
		t.Error("a restarted hub has the same password")
	}
}

// What another user may have read or written is not trusted.
func TestInsecureRunFileIsRefused(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("file modes say nothing on Windows")
	}
	type test struct {
		name   string
		tamper func(t *testing.T, path string)
		want   bus.Code
	}
	tests := []test{
		{"group may read", func(t *testing.T, path string) { must(t, os.Chmod(path, 0o640)) }, bus.CodeConfig},
		{"others may write", func(t *testing.T, path string) { must(t, os.Chmod(path, 0o602)) }, bus.CodeConfig},
		{"symbolic link", func(t *testing.T, path string) {
			must(t, os.Rename(path, path+".real"))
			must(t, os.Symlink(path+".real", path))
		}, bus.CodeStorage},
		{"directory", func(t *testing.T, path string) {
			must(t, os.Remove(path))
			must(t, os.Mkdir(path, 0o700))
		}, bus.CodeConfig},
		{"not JSON", func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("{"), 0o600)) }, bus.CodeStorage},
		{"too long", func(t *testing.T, path string) { must(t, os.WriteFile(path, make([]byte, 1<<20), 0o600)) }, bus.CodeStorage},
		{"elsewhere", func(t *testing.T, path string) {
			must(t, os.WriteFile(path, []byte(`{"address":"192.0.2.1:4222","password":"x"}`), 0o600))
		}, bus.CodeStorage},
		{"missing", func(t *testing.T, path string) { must(t, os.Remove(path)) }, bus.CodeNotRunning},
		{"wrong password", func(t *testing.T, path string) {
			data, err := os.ReadFile(path)
			must(t, err)
			var r map[string]any
			must(t, json.Unmarshal(data, &r))
			r["password"] = "x"
			data, err = json.Marshal(r)
			must(t, err)
			must(t, os.WriteFile(path, data, 0o600))
		}, bus.CodeAuth},
		{"wrong port", func(t *testing.T, path string) {
			must(t, os.WriteFile(path, []byte(`{"address":"`+closedPort(t)+`","password":"x"}`), 0o600))
		}, bus.CodeNotRunning},
	}
	if os.Geteuid() == 0 { // nobody else can give a file away
		tests = append(tests, test{"another user's", func(t *testing.T, path string) { must(t, os.Chown(path, 65534, 65534)) }, bus.CodeConfig})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := bus.Config{DataDir: t.TempDir()}
			open(t, cfg)
			path := filepath.Join(cfg.DataDir, "bus", "run.json")
			t.Cleanup(func() { must(t, os.RemoveAll(path)) }) // before the hub is closed
			tt.tamper(t, path)
			if _, err := bus.Join(t.Context(), cfg); code(err) != tt.want {
				t.Errorf("Join: %v (code %s), want %s", err, code(err), tt.want)
			}
		})
	}
}

func FuzzRunFile(f *testing.F) {
	f.Add([]byte(`{"pid":1,"startedAt":"2026-11-21T10:00:00Z","address":"127.0.0.1:4222","user":"peer","password":"x","durability":"commit"}`))
	f.Add([]byte(`{"address":"example.org:4222","password":"x"}`))
	f.Add([]byte(`[]`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		must(t, os.WriteFile(filepath.Join(dir, "run.json"), data, 0o600))
		address, err := bus.RunFileAddress(dir)
		if (err == nil) != strings.HasPrefix(address, "127.") && !strings.HasPrefix(address, "[::1") && !strings.HasPrefix(address, "[::ffff:127.") {
			t.Errorf("address %q, error %v", address, err)
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
