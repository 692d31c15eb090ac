package delegation

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// TokenEnv is the variable that carries the token of a conversation to the
// processes of its agent, the MCP servers among them.
const TokenEnv = "PARLEY_TASK_TOKEN"

// maxToken bounds what is looked at, in bytes: ids are short.
const maxToken = 2 << 10

// Badges makes tokens for the conversations of agents and tells whose they are.
// Nothing is kept: a token is signed, with a key that ends with the process. It is
// safe for concurrent use.
type Badges struct{ key [32]byte }

// NewBadges returns Badges with a key of its own.
func NewBadges() *Badges {
	b := &Badges{}
	rand.Read(b.key[:]) // never fails: see crypto/rand
	return b
}

// Token returns the token of an agent's conversation.
func (b *Badges) Token(agentID, contextID string) string {
	who := agentID + "\n" + contextID // an agent's id has no line end
	return encode([]byte(who)) + "." + encode(b.sign(who))
}

// Env is the token in the environment; for hub.Config.SessionEnv.
func (b *Badges) Env(agentID, contextID string) []string {
	return []string{TokenEnv + "=" + b.Token(agentID, contextID)}
}

// Holder returns whose token this is; false if it is none of this hub's.
func (b *Badges) Holder(token string) (mcpserver.Caller, bool) {
	if len(token) > maxToken {
		return mcpserver.Caller{}, false
	}
	text, sum, _ := strings.Cut(token, ".")
	who, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return mcpserver.Caller{}, false
	}
	given, err := base64.RawURLEncoding.Strict().DecodeString(sum)
	if err != nil || !hmac.Equal(given, b.sign(string(who))) {
		return mcpserver.Caller{}, false
	}
	agentID, contextID, _ := strings.Cut(string(who), "\n")
	return mcpserver.Caller{Agent: agentID, Context: contextID}, true
}

func (b *Badges) sign(who string) []byte {
	mac := hmac.New(sha256.New, b.key[:])
	mac.Write([]byte(who))
	return mac.Sum(nil)
}

func encode(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }
