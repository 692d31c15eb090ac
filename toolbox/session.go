package toolbox

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/mcp/wire"
)

// firstStateless is the first revision whose requests name the client. Revisions are dates, which sort as text.
const firstStateless = "2026-07-28"

// clientInfo is what a mounted server learns of its client.
var clientInfo = &mcp.Implementation{Name: "parley", Version: "1"}

// session is a connection to a mounted server.
type session struct {
	*mcp.ClientSession
	direct *wire.Calls    // calls of tools beside the SDK; nil if its transport knows more of a call than its message
	about  map[string]any // in the _meta of each direct request
}

func newSession(s *mcp.ClientSession, transport mcp.Transport) *session {
	made := &session{ClientSession: s}
	made.direct, _ = transport.(*wire.Calls)
	if revision := s.InitializeResult().ProtocolVersion; revision >= firstStateless {
		made.about = map[string]any{
			mcp.MetaKeyProtocolVersion: revision, mcp.MetaKeyClientInfo: clientInfo, mcp.MetaKeyClientCapabilities: struct{}{},
		}
	}
	return made
}

// call calls a tool. meta may be changed.
func (s *session) call(ctx context.Context, name string, arguments json.RawMessage, meta map[string]any) (outcome, error) {
	if s.direct == nil {
		result, err := s.CallTool(ctx, &mcp.CallToolParams{Meta: meta, Name: name, Arguments: arguments})
		return outcome{value: result}, err
	}
	for key, value := range s.about {
		meta[key] = value
	}
	if err := rawjson.Check(arguments, maxArgumentsDepth); err != nil {
		return outcome{}, fmt.Errorf("the arguments are not JSON: %w", err)
	}
	params, err := json.Marshal(struct {
		Meta map[string]any `json:"_meta"`
		Name string         `json:"name"`
	}{meta, name})
	if err != nil {
		return outcome{}, err
	}
	params = append(append(append(params[:len(params)-1], `,"arguments":`...), arguments...), '}')
	result, err := s.direct.Call(ctx, "tools/call", params)
	if err != nil {
		return outcome{}, err
	}
	out, err := received(result)
	if err != nil {
		err = fmt.Errorf("calling %q: %w", "tools/call", err)
	}
	return out, err
}

// maxArgumentsDepth is as deep as the SDK's servers read.
const maxArgumentsDepth = 1000
