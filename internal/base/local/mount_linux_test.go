package local

import (
	"strings"
	"testing"
)

func TestDisk(t *testing.T) {
	const mounts = "22 1 8:2 / / rw,relatime - ext4 /dev/sda2 rw\n" +
		"30 22 0:5 / /mnt/my\\040disk rw - tmpfs tmpfs rw,size=1m\n" + "broken\n"
	for dir, want := range map[string]string{
		"/home/me":          "/dev/sda2 at /",
		"/mnt/my disk":      "tmpfs at /mnt/my disk",
		"/mnt/my disk/a":    "tmpfs at /mnt/my disk",
		"/mnt/my diskspace": "/dev/sda2 at /",
	} {
		if got := diskOf(mounts, dir); got != want {
			t.Errorf("%s is on %q instead of %q", dir, got, want)
		}
	}
	if name := Disk(t.TempDir()); !strings.Contains(name, " at /") {
		t.Errorf("the temporary directory is on %q", name)
	}
}
