//go:build !unix

package config

import "io/fs"

// errNotDir is what opening a file below something that is no directory gives;
// elsewhere than on Unix that is a plain "does not exist".
var errNotDir error = fs.ErrNotExist
