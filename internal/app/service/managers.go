package service

import (
	"bytes"
	"encoding/binary"
	"encoding/xml"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// systemd is the service manager of a user on Linux.
type systemd struct{ path string }

const unitName = "parley.service"

func (systemd) name() string   { return "systemd" }
func (s systemd) file() string { return s.path }

func (systemd) define(command []string, path string) []byte {
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%")
	words := make([]string, len(command))
	for i, w := range command {
		words[i] = `"` + strings.ReplaceAll(quoted.Replace(w), "$", "$$") + `"`
	}
	return []byte("[Unit]\nDescription=Parley's hub\nDocumentation=man:parley(1)\n\n" +
		"[Service]\nEnvironment=\"PATH=" + quoted.Replace(path) + "\"\nExecStart=" + strings.Join(words, " ") + "\nRestart=on-failure\nRestartSec=2\n\n" +
		"[Install]\nWantedBy=default.target\n")
}

func (systemd) register() [][]string { return [][]string{{"systemctl", "--user", "daemon-reload"}} }
func (systemd) start() [][]string {
	return [][]string{{"systemctl", "--user", "enable", "--now", unitName}}
}

func (systemd) stop() [][]string {
	return [][]string{{"systemctl", "--user", "disable", "--now", unitName}}
}
func (systemd) removed() [][]string { return [][]string{{"systemctl", "--user", "daemon-reload"}} }
func (systemd) restart() [][]string { return [][]string{{"systemctl", "--user", "restart", unitName}} }
func (systemd) running() []string   { return []string{"systemctl", "--user", "is-active", unitName} }
func (systemd) process() []string {
	return []string{"systemctl", "--user", "show", "--property=MainPID", "--value", unitName}
}

// definition asks for the file from which systemd has the unit, also that of a package.
func (systemd) definition() []string {
	return []string{"systemctl", "--user", "show", "--property=FragmentPath", "--value", unitName}
}

func (systemd) isRunning(output string) bool { return strings.TrimSpace(output) == "active" }

func (systemd) isProcess(output string, pid int) bool {
	return strings.TrimSpace(output) == strconv.Itoa(pid)
}

// launchd is the service manager of macOS.
type launchd struct{ path, domain string }

const launchdLabel = "io.github.parleyhub.parley"

func (launchd) name() string     { return "launchd" }
func (l launchd) file() string   { return l.path }
func (l launchd) target() string { return l.domain + "/" + launchdLabel }

func (launchd) define(command []string, path string) []byte {
	var b bytes.Buffer
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>` + launchdLabel + `</string>
  <key>ProgramArguments</key>
  <array>
`)
	for _, w := range command {
		b.WriteString("    <string>" + escape(w) + "</string>\n")
	}
	b.WriteString(`  </array>
  <key>EnvironmentVariables</key>
  <dict>
    <key>PATH</key>
    <string>` + escape(path) + `</string>
  </dict>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
</dict>
</plist>
`)
	return b.Bytes()
}

// register asks for the user's domain: it is missing where nobody has logged in on the screen.
func (l launchd) register() [][]string { return [][]string{{"launchctl", "print", l.domain}} }
func (l launchd) start() [][]string    { return [][]string{{"launchctl", "bootstrap", l.domain, l.path}} }
func (l launchd) stop() [][]string     { return [][]string{{"launchctl", "bootout", l.target()}} }
func (l launchd) restart() [][]string {
	return [][]string{{"launchctl", "kickstart", "-k", l.target()}}
}
func (l launchd) running() []string { return []string{"launchctl", "print", l.target()} }

func (l launchd) process() []string { return l.running() }

// replaces says that launchd refuses a second definition beside the one that it has read.
func (launchd) replaces() {}

func (launchd) isRunning(output string) bool { return strings.Contains(output, "state = running") }

func (launchd) isProcess(output string, pid int) bool {
	return slices.ContainsFunc(strings.Split(output, "\n"), func(line string) bool { return strings.TrimSpace(line) == "pid = "+strconv.Itoa(pid) })
}

// scheduler is the task scheduler of Windows.
type scheduler struct{ path, user string }

const taskName = "Parley"

func (scheduler) name() string   { return "task-scheduler" }
func (s scheduler) file() string { return s.path }

// define leaves the PATH out: the task has the user's.
func (s scheduler) define(command []string, _ string) []byte {
	words := make([]string, len(command)-1)
	for i, w := range command[1:] {
		words[i] = quoteWindows(w)
	}
	text := `<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.3" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo><Description>Parley's hub</Description></RegistrationInfo>
  <Triggers><LogonTrigger><Enabled>true</Enabled><UserId>` + escape(s.user) + `</UserId></LogonTrigger></Triggers>
  <Principals><Principal id="Author"><UserId>` + escape(s.user) + `</UserId><LogonType>InteractiveToken</LogonType><RunLevel>LeastPrivilege</RunLevel></Principal></Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure><Interval>PT1M</Interval><Count>999</Count></RestartOnFailure>
    <Hidden>true</Hidden>
  </Settings>
  <Actions Context="Author"><Exec><Command>` + escape(command[0]) + `</Command><Arguments>` + escape(strings.Join(words, " ")) + `</Arguments></Exec></Actions>
</Task>
`
	units := append([]uint16{0xFEFF}, utf16.Encode([]rune(text))...) // the order of the bytes comes first
	b := make([]byte, 0, 2*len(units))
	for _, u := range units {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return b
}

func (s scheduler) register() [][]string {
	return [][]string{{"schtasks", "/create", "/tn", taskName, "/xml", s.path, "/f"}}
}
func (scheduler) start() [][]string { return [][]string{{"schtasks", "/run", "/tn", taskName}} }

func (scheduler) stop() [][]string {
	return [][]string{{"schtasks", "/end", "/tn", taskName}, {"schtasks", "/delete", "/tn", taskName, "/f"}}
}

func (scheduler) restart() [][]string {
	return [][]string{{"schtasks", "/end", "/tn", taskName}, {"schtasks", "/run", "/tn", taskName}}
}

func (scheduler) running() []string {
	return []string{"schtasks", "/query", "/tn", taskName, "/fo", "list"}
}

func (scheduler) isRunning(output string) bool { return strings.Contains(output, "Running") }

// quoteWindows quotes an argument as programs on Windows split their command lines.
func quoteWindows(w string) string {
	if w != "" && !strings.ContainsAny(w, " \t\"") {
		return w
	}
	var b strings.Builder
	b.WriteByte('"')
	slashes := 0
	for _, r := range w {
		switch r {
		case '\\':
			slashes++
			continue
		case '"':
			b.WriteString(strings.Repeat(`\`, 2*slashes+1))
		default:
			b.WriteString(strings.Repeat(`\`, slashes))
		}
		slashes = 0
		b.WriteRune(r)
	}
	b.WriteString(strings.Repeat(`\`, 2*slashes) + `"`)
	return b.String()
}

func escape(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text)) // a buffer has no errors
	return b.String()
}
