package version

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestVersionIsKnownWithoutARelease(t *testing.T) {
	v := Read()
	if v.Version == "" || v.Go != runtime.Version() || v.OS != runtime.GOOS || v.Arch != runtime.GOARCH {
		t.Errorf("got %+v", v)
	}
	if String() != v.Version {
		t.Errorf("String() = %s", String())
	}
}

func TestAReleasesVersionHasPriority(t *testing.T) {
	release, revision = "1.2.3", "abc"
	t.Cleanup(func() { release, revision = "", "" })
	if got := Read(); got.Version != "1.2.3" || got.Revision != "abc" {
		t.Errorf("got %+v", got)
	}
}

func TestVersionOfAModuleAndItsRevision(t *testing.T) {
	var i Info
	i.add(&debug.BuildInfo{
		Main:     debug.Module{Version: "v1.4.0"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}},
	})
	if i.Version != "v1.4.0" || i.Revision != "abc" || !i.Modified {
		t.Errorf("got %+v", i)
	}
}
