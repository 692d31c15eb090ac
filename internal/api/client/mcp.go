package client

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
)

// attachTimeout bounds the hub's answer.
const attachTimeout = 10 * time.Second

// AttachMCP opens an MCP connection to the hub, with one message per line. The token identifies an agent of the hub;
// "" is the user. ctx bounds the opening. The caller closes the connection.
func AttachMCP(ctx context.Context, socket, token string) (*MCPConn, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	c := &MCPConn{Conn: conn.nc, r: conn.r}
	if err := c.attach(ctx, conn, token); err != nil {
		_ = conn.nc.Close() // err is the cause
		return nil, err
	}
	return c, nil
}

// MCPConn is an MCP connection.
type MCPConn struct {
	net.Conn
	r *bufio.Reader
}

// Read implements io.Reader.
func (c *MCPConn) Read(b []byte) (int, error) { return c.r.Read(b) }

func (c *MCPConn) attach(ctx context.Context, conn *connection, token string) error {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		// It fails only on a closed connection.
		_ = c.SetDeadline(time.Unix(1, 0))
	})
	defer stop()
	if err := conn.send(ctx, dialect.MethodMCP, dialect.MCPParams{Token: token}, jsonrpc.NumberID(1)); err != nil {
		return err
	}
	line, err := conn.lines.Next()
	if err != nil {
		return lost(err)
	}
	var resp jsonrpc.Response
	if err := json.Unmarshal(line, &resp); err != nil {
		return fmt.Errorf("%w: it did not send JSON-RPC: %w", ErrLost, err)
	}
	if _, err := outcome(resp); err != nil {
		return err
	}
	if !stop() {
		return context.Cause(ctx)
	}
	return nil
}
