package server

import (
	"cmp"
	"container/list"
	"crypto/rand"
	"sync"
)

// Client is the state of one agent: of its connection, or of its token if the protocol revision has no connections. It
// is safe for concurrent use.
type Client struct {
	mu     sync.Mutex
	handle string
	token  string // "" for a connection
	values map[any]any
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
	defer c.mu.Unlock()
	c.handle = handle
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
