// Package version knows the program's version. It imports little: see package shortcut.
package version

import (
	"runtime"
	"runtime/debug"
)

// release and its commit are set when a release is built, with -ldflags -X.
var release, revision = "", ""

// Info is the program's version and what it was built with.
type Info struct {
	Version  string `json:"version"` // "1.2.3", or "devel"
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a changed tree
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// Read returns the version: that of the release, of the module where it was
// installed by go install, else devel with the revision if it is known.
func Read() Info {
	info := Info{Version: release, Revision: revision, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if build, ok := debug.ReadBuildInfo(); ok {
		info.add(build)
	}
	if info.Version == "" {
		info.Version = "devel"
	}
	return info
}

func (i *Info) add(build *debug.BuildInfo) {
	if v := build.Main.Version; i.Version == "" && v != "(devel)" {
		i.Version = v
	}
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Revision = s.Value
		case "vcs.modified":
			i.Modified = s.Value == "true"
		}
	}
}

// String returns the version alone, e.g. "1.2.3" or "devel".
func String() string { return Read().Version }
