// Package render makes the documentation's web site from its Markdown: static pages with a search that needs no server. The hub
// serves it for its own version, and tools/site writes it into a directory.
package render

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

//go:embed page.html style.css search.js icon.svg
var assets embed.FS

// repository is where links lead that leave the documentation.
const repository = "https://github.com/parleyhub/parley/blob/main/"

// start is the first page.
const start = "a-second-opinion"

// group is a part of the list of pages.
type group struct {
	Title string
	Pages []string
}

// groups are the pages in the order of the list; those that it does not name follow in the last group.
var groups = []group{
	{"Guides", []string{start, "getting-started", "install", "waking", "file-claims", "handing-work-over", "agents", "mcp", "network-setup", "network-use", "peers-setup", "peers-use", "tools", "documents", "swarms", "reliability", "troubleshooting"}},
	{"Reference", []string{"cli", "configuration", "json", "http-api", "a2a", "network-reference", "network-operate", "peers-operate", "hyperswarm", "security", "versions"}},
	{"More", nil},
}

// page is a page of the site.
type page struct {
	name     string // without extension
	title    string
	body     ast.Node
	source   []byte
	anchors  map[string]bool
	sections []section
}

// section is what the search finds: a part of a page under a heading.
type section struct {
	Page    string `json:"p"` // the file
	Title   string `json:"t"` // of the page
	Heading string `json:"h"`
	Anchor  string `json:"a"`
	Body    string `json:"b"`
	Group   int    `json:"g"` // of the page: the search prefers the first
}

// Build returns the files of the site by their names, from a directory of Markdown. It returns an error for a link or an anchor
// that leads nowhere within the directory; the files are complete also then.
func Build(docs fs.FS, version string) (map[string][]byte, error) {
	names, err := fs.Glob(docs, "*.md")
	if err != nil {
		return nil, err
	}
	markdown := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	pages := map[string]*page{}
	for _, name := range names {
		source, err := fs.ReadFile(docs, name)
		if err != nil {
			return nil, err
		}
		pages[strings.TrimSuffix(name, ".md")] = parse(markdown, strings.TrimSuffix(name, ".md"), source)
	}
	b := builder{docs: docs, version: version, markdown: markdown, pages: pages, files: map[string][]byte{}}
	return b.files, b.build()
}

type builder struct {
	docs     fs.FS
	version  string
	markdown goldmark.Markdown
	pages    map[string]*page
	files    map[string][]byte
}

func (b *builder) build() error {
	layout, err := assets.ReadFile("page.html")
	if err != nil {
		return err
	}
	var broken []error
	var index []section
	for i, g := range b.list() {
		for _, name := range g.Pages {
			p := b.pages[name]
			for j := range p.sections {
				p.sections[j].Group = i
			}
			broken = append(broken, b.link(p)...)
			if err := b.render(string(layout), p); err != nil {
				return err
			}
			index = append(index, p.sections...)
		}
	}
	sections, err := json.Marshal(index)
	if err != nil {
		return err
	}
	b.files["sections.js"] = fmt.Appendf(nil, "globalThis.sections = %s;\n", sections)
	b.files["index.html"] = b.files[start+".html"]
	if err := b.addDescriptions(); err != nil {
		return err
	}
	for _, name := range []string{"style.css", "search.js", "icon.svg"} {
		if b.files[name], err = assets.ReadFile(name); err != nil {
			return err
		}
	}
	return errors.Join(broken...)
}

// addDescriptions adds the descriptions of the interfaces for programs.
func (b *builder) addDescriptions() error {
	names, err := fs.Glob(b.docs, "*.json")
	for _, name := range names {
		if b.files[name], err = fs.ReadFile(b.docs, name); err != nil {
			return err
		}
	}
	return err
}

// list returns the groups with the pages that exist.
func (b *builder) list() []group {
	left := map[string]bool{}
	for name := range b.pages {
		left[name] = true
	}
	var all []group
	for i, g := range groups {
		var pages []string
		for _, name := range g.Pages {
			if left[name] {
				pages = append(pages, name)
				delete(left, name)
			}
		}
		if i == len(groups)-1 {
			for name := range left {
				pages = append(pages, name)
			}
			slices.Sort(pages)
		}
		all = append(all, group{g.Title, pages})
	}
	return all
}

// parse reads a page and its sections.
func parse(markdown goldmark.Markdown, name string, source []byte) *page {
	p := &page{name: name, title: name, source: source, anchors: map[string]bool{}, body: markdown.Parser().Parse(text.NewReader(source))}
	var words strings.Builder
	current := section{Page: name + ".html"}
	flush := func() {
		if current.Body = strings.Join(strings.Fields(words.String()), " "); current.Body != "" || current.Heading != "" {
			p.sections = append(p.sections, current)
		}
		words.Reset()
	}
	for node := p.body.FirstChild(); node != nil; node = node.NextSibling() {
		heading, ok := node.(*ast.Heading)
		if !ok {
			collect(&words, node, source)
			continue
		}
		var title strings.Builder
		collect(&title, heading, source)
		id, _ := heading.AttributeString("id")
		anchor, _ := id.([]byte)
		p.anchors[string(anchor)] = true
		clean := strings.Join(strings.Fields(title.String()), " ")
		if heading.Level == 1 && p.title == name {
			p.title = clean
			continue
		}
		flush()
		current = section{Page: name + ".html", Heading: clean, Anchor: string(anchor)}
	}
	flush()
	for i := range p.sections {
		p.sections[i].Title = p.title
	}
	return p
}

// collect appends the text of a node and of those in it.
func collect(b *strings.Builder, node ast.Node, source []byte) {
	_ = ast.Walk(node, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Value(source))
			if n.SoftLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			b.Write(n.Lines().Value(source))
		}
		if n.Type() == ast.TypeBlock {
			b.WriteByte(' ')
		}
		return ast.WalkContinue, nil
	})
	b.WriteByte(' ')
}

// link points the links of a page to the pages of the site and to the repository, takes the pictures, and returns what leads
// nowhere.
func (b *builder) link(p *page) (broken []error) {
	_ = ast.Walk(p.body, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		var err error
		switch n := n.(type) {
		case *ast.Link:
			n.Destination, err = b.target(p, string(n.Destination))
		case *ast.Image:
			name := string(n.Destination)
			b.files[name], err = fs.ReadFile(b.docs, name)
		}
		if err != nil {
			broken = append(broken, fmt.Errorf("%s.md: %w", p.name, err))
		}
		return ast.WalkContinue, nil
	})
	return broken
}

// target returns where a link of a page leads in the site.
func (b *builder) target(p *page, to string) ([]byte, error) {
	u, err := url.Parse(to)
	if err != nil || u.IsAbs() || u.Host != "" {
		return []byte(to), err
	}
	if name, ok := strings.CutSuffix(u.Path, ".md"); ok || u.Path == "" {
		if u.Path == "" {
			name = p.name
		}
		if other := b.pages[name]; other != nil {
			if u.Fragment != "" && !other.anchors[u.Fragment] {
				err = fmt.Errorf("no heading for the link %s", to)
			}
			if u.Path != "" {
				u.Path = name + ".html"
			}
			return []byte(u.String()), err
		}
		if !strings.Contains(name, "/") && name != "spec-coverage" {
			return []byte(to), fmt.Errorf("no page for the link %s", to)
		}
	}
	if path.Ext(u.Path) == ".json" && !strings.Contains(u.Path, "/") {
		_, err = fs.Stat(b.docs, u.Path)
		return []byte(to), err
	}
	u.Path = path.Join("docs", u.Path)
	return []byte(repository + u.String()), nil
}

// render writes a page into the layout. It does without html/template, which keeps the linker from leaving out what the program
// does not call: five megabytes.
func (b *builder) render(layout string, p *page) error {
	var body bytes.Buffer
	if err := b.markdown.Renderer().Render(&body, p.source, p.body); err != nil {
		return err
	}
	b.files[p.name+".html"] = []byte(strings.NewReplacer(
		"{{title}}", html.EscapeString(p.title), "{{version}}", html.EscapeString(b.version), "{{pages}}", b.navigation(p), "{{body}}", body.String(),
	).Replace(layout))
	return nil
}

// navigation returns the list of pages, on a page.
func (b *builder) navigation(on *page) string {
	var nav strings.Builder
	for _, g := range b.list() {
		if len(g.Pages) == 0 {
			continue
		}
		fmt.Fprintf(&nav, "<h2>%s</h2>\n<ul>\n", html.EscapeString(g.Title))
		for _, name := range g.Pages {
			current := ""
			if name == on.name {
				current = ` aria-current="page"`
			}
			fmt.Fprintf(&nav, "<li><a href=\"%s.html\"%s>%s</a></li>\n", html.EscapeString(name), current, html.EscapeString(b.pages[name].title))
		}
		nav.WriteString("</ul>\n")
	}
	return nav.String()
}
