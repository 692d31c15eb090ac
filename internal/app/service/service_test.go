package service_test

import (
	"context"
	"encoding/xml"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/parleyhub/parley/internal/app/service"
)

// manager stands for the service manager of a system: it records what it is called.
type manager struct {
	called []string
	answer string
	file   string // of the definition
	err    error
}

func (m *manager) run(_ context.Context, name string, args ...string) (string, error) {
	m.called = append(m.called, name+" "+strings.Join(args, " "))
	if slices.Contains(args, "--property=FragmentPath") {
		return m.file + "\n", m.err
	}
	return m.answer, m.err
}

func open(t *testing.T, system string, m *manager) (*service.Service, string) {
	t.Helper()
	home := t.TempDir()
	s, err := service.New(service.Options{System: system, Home: home, Config: filepath.Join(home, ".config"), User: `PC\ann & co`, UID: "501", Path: "/home/ann/50% bin:/usr/bin", Run: m.run})
	if err != nil {
		t.Fatal(err)
	}
	return s, home
}

var command = []string{"/opt/my apps/parley", "start", "--foreground", `--data-dir=/home/ann/100% "mine" $HOME\`}

// free is what a hub that runs already needs: nothing.
func free() error { return nil }

func TestEachSystemRunsTheHubInItsOwnWay(t *testing.T) {
	for system, want := range map[string]struct {
		manager, file, running      string
		install, uninstall, restart []string
		definition                  []string
	}{
		"linux": {"systemd", ".config/systemd/user/parley.service", "active\n",
			[]string{"systemctl --user daemon-reload", "systemctl --user enable --now parley.service"},
			[]string{"systemctl --user disable --now parley.service", "systemctl --user daemon-reload"},
			[]string{"systemctl --user restart parley.service"},
			[]string{`ExecStart="/opt/my apps/parley" "start" "--foreground" "--data-dir=/home/ann/100%% \"mine\" $$HOME\\"`, "Restart=on-failure", `Environment="PATH=/home/ann/50%% bin:/usr/bin"`}},
		"darwin": {"launchd", "Library/LaunchAgents/io.github.parleyhub.parley.plist", "\tstate = running\n",
			[]string{"launchctl print gui/501", "launchctl bootstrap gui/501 FILE"},
			[]string{"launchctl bootout gui/501/io.github.parleyhub.parley"},
			[]string{"launchctl kickstart -k gui/501/io.github.parleyhub.parley"},
			[]string{"<string>/opt/my apps/parley</string>", "<key>KeepAlive</key>", "<string>/home/ann/50% bin:/usr/bin</string>"}},
		"windows": {"task-scheduler", ".a2a-hub-service.xml", "Status: Running\r\n",
			[]string{"schtasks /create /tn Parley /xml FILE /f", "schtasks /run /tn Parley"},
			[]string{"schtasks /end /tn Parley", "schtasks /delete /tn Parley /f"},
			[]string{"schtasks /end /tn Parley", "schtasks /run /tn Parley"},
			[]string{"<Command>/opt/my apps/parley</Command>", `PC\ann &amp; co`, "<RestartOnFailure>"}},
	} {
		m := &manager{answer: want.running}
		s, home := open(t, system, m)
		file := filepath.Join(home, filepath.FromSlash(want.file))
		check := func(lines []string) {
			t.Helper()
			for i := range lines {
				lines[i] = strings.ReplaceAll(lines[i], "FILE", file)
			}
			if !slices.Equal(m.called, lines) {
				t.Errorf("%s: called %q, want %q", system, m.called, lines)
			}
			m.called = nil
		}
		if st := s.Status(t.Context()); st.Installed || st.Running || st.Manager != want.manager || st.File != file {
			t.Errorf("%s: before: %+v", system, st)
		}
		if err := s.Uninstall(t.Context()); service.CodeOf(err) != service.CodeMissing {
			t.Errorf("%s: %v", system, err)
		}
		looks := []string(nil)
		if system == "linux" { // for the unit of a package: for the status, and before the removal
			look := "systemctl --user show --property=FragmentPath --value parley.service"
			looks = []string{look, look}
		}
		check(looks)
		if err := s.Install(t.Context(), command, free); err != nil {
			t.Fatal(err)
		}
		check(want.install)
		text := definition(t, file)
		for _, part := range want.definition {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %s in\n%s", system, part, text)
			}
		}
		if st := s.Status(t.Context()); !st.Installed || !st.Running {
			t.Errorf("%s: installed: %+v", system, st)
		}
		if !s.Has("--foreground") || s.Has("--background") {
			t.Errorf("%s: the arguments are not known", system)
		}
		m.called = nil
		if err := s.Restart(t.Context()); err != nil {
			t.Error(err)
		}
		check(want.restart)
		if err := s.Uninstall(t.Context()); err != nil {
			t.Error(err)
		}
		check(want.uninstall)
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the definition is left: %v", system, err)
		}
	}
}

// definition reads a file, in UTF-16 if it says so, and checks XML.
func definition(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	if len(raw) > 1 && raw[0] == 0xFF && raw[1] == 0xFE {
		units := make([]uint16, 0, len(raw)/2)
		for i := 2; i+1 < len(raw); i += 2 {
			units = append(units, uint16(raw[i])|uint16(raw[i+1])<<8)
		}
		text = string(utf16.Decode(units))
	}
	if strings.HasPrefix(text, "<?xml") {
		_, body, _ := strings.Cut(text, "?>")
		if err := xml.Unmarshal([]byte(body), new(struct{})); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
	}
	return text
}

func TestArgumentsOnWindowsAreQuoted(t *testing.T) {
	m := &manager{}
	s, home := open(t, "windows", m)
	if err := s.Install(t.Context(), []string{`C:\parley.exe`, "start", `C:\my data\`, `say "hi"`, ""}, free); err != nil {
		t.Fatal(err)
	}
	if text := definition(t, filepath.Join(home, ".a2a-hub-service.xml")); !strings.Contains(text, `start &#34;C:\my data\\&#34; &#34;say \&#34;hi\&#34;&#34; &#34;&#34;`) {
		t.Error(text)
	}
}

func TestRefusalsOfTheManagerAreExplained(t *testing.T) {
	m := &manager{answer: "Failed to connect to bus", err: errors.New("exit status 1")}
	s, _ := open(t, "linux", m)
	err := s.Install(t.Context(), command, free)
	if service.CodeOf(err) != service.CodeManager || !strings.Contains(err.Error(), "systemctl --user daemon-reload failed: exit status 1 Failed to connect to bus") ||
		!strings.Contains(err.Error(), "parley start") {
		t.Errorf("%v", err)
	}
	if st := s.Status(t.Context()); st.Installed {
		t.Errorf("a definition is left: %+v", st)
	}
	m.err = nil
	if err := s.Install(t.Context(), command, free); err != nil {
		t.Fatal(err)
	}
	m.err = errors.New("exit status 1")
	if err := s.Uninstall(t.Context()); service.CodeOf(err) != service.CodeManager {
		t.Errorf("%v", err)
	}
	if st := s.Status(t.Context()); st.Installed {
		t.Errorf("the definition is left: %+v", st)
	}
	if _, err := service.New(service.Options{System: "plan9"}); service.CodeOf(err) != service.CodeUnsupported {
		t.Errorf("%v", err)
	}
}

// The unit of a package is none of the user's files: its service is shown, and removed with the package only.
func TestTheServiceOfAPackageIsShown(t *testing.T) {
	const unit = "/usr/lib/systemd/user/parley.service"
	m := &manager{file: unit, answer: "active\n"}
	s, home := open(t, "linux", m)
	if st := s.Status(t.Context()); st != (service.Status{Manager: "systemd", File: unit, Installed: true, Running: true, Package: true}) {
		t.Errorf("%+v", st)
	}
	m.answer = "inactive\n"
	if st := s.Status(t.Context()); !st.Installed || st.Running {
		t.Errorf("stopped: %+v", st)
	}
	if err := s.Uninstall(t.Context()); service.CodeOf(err) != service.CodeMissing || !strings.Contains(err.Error(), unit) || !strings.Contains(err.Error(), "systemctl --user disable --now parley.service") {
		t.Errorf("the removal: %v", err)
	}
	if got := s.StartCommand(); got != "systemctl --user enable --now parley.service" {
		t.Errorf("it is started with %s", got)
	}
	if err := s.Install(t.Context(), command, free); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(home, ".config/systemd/user/parley.service")
	if st := s.Status(t.Context()); st.Package || st.File != own {
		t.Errorf("with a definition of the user: %+v", st)
	}
	for _, file := range []string{"", own} { // systemd names what it has read until it reads again
		m.file = file
		if err := os.RemoveAll(own); err != nil {
			t.Fatal(err)
		}
		if st := s.Status(t.Context()); st.Installed {
			t.Errorf("without a definition: %+v", st)
		}
	}
}

// Where there is no service manager, the hub that runs is left alone, and an earlier definition stays.
func TestARefusedDefinitionChangesNothing(t *testing.T) {
	m := &manager{}
	s, _ := open(t, "linux", m)
	if err := s.Install(t.Context(), command, free); err != nil {
		t.Fatal(err)
	}
	file := s.Status(t.Context()).File
	earlier := definition(t, file)
	other := []string{"/opt/parley", "start"}
	m.err = errors.New("exit status 1")
	if err := s.Install(t.Context(), other, func() error { t.Error("the hub is stopped"); return nil }); err == nil || definition(t, file) != earlier {
		t.Errorf("%v, and the definition is\n%s", err, definition(t, file))
	}
	m.err = nil
	busy := errors.New("busy")
	if err := s.Install(t.Context(), other, func() error { return busy }); !errors.Is(err, busy) || definition(t, file) != earlier {
		t.Errorf("%v, and the definition is\n%s", err, definition(t, file))
	}
}

// launchd refuses a definition beside the one that it has.
func TestLaunchdForgetsTheEarlierDefinition(t *testing.T) {
	m := &manager{}
	s, _ := open(t, "darwin", m)
	for range 2 {
		m.called = nil
		if err := s.Install(t.Context(), command, free); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.called) != 3 || m.called[1] != "launchctl bootout gui/501/io.github.parleyhub.parley" {
		t.Errorf("called %q", m.called)
	}
}

func TestTheProcessOfTheServiceIsRecognized(t *testing.T) {
	for _, c := range []struct {
		system, answer string
		pid            int
		want           bool
	}{
		{"linux", "4711\n", 4711, true}, {"linux", "4711\n", 471, false}, {"linux", "0\n", 0, false},
		{"darwin", "\tstate = running\n\tpid = 4711\n", 4711, true}, {"darwin", "\tpid = 4711\n", 471, false},
		{"windows", "Status: Running\r\n", 4711, false},
	} {
		s, _ := open(t, c.system, &manager{answer: c.answer})
		if got := s.Runs(t.Context(), c.pid); got != c.want {
			t.Errorf("%s: process %d of %q: %v", c.system, c.pid, c.answer, got)
		}
	}
}

func TestADirectoryThatCannotBeWritten(t *testing.T) {
	home := t.TempDir()
	taken := filepath.Join(home, "file")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := service.New(service.Options{System: "linux", Config: taken, Run: (&manager{}).run})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Install(t.Context(), command, free); service.CodeOf(err) != service.CodeFile {
		t.Errorf("%v", err)
	}
}

func TestThisUsersServiceIsFound(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	t.Setenv("USERPROFILE", t.TempDir())
	s, err := service.New(service.Options{})
	if !slices.Contains([]string{"linux", "darwin", "windows"}, runtime.GOOS) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if st := s.Status(t.Context()); st.Installed {
		t.Errorf("%+v", st)
	}
}
