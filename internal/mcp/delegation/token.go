package delegation

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// TokenEnv is the environment variable with the token of a conversation, for the processes of its agent and their MCP
// servers.
const TokenEnv = "PARLEY_TASK_TOKEN"

// maxToken bounds a token, in bytes.
const maxToken = 2 << 10

// TokenSigner signs tokens that name an agent and its conversation, and verifies them. It keeps no state but a key,
// which ends with the process. It is safe for concurrent use.
type TokenSigner struct{ key [32]byte }

// NewTokenSigner returns a TokenSigner with a new key.
func NewTokenSigner() *TokenSigner {
	s := &TokenSigner{}
	rand.Read(s.key[:]) // never fails: see crypto/rand
	return s
}

// Token returns the token of an agent's conversation.
func (s *TokenSigner) Token(agentID, contextID string) string {
	claims := agentID + "\n" + contextID // an agent's id has no line break
	return encoding.EncodeToString([]byte(claims)) + "." + encoding.EncodeToString(s.sign(claims))
}

// Env returns the token as an environment variable; for hub.Config.SessionEnv.
func (s *TokenSigner) Env(agentID, contextID string) []string {
	return []string{TokenEnv + "=" + s.Token(agentID, contextID)}
}

// Verify returns the agent and the conversation of a token; false if this signer has not signed it.
func (s *TokenSigner) Verify(token string) (mcpserver.Caller, bool) {
	if len(token) > maxToken {
		return mcpserver.Caller{}, false
	}
	text, sum, _ := strings.Cut(token, ".")
	claims, err := encoding.DecodeString(text)
	if err != nil {
		return mcpserver.Caller{}, false
	}
	given, err := encoding.DecodeString(sum)
	if err != nil || !hmac.Equal(given, s.sign(string(claims))) {
		return mcpserver.Caller{}, false
	}
	agentID, contextID, _ := strings.Cut(string(claims), "\n")
	return mcpserver.Caller{Agent: agentID, Context: contextID}, true
}

func (s *TokenSigner) sign(claims string) []byte {
	mac := hmac.New(sha256.New, s.key[:])
	mac.Write([]byte(claims))
	return mac.Sum(nil)
}

var encoding = base64.RawURLEncoding.Strict()
