package client

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/windows"
)

// ownedByUser is always true: on Windows a user's temporary directory is private.
func ownedByUser(fs.FileInfo) bool { return true }

// socketLooksLikeFile is true because Windows reports a socket as a reparse
// point, with a mode that has changed between Go versions.
func socketLooksLikeFile(fs.FileInfo) bool { return true }

func notListening(err error) bool {
	return errors.Is(err, windows.WSAECONNREFUSED) || errors.Is(err, windows.ERROR_FILE_NOT_FOUND)
}
