package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Tools are the tools of a service's groups. All its servers share them: a table of its own for each would take 16 KB.
type Tools struct {
	byName    map[string]*registered
	sorted    []*registered // by name
	oneOfMany bool
}

// toolsOf returns the tools of a service's groups.
func toolsOf(opts Options) *Tools {
	all := &Tools{byName: map[string]*registered{}, oneOfMany: opts.OneOfMany}
	for _, g := range opts.Groups {
		g.Tools(all)
	}
	all.sorted = slices.SortedFunc(maps.Values(all.byName), func(a, b *registered) int { return cmp.Compare(a.definition.Name, b.definition.Name) })
	return all
}

// registered is a tool of a group.
type registered struct {
	tool
	connected, stateless func() *mcp.Tool // see describe
}

// add adds a tool, or replaces the one of its name. Its schemas are made when they are needed first.
func (all *Tools) add(t tool) {
	describe := func(stateless bool) func() *mcp.Tool {
		return sync.OnceValue(func() *mcp.Tool {
			definition := t.definition
			definition.InputSchema, definition.OutputSchema = inputSchema(t, stateless), resultSchema(resultType{t.out, t.writtenBy != ""})
			if all.oneOfMany {
				return sharedTools.share(&definition)
			}
			return &definition
		})
	}
	all.byName[t.definition.Name] = &registered{tool: t, connected: describe(false), stateless: describe(true)}
}

// describe returns what the list of tools says. It must not be changed.
func (r *registered) describe(stateless bool) *mcp.Tool {
	if stateless {
		return r.stateless()
	}
	return r.connected()
}

// input returns the schema of the arguments.
func (r *registered) input(stateless bool) *jsonschema.Schema {
	return r.describe(stateless).InputSchema.(*jsonschema.Schema)
}

// carrier is the tool that the SDK's servers have for all tools of the groups: their calls are given to it, so that the SDK treats their
// results, and its changes are those of the list. It is not listed. The SDK would encode and decode each tool's schemas for each server,
// which took a third of a process's start.
var carrier = &mcp.Tool{Name: "any", InputSchema: &jsonschema.Schema{Type: "object"}}

// toolsChanged has the server tell its clients that the list of tools has changed. Called first, it adds the carrier.
func (s *Server) toolsChanged() {
	if len(s.service.tools().sorted) > 0 {
		s.mcp.AddTool(carrier, s.callCarried)
	}
}

// carriedCall is the context key of a [carried].
type carriedCall struct{}

// carried is a call of a group's tool that the carrier is called for.
type carried struct {
	tool *registered
	req  *mcp.CallToolRequest
}

// callCarried handles the calls of the carrier.
func (s *Server) callCarried(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	c, ok := ctx.Value(carriedCall{}).(carried)
	if !ok { // as the SDK
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("unknown tool %q", req.Params.Name)}
	}
	return s.call(ctx, c.tool, c.req), nil
}

// addTools adds the groups' tools to what the SDK has: shared ones.
func (s *Server) addTools(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch req := req.(type) {
		case *mcp.CallToolRequest:
			if t := s.service.tools().byName[req.Params.Name]; t != nil {
				params := *req.Params
				params.Name = carrier.Name
				ctx = context.WithValue(ctx, carriedCall{}, carried{t, req})
				return next(ctx, method, &mcp.CallToolRequest{Session: req.Session, Params: &params, Extra: req.Extra})
			}
		case *mcp.ListToolsRequest:
			first := req.Params == nil || req.Params.Cursor == ""
			result, err := next(ctx, method, req)
			if list, ok := result.(*mcp.ListToolsResult); ok && err == nil {
				s.completeList(list, first)
			}
			return result, err
		}
		return next(ctx, method, req)
	}
}

// completeList removes the carrier from a page of the list of tools, and adds the groups' tools to the first one.
func (s *Server) completeList(list *mcp.ListToolsResult, first bool) {
	list.Tools = slices.DeleteFunc(list.Tools, func(t *mcp.Tool) bool { return t == carrier })
	if !first {
		return
	}
	for _, t := range s.service.tools().sorted {
		list.Tools = append(list.Tools, t.describe(s.client == nil))
	}
	slices.SortStableFunc(list.Tools, func(a, b *mcp.Tool) int { return cmp.Compare(a.Name, b.Name) })
}

// maxSharedTools bounds the definitions that are kept for other projects: a few hundred, since most are the same in all.
const maxSharedTools = 2048

var sharedTools toolTable

// toolTable has the definitions of tools that the services of all projects share: a definition with its schemas takes 20 KB.
type toolTable struct {
	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*mcp.Tool
}

// share returns a definition that is equal to t. It must not be changed.
func (x *toolTable) share(t *mcp.Tool) *mcp.Tool {
	text, err := json.Marshal(t)
	if err != nil {
		return t
	}
	input := t.InputSchema.(*jsonschema.Schema)
	hash := sha256.Sum256(append(text, strings.Join(input.PropertyOrder, " ")...))
	x.mu.Lock()
	defer x.mu.Unlock()
	if known, ok := x.byHash[hash]; ok {
		return known
	}
	if x.byHash == nil {
		x.byHash = map[[sha256.Size]byte]*mcp.Tool{}
	}
	if len(x.byHash) < maxSharedTools {
		x.byHash[hash] = t
	}
	return t
}
