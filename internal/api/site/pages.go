//go:build !prebuiltsite

package site

import (
	"github.com/parleyhub/parley/docs"
	"github.com/parleyhub/parley/internal/api/site/render"
)

// pages makes the site from its Markdown.
func pages(version string) map[string][]byte {
	files, _ := render.Build(docs.Files, version) // tests check the links, which do not matter here
	return files
}
