package server

import (
	"cmp"
	"container/list"
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"sync/atomic"
)

// Client is the state of one agent: of its connection, or of its token if the protocol revision has no connections. It
// is safe for concurrent use.
type Client struct {
	mu         sync.Mutex
	onRename   func() // called when the handle has changed; nil for none
	onPresence func() // called when gone has changed; nil for none
	handle     string
	token      string // "" for a connection
	program    string // its name of itself
	introduced chan struct{}
	values     map[any]any

	gone atomic.Bool // the program is gone, although its connection has not ended
}

// introduce notes what the client says of itself when it connects.
func (c *Client) introduce(program string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.program != "" || program == "" {
		return
	}
	c.program = program
	if c.introduced != nil {
		close(c.introduced)
	}
}

// awaitVendor returns the vendor of the client's program once the client has introduced itself, "" if the vendor is not
// known. The error is that of ctx.
func (c *Client) awaitVendor(ctx context.Context) (string, error) {
	c.mu.Lock()
	if c.program != "" {
		defer c.mu.Unlock()
		return vendorOf(c.program), nil
	}
	if c.introduced == nil {
		c.introduced = make(chan struct{})
	}
	introduced := c.introduced
	c.mu.Unlock()
	select {
	case <-introduced:
		return c.Vendor(), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// Vendor returns the vendor of the client's program, "" if it is not known.
func (c *Client) Vendor() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return vendorOf(c.program)
}

// vendorOf returns the vendor of a coding agent by the name that its MCP client gives itself, "" for any other program.
func vendorOf(program string) string {
	name, _, _ := strings.Cut(strings.ToLower(program), "-")
	switch name {
	case "claude", "codex", "gemini", "opencode", "vibe":
		return name
	case "mistral":
		return "vibe"
	}
	return ""
}

// Handle returns the agent's handle, "" if it has set none.
func (c *Client) Handle() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.handle
}

// SetHandle sets the agent's handle, which must be valid.
func (c *Client) SetHandle(handle string) {
	c.mu.Lock()
	c.handle = handle
	renamed := c.onRename
	c.mu.Unlock()
	if renamed != nil {
		renamed()
	}
}

// onRenamed has f called whenever the handle has changed. f must not block.
func (c *Client) onRenamed(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onRename = f
}

// onPresenceChanged has f called whenever the client is gone, or is back.
func (c *Client) onPresenceChanged(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onPresence = f
}

func (c *Client) presenceChanged() {
	c.mu.Lock()
	changed := c.onPresence
	c.mu.Unlock()
	if changed != nil {
		changed()
	}
}

// Value returns the value that a group stores under key, created by fresh the first time. The key has a type of the
// group's package.
func (c *Client) Value(key any, fresh func() any) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.values[key]
	if !ok {
		if c.values == nil {
			c.values = map[any]any{}
		}
		v = fresh()
		c.values[key] = v
	}
	return v
}

// maxTokens bounds the clients with tokens.
const maxTokens = 4096

// tokens holds the clients of protocol revisions without connections: the server issues a token, and the agent passes it
// with every call. The least recently used client is dropped first.
type tokens struct {
	max int // clients; 0 means maxTokens

	mu      sync.Mutex
	byToken map[string]*list.Element
	used    list.List // of *Client, the most recently used first
}

func (t *tokens) find(token string) (*Client, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.byToken[token]
	if !ok {
		return nil, false
	}
	t.used.MoveToFront(e)
	return e.Value.(*Client), true
}

// issue returns the client's token, a new one if it has none.
func (t *tokens) issue(c *Client) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token != "" {
		return c.token
	}
	c.token = rand.Text()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byToken == nil {
		t.byToken = map[string]*list.Element{}
	}
	if len(t.byToken) >= cmp.Or(t.max, maxTokens) {
		last := t.used.Back()
		delete(t.byToken, t.used.Remove(last).(*Client).token)
	}
	t.byToken[c.token] = t.used.PushFront(c)
	return c.token
}
