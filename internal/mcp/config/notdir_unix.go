//go:build unix

package config

import "syscall"

// errNotDir is what opening a file below something that is no directory gives.
var errNotDir error = syscall.ENOTDIR
