// Package version tells which Parley this is.
package version

import (
	"runtime"
	"runtime/debug"
)

// release is set when a release is built, with -ldflags -X.
var release = ""

// Info is the program's version and what it was built with.
type Info struct {
	Version  string `json:"version"` // "1.2.3", or "devel"
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a changed tree
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// Get returns the version: that of the release, of the module where it was
// installed by go install, else devel with the revision if it is known.
func Get() Info {
	info := Info{Version: release, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info.withDefault()
	}
	if v := build.Main.Version; info.Version == "" && v != "(devel)" {
		info.Version = v
	}
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			info.Revision = s.Value
		case "vcs.modified":
			info.Modified = s.Value == "true"
		}
	}
	return info.withDefault()
}

func (i Info) withDefault() Info {
	if i.Version == "" {
		i.Version = "devel"
	}
	return i
}

// String returns the version alone, e.g. "1.2.3" or "devel".
func String() string { return Get().Version }
