//go:build unix

package caller

import "os"

// user returns the effective user of this process, who owns what it creates.
func user() int { return os.Geteuid() }
