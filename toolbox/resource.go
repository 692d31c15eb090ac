package toolbox

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/yosida95/uritemplate/v3"
)

// Loader returns the content of a resource. ctx ends when the reader gives up. A template's loader must not trust
// the template's variables, which may contain "..", also encoded; for a resource that does not exist it returns an
// error that wraps [ErrNoResource]. Contents without URI or MIME type get those of the resource.
type Loader func(ctx context.Context, uri string) (*mcp.ReadResourceResult, error)

// Text converts a function that returns text to a Loader.
func Text(load func(ctx context.Context, uri string) (string, error)) Loader {
	return loader(load, func(text string) *mcp.ResourceContents { return &mcp.ResourceContents{Text: text} })
}

// Bytes converts a function that returns bytes to a Loader.
func Bytes(load func(ctx context.Context, uri string) ([]byte, error)) Loader {
	return loader(load, func(data []byte) *mcp.ResourceContents { return &mcp.ResourceContents{Blob: data} })
}

func loader[T any](load func(context.Context, string) (T, error), contents func(T) *mcp.ResourceContents) Loader {
	return func(ctx context.Context, uri string) (*mcp.ReadResourceResult, error) {
		value, err := load(ctx, uri)
		if err != nil {
			return nil, err
		}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents(value)}}, nil
	}
}

// resource is a registered resource or template of resources. It does not change.
type resource struct {
	entry
	mimeType string
	load     Loader
	pattern  *regexp.Regexp // of a template's URIs
}

// AddResource offers a resource under its URI. r is not kept. Errors are [*Error]s.
func (p *Provider) AddResource(r *mcp.Resource, load Loader) error {
	return p.add(p.newResource(r, load))
}

func (p *Provider) newResource(r *mcp.Resource, load Loader) (*resource, error) {
	if r == nil || load == nil {
		return nil, p.incomplete("a resource", "loader")
	}
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
	return &resource{entry{p, kindResource, r.URI, &shown, p.id}, r.MIMEType, load, nil}, nil
}

// AddResourceTemplate offers resources whose URIs follow a template (RFC 6570). t is not kept. Errors are [*Error]s.
func (p *Provider) AddResourceTemplate(t *mcp.ResourceTemplate, load Loader) error {
	return p.add(p.newTemplate(t, load))
}

func (p *Provider) newTemplate(t *mcp.ResourceTemplate, load Loader) (*resource, error) {
	if t == nil || load == nil {
		return nil, p.incomplete("a resource template", "loader")
	}
	if len(t.URITemplate) > MaxURI {
		return nil, errorf(CodeInvalid, t.URITemplate[:MaxURI], p.id, "the URI template has %d bytes, at most %d are allowed", len(t.URITemplate), MaxURI)
	}
	pattern, err := uritemplate.New(t.URITemplate)
	if err != nil {
		return nil, failed(CodeInvalid, t.URITemplate, p.id, err, "the URI template cannot be used")
	}
	scheme, _, _ := strings.Cut(pattern.Raw(), ":")
	if u, err := url.Parse(scheme + ":"); err != nil || u.Scheme == "" || len(scheme) == len(pattern.Raw()) {
		return nil, errorf(CodeInvalid, t.URITemplate, p.id, "the URI template %q must begin with a scheme", t.URITemplate)
	}
	if err := p.describe(t.URITemplate, t.Description, t.Name, t.Title, t.MIMEType); err != nil {
		return nil, err
	}
	shown := *t
	return &resource{entry{p, kindTemplate, t.URITemplate, &shown, p.id}, t.MIMEType, load, pattern.Regexp()}, nil
}

// Resource is a resource in a list.
type Resource struct {
	*mcp.Resource // do not change it
	SourceAgent   string
}

// Resources lists the resources that a caller may see, by URI.
func (b *Box) Resources(caller string) []Resource {
	return listed(b, caller, kindResource, func(r *mcp.Resource, from string) Resource { return Resource{r, from} })
}

// ResourceTemplate is a template in a list.
type ResourceTemplate struct {
	*mcp.ResourceTemplate // do not change it
	SourceAgent           string
}

// ResourceTemplates lists the templates that a caller may see, by template.
func (b *Box) ResourceTemplates(caller string) []ResourceTemplate {
	return listed(b, caller, kindTemplate, func(t *mcp.ResourceTemplate, from string) ResourceTemplate { return ResourceTemplate{t, from} })
}

// Read loads the resource with this URI or with a template that matches it. If several
// agents have one, the oldest provider's is read, so that a later agent cannot shadow
// it. Errors are [*Error]s: CodeResourceNotFound with the URI if there is none.
func (b *Box) Read(ctx context.Context, caller, uri string) (*mcp.ReadResourceResult, error) {
	return b.read(ctx, caller, "", uri)
}

// read is Read for the resources of one agent, or of all if only is "".
func (b *Box) read(ctx context.Context, caller, only, uri string) (*mcp.ReadResourceResult, error) {
	if len(uri) > MaxURI {
		return nil, resourceNotFound(uri[:MaxURI])
	}
	found, hidden := b.find(caller, kindResource, uri)
	r, _ := found.(*resource)
	if r != nil && only != "" && only != r.id {
		r = nil
	}
	for _, o := range b.visible(caller, kindTemplate) {
		t := o.(*resource)
		if (only == "" || only == t.id) && (r == nil || t.number < r.number) && t.pattern.MatchString(uri) {
			r = t
		}
	}
	if r == nil {
		if hidden == nil {
			b.refuseTemplate(caller, only, uri)
		}
		return nil, resourceNotFound(uri)
	}
	return r.read(ctx, uri)
}

// refuseTemplate records that a caller wanted a resource of a template that it may not see, if that is so.
func (b *Box) refuseTemplate(caller, only, uri string) {
	b.mu.RLock()
	all := slices.Collect(maps.Values(b.offers[kindTemplate]))
	b.mu.RUnlock()
	for _, o := range all {
		t := o.(*resource)
		if only != "" && only != t.id || !t.pattern.MatchString(uri) {
			continue
		}
		if why := b.permit(caller, t.id); why != nil {
			b.refuse(caller, &t.entry, why)
			return
		}
	}
}

// read loads a resource.
func (r *resource) read(ctx context.Context, uri string) (*mcp.ReadResourceResult, error) {
	result, err := guard(ctx, r.Provider, uri, func(ctx context.Context) (*mcp.ReadResourceResult, error) { return r.load(ctx, uri) })
	if err != nil {
		return nil, err
	}
	if result == nil || slices.Contains(result.Contents, nil) {
		return nil, errorf(CodeFailed, uri, r.source, "%s returned nothing", uri)
	}
	for _, c := range result.Contents {
		c.URI, c.MIMEType = cmp.Or(c.URI, uri), cmp.Or(c.MIMEType, r.mimeType)
	}
	return result, nil
}
