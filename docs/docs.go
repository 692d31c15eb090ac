// Package docs has the documentation, for the site that the hub serves.
package docs

import "embed"

// Files are the pages and their pictures, without what is for contributors.
//
//go:embed a*.md c*.md d*.md g*.md h*.md i*.md j*.md m*.md n*.md p*.md se*.md sw*.md t*.md v*.md P*.md *.svg
var Files embed.FS
