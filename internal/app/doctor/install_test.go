//go:build unix

package doctor_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/app/doctor"
	"github.com/parleyhub/parley/internal/app/install"
)

func TestWhatIsEnteredIntoPrograms(t *testing.T) {
	at := install.Place{Home: t.TempDir(), Program: "/bin/parley"}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "claude"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	t.Chdir(at.Home)
	claude, err := install.Find("claude")
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	finds := func(level doctor.Level, words string) {
		t.Helper()
		var all []doctor.Finding
		for _, f := range (doctor.Patient{Err: os.ErrInvalid, Install: &at, Program: "parley"}).Examine(canceled) {
			if f.Check == "install" {
				all = append(all, f)
			}
		}
		if len(all) == 0 || all[len(all)-1].Level != level || !strings.Contains(all[len(all)-1].Message, words) {
			t.Errorf("not %q: %+v", words, all)
		}
	}
	finds(doctor.OK, "nothing of Parley is entered")
	changes, err := claude.Enter(at)
	if err == nil {
		err = install.Apply(changes[:1], at.Home)
	}
	if err != nil {
		t.Fatal(err)
	}
	finds(doctor.Warning, "parts are missing")
	if err := install.Apply(changes[1:], at.Home); err != nil {
		t.Fatal(err)
	}
	finds(doctor.OK, "are entered")
	at.Program = "/elsewhere/parley"
	finds(doctor.Warning, "another Parley has entered")
	at.Program = "/bin/parley"
	settings := filepath.Join(at.Home, ".claude", "settings.json")
	data, err := os.ReadFile(settings)
	if err == nil {
		err = os.WriteFile(settings, []byte(strings.Replace(string(data), "{", `{"disableAllHooks": true,`, 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	finds(doctor.Warning, "switches all hooks off")
	if err := os.WriteFile(settings, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	finds(doctor.Warning, "settings.json")
}
