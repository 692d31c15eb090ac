// Package docs has the documentation, for the site that the hub serves.
package docs

import "embed"

// Files are the pages and their pictures, without what is for contributors.
//
//go:embed [a-r]*.md sc*.md se*.md sw*.md [t-z]*.md P*.md *.svg
var Files embed.FS
