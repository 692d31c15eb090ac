// Package docs has the documentation, for the site that the hub serves.
package docs

import "embed"

// Files are the pages, their pictures and the descriptions of the interfaces, without what is for contributors.
//
//go:embed [a-r]*.md sc*.md se*.md sw*.md [t-z]*.md P*.md *.svg page.png *.json
var Files embed.FS
