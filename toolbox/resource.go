package toolbox

import (
	"context"
	"net/url"
	"regexp"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/yosida95/uritemplate/v3"
)

// Loader returns the content of a resource. ctx ends when the reader gives up. A
// template's loader must not trust what stands in the template's places: they may hold
// "..", encoded too. For
// a template's resource that does not exist it returns an error that wraps
// [ErrNoResource]. Contents without URI or MIME type get those of the resource.
type Loader func(ctx context.Context, uri string) (*mcp.ReadResourceResult, error)

// Text makes a Loader of a function that returns text.
func Text(load func(ctx context.Context, uri string) (string, error)) Loader {
	return func(ctx context.Context, uri string) (*mcp.ReadResourceResult, error) {
		text, err := load(ctx, uri)
		if err != nil {
			return nil, err
		}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{Text: text}}}, nil
	}
}

// Bytes makes a Loader of a function that returns bytes.
func Bytes(load func(ctx context.Context, uri string) ([]byte, error)) Loader {
	return func(ctx context.Context, uri string) (*mcp.ReadResourceResult, error) {
		data, err := load(ctx, uri)
		if err != nil {
			return nil, err
		}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{Blob: data}}}, nil
	}
}

// resource is a registered resource. It does not change.
type resource struct {
	*Provider
	shown *mcp.Resource
	load  Loader
}

// template is a registered resource template. It does not change.
type template struct {
	*Provider
	shown   *mcp.ResourceTemplate
	pattern *regexp.Regexp
	load    Loader
}

// AddResource offers a resource under its URI. r is not kept. Errors are
// [*Error]s.
func (p *Provider) AddResource(r *mcp.Resource, load Loader) error {
	made, err := p.newResource(r, load)
	if err != nil {
		return err
	}
	return add(p, p.box.resources, made.shown.URI, made, CodeDuplicate)
}

func (p *Provider) newResource(r *mcp.Resource, load Loader) (*resource, error) {
	if u, err := url.Parse(r.URI); err != nil || u.Scheme == "" || len(r.URI) > MaxURI {
		return nil, errorf(CodeInvalid, r.URI, p.id, "%.200q is not an absolute URI of at most %d bytes", r.URI, MaxURI)
	}
	if r.Name == "" {
		return nil, errorf(CodeInvalid, r.URI, p.id, "the resource %q needs a name", r.URI)
	}
	if err := p.describe(r.URI, r.Description, r.Name, r.Title, r.MIMEType); err != nil {
		return nil, err
	}
	shown := *r
	return &resource{Provider: p, shown: &shown, load: load}, nil
}

// AddResourceTemplate offers resources whose URIs follow a template (RFC 6570).
// t is not kept. Errors are [*Error]s.
func (p *Provider) AddResourceTemplate(t *mcp.ResourceTemplate, load Loader) error {
	made, err := p.newTemplate(t, load)
	if err != nil {
		return err
	}
	return add(p, p.box.templates, made.shown.URITemplate, made, CodeDuplicate)
}

func (p *Provider) newTemplate(t *mcp.ResourceTemplate, load Loader) (*template, error) {
	if len(t.URITemplate) > MaxURI {
		return nil, errorf(CodeInvalid, t.URITemplate[:MaxURI], p.id, "the URI template has %d bytes, at most %d are allowed", len(t.URITemplate), MaxURI)
	}
	pattern, err := uritemplate.New(t.URITemplate)
	if err != nil {
		return nil, failed(CodeInvalid, t.URITemplate, p.id, err, "the URI template cannot be used")
	}
	if scheme, err := url.Parse(pattern.Raw()[:max(0, schemeEnd(pattern.Raw()))]); err != nil || scheme.Scheme == "" {
		return nil, errorf(CodeInvalid, t.URITemplate, p.id, "the URI template %q must begin with a scheme", t.URITemplate)
	}
	if err := p.describe(t.URITemplate, t.Description, t.Name, t.Title, t.MIMEType); err != nil {
		return nil, err
	}
	shown := *t
	return &template{Provider: p, shown: &shown, pattern: pattern.Regexp(), load: load}, nil
}

// schemeEnd returns where the part up to and with the colon ends, or 0.
func schemeEnd(uri string) int {
	for i, c := range uri {
		switch {
		case c == ':':
			return i + 1
		case c == '{' || c == '/':
			return 0
		}
	}
	return 0
}

// Resource is a resource in a list.
type Resource struct {
	*mcp.Resource // do not change it
	SourceAgent   string
}

// Resources lists the resources that a caller may see, by URI.
func (b *Box) Resources(caller string) []Resource {
	all := visible(b, caller, b.resources)
	list := make([]Resource, len(all))
	for i, r := range all {
		list[i] = Resource{Resource: r.shown, SourceAgent: r.id}
	}
	return list
}

// ResourceTemplate is a template in a list.
type ResourceTemplate struct {
	*mcp.ResourceTemplate // do not change it
	SourceAgent           string
}

// ResourceTemplates lists the templates that a caller may see, by template.
func (b *Box) ResourceTemplates(caller string) []ResourceTemplate {
	all := visible(b, caller, b.templates)
	list := make([]ResourceTemplate, len(all))
	for i, t := range all {
		list[i] = ResourceTemplate{ResourceTemplate: t.shown, SourceAgent: t.id}
	}
	return list
}

// Read loads a resource: the one with this URI, or one of a template that
// it follows. Where several agents have one, it is that of the agent whose provider is
// oldest, so that nobody who comes later gets between. Errors are [*Error]s:
// CodeResourceNotFound with the URI if there is none.
func (b *Box) Read(ctx context.Context, caller, uri string) (*mcp.ReadResourceResult, error) {
	return b.read(ctx, caller, "", uri)
}

// read reads what an agent offers, or any one if only is "".
func (b *Box) read(ctx context.Context, caller, only, uri string) (*mcp.ReadResourceResult, error) {
	if len(uri) > MaxURI {
		return nil, resourceNotFound(uri[:MaxURI])
	}
	var owner *Provider
	var mimeType string
	var load Loader
	if r, known := find(b, caller, b.resources, uri); known && (only == "" || only == r.id) {
		owner, mimeType, load = r.Provider, r.shown.MIMEType, r.load
	}
	for _, t := range visible(b, caller, b.templates) {
		if (only == "" || only == t.id) && (owner == nil || t.Provider.number < owner.number) && t.pattern.MatchString(uri) {
			owner, mimeType, load = t.Provider, t.shown.MIMEType, t.load
		}
	}
	if owner == nil {
		return nil, resourceNotFound(uri)
	}
	return owner.read(ctx, uri, mimeType, load)
}
