package process

import (
	"runtime"
	"slices"
	"strings"
)

// baseEnv is what every agent sees of the hub's environment: where things are,
// how to print, how to get out. Nothing here is a credential by its nature; the
// proxies may hold one, which the redactor knows.
var baseEnv = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL",
	"LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "COLORTERM", "NO_COLOR",
	"TMPDIR", "TEMP", "TMP",
	"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
	"http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
}

// windowsEnv is what programs cannot do without on Windows.
var windowsEnv = []string{
	"SystemRoot", "SystemDrive", "windir", "ComSpec", "PATHEXT", "OS",
	"USERPROFILE", "USERNAME", "HOMEDRIVE", "HOMEPATH", "APPDATA", "LOCALAPPDATA",
	"ProgramData", "ProgramFiles", "ProgramFiles(x86)", "ProgramW6432",
	"NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE",
}

// Environ is the environment of an agent: of parent (os.Environ(), say) the base
// and the names that allow lists, a trailing * matching the rest of a name; then
// set, which wins. The result is sorted.
func Environ(parent, allow []string, set map[string]string) []string {
	patterns := slices.Concat(baseEnv, allow)
	if runtime.GOOS == "windows" {
		patterns = append(patterns, windowsEnv...)
	}
	vars := make(map[string]string)
	for _, kv := range parent {
		name, value, ok := strings.Cut(kv, "=")
		if ok && name != "" && name != MarkerEnv && matchesAny(patterns, name) {
			vars[name] = value
		}
	}
	for name, value := range set {
		vars[name] = value
	}
	env := make([]string, 0, len(vars))
	for name, value := range vars {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
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

// lookup finds a variable in env; the last one counts, as in exec.
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
