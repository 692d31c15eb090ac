package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTypesAreCheckedForEachSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":            "module example.com/m\n\ngo 1.26\n",
		"m.go":              "package m\n",
		"m_windows.go":      "package m\n\nvar X int = 1\n",
		"m_windows_test.go": "package m\n\nvar Y string = X\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkTypes(t.Context(), dir, "darwin"); err != nil {
		t.Errorf("darwin: %v", err)
	}
	if err := checkTypes(t.Context(), dir, "windows"); err == nil {
		t.Error("a test that does not compile for windows is not found")
	}
}
