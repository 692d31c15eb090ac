package process

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
)

// MarkerEnv is the variable that marks a process and its descendants. Its value is a list, separated by colons: a
// hub that was started by an agent of another hub adds its own marker. A process that must outlive an agent's turn
// (the hub in the background) must be started without it.
const MarkerEnv = "PARLEY_MARK"

// Marker marks one process and its descendants: the owner's name, a dot, and 32 random hex digits.
type Marker string

// NewMarker returns a new marker of owner, which may be empty and holds neither a colon nor a dot.
func NewMarker(owner string) Marker {
	var b [16]byte
	rand.Read(b[:]) // never fails: see crypto/rand
	return Marker(owner + "." + hex.EncodeToString(b[:]))
}

func (m Marker) addTo(env []string) []string {
	value := string(m)
	if outer := os.Getenv(MarkerEnv); outer != "" {
		value = outer + ":" + value
	}
	return append(env[:len(env):len(env)], MarkerEnv+"="+value)
}

// in reports whether a value of MarkerEnv contains the marker.
func (m Marker) in(value string) bool {
	return slices.Contains(strings.Split(value, ":"), string(m))
}

// SweepOwner kills every process with a marker of owner and returns their number: the processes of an earlier run
// that was killed. Call it only while owner runs no process. On platforms without markers it does nothing.
func SweepOwner(owner string) (int, error) {
	if owner == "" {
		return 0, nil
	}
	return sweepOwner(owner)
}

// ownedBy reports whether a value of MarkerEnv contains a marker of owner.
func ownedBy(value, owner string) bool {
	return strings.HasPrefix(value, owner+".") || strings.Contains(value, ":"+owner+".")
}

var markerPrefix = []byte(MarkerEnv + "=")

// markerIn finds the last value of MarkerEnv in NUL-separated variables.
func markerIn(env []byte) string {
	value := ""
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, markerPrefix); ok {
			value = string(v)
		}
	}
	return value
}

// baseEnv are the variables of the hub that every agent receives: paths, locale, proxies.
// None is a credential; a proxy's URL may contain one, which the redactor recognizes.
var baseEnv = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL",
	"LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "COLORTERM", "NO_COLOR",
	"TMPDIR", "TEMP", "TMP",
	"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
	"http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
}

// windowsEnv are the variables that programs on Windows need.
var windowsEnv = []string{
	"SystemRoot", "SystemDrive", "windir", "ComSpec", "PATHEXT", "OS",
	"USERPROFILE", "USERNAME", "HOMEDRIVE", "HOMEPATH", "APPDATA", "LOCALAPPDATA",
	"ProgramData", "ProgramFiles", "ProgramFiles(x86)", "ProgramW6432",
	"NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE",
}

// Environ returns the environment of an agent, sorted: the base variables of parent, such as os.Environ(), those in
// allow, where a trailing * matches any rest, and set, which wins.
func Environ(parent, allow []string, set map[string]string) []string {
	patterns := slices.Concat(baseEnv, allow)
	if runtime.GOOS == "windows" {
		patterns = append(patterns, windowsEnv...)
	}
	vars := make(map[string]string)
	for _, kv := range parent {
		name, value, ok := strings.Cut(kv, "=")
		matchesName := func(p string) bool { return matches(p, name) }
		if ok && name != "" && name != MarkerEnv && slices.ContainsFunc(patterns, matchesName) {
			vars[name] = value
		}
	}
	maps.Copy(vars, set)
	env := make([]string, 0, len(vars))
	for name, value := range vars {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

func matches(pattern, name string) bool {
	if runtime.GOOS == "windows" {
		pattern, name = strings.ToUpper(pattern), strings.ToUpper(name)
	}
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// lookup returns a variable of env; the last one counts, as in exec.
func lookup(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if k, v, ok := strings.Cut(kv, "="); ok && sameName(k, name) {
			return v
		}
	}
	return ""
}

func sameName(a, b string) bool {
	if runtime.GOOS == "windows" {
		return strings.EqualFold(a, b)
	}
	return a == b
}
