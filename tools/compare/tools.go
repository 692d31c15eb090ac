package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// toolRows are calls of one tool of a mounted MCP server: through Parley, through other mounts, and at the server itself.
func (r *rig) toolRows() []row {
	var rows []row
	for _, callers := range []int{1, 8} {
		at := func(name, tool string, open func() (mcp.Transport, error)) contender {
			session := sync.OnceValues(func() (*mcp.ClientSession, error) { return r.connectTo(name, tool, open) })
			return contender{name, func(ctx context.Context, slice time.Duration) (float64, error) {
				s, err := session()
				if err != nil {
					return 0, err
				}
				return rate(ctx, slice, callers, func(ctx context.Context) error { return callEcho(ctx, s, tool) })
			}}
		}
		rows = append(rows, row{name: fmt.Sprintf("mounted tool call, %d at once", callers), unit: "/s",
			ours: []contender{at("parley mcp", "tool.echo", r.parleyMCP), at("parley /mcp", "tool.echo", r.hubMCP)},
			peers: []contender{at("mcp-hub", "tool__echo", r.mcpHub), at("mcp-proxy", "echo", r.mcpProxy),
				at("the server itself", "echo", r.direct)}})
	}
	return rows
}

const echoed = "hello"

func callEcho(ctx context.Context, s *mcp.ClientSession, tool string) error {
	_, err := callTool(ctx, s, tool, map[string]any{"text": echoed}, echoed)
	return err
}

// callTool calls a tool whose answer must contain a text, and returns the answer.
func callTool(ctx context.Context, s *mcp.ClientSession, tool string, arguments map[string]any, want string) (string, error) {
	result, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		return "", err
	}
	var said strings.Builder
	for _, c := range result.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			said.WriteString(text.Text)
		}
	}
	if result.IsError || !strings.Contains(said.String(), want) {
		return "", fmt.Errorf("%s answered %.300q", tool, said.String())
	}
	return said.String(), nil
}

// connectTo connects a client until the end of the row, once the server has its tool.
func (r *rig) connectTo(name, tool string, open func() (mcp.Transport, error)) (s *mcp.ClientSession, err error) {
	t, err := open()
	if err != nil {
		return nil, err
	}
	if _, program := t.(*mcp.CommandTransport); program {
		if s, err = r.connect(t); err != nil {
			return nil, err
		}
		return s, r.await(name, func(ctx context.Context) error { return callEcho(ctx, s, tool) })
	}
	err = r.await(name, func(ctx context.Context) error {
		if s, err = r.connect(t); err != nil {
			return err
		}
		return callEcho(ctx, s, tool)
	})
	return s, err
}

// connect connects a client until the end of the row.
func (r *rig) connect(t mcp.Transport) (*mcp.ClientSession, error) {
	c := mcp.NewClient(&mcp.Implementation{Name: "compare", Version: "1"}, nil)
	s, err := c.Connect(r.ctx, t, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		return nil, err
	}
	r.afterRow(func() { _ = s.Close() }) // its program may have ended
	return s, nil
}

// command is the transport of a program that ends with the row.
func (r *rig) command(env []string, dir, program string, args ...string) *mcp.CommandTransport {
	cmd := exec.CommandContext(r.ctx, program, args...)
	cmd.Env, cmd.Dir = env, dir
	return &mcp.CommandTransport{Command: cmd}
}

func (r *rig) direct() (mcp.Transport, error) {
	tool, err := r.tool()
	if err != nil {
		return nil, err
	}
	return r.command(nil, "", tool), nil
}

func (r *rig) parleyMCP() (mcp.Transport, error) {
	h, err := r.commit()
	if err != nil {
		return nil, err
	}
	return r.agent(h, "tools", "")
}

// agent is the MCP process of an agent in a project.
func (r *rig) agent(h *hub, project, config string) (mcp.Transport, error) {
	parley, err := r.parley()
	if err != nil {
		return nil, err
	}
	dir, err := h.project(project, config)
	if err != nil {
		return nil, err
	}
	return r.command(h.env, dir, parley, "mcp"), nil
}

func (r *rig) hubMCP() (mcp.Transport, error) {
	h, err := r.commit()
	if err != nil {
		return nil, err
	}
	dir, err := h.project("tools", "")
	return &mcp.StreamableClientTransport{Endpoint: h.url + "/mcp?project=" + dir}, err
}

// peer starts a program of npm at a port until the end of the row.
func (r *rig) peer(script string, args func(port, tool string) ([]string, error)) (port int, err error) {
	modules, err := r.peers()
	if err != nil {
		return 0, err
	}
	node, err := r.node()
	if err != nil {
		return 0, err
	}
	tool, err := r.tool()
	if err != nil {
		return 0, err
	}
	if port, err = freePort(); err != nil {
		return 0, err
	}
	more, err := args(fmt.Sprint(port), tool)
	if err != nil {
		return 0, err
	}
	home, err := os.MkdirTemp(r.dir, "peer")
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(r.ctx, node, append([]string{filepath.Join(modules, "node_modules", filepath.FromSlash(script))}, more...)...)
	cmd.Env, cmd.Dir = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_STATE_HOME="+home), home
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	r.afterRow(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	return port, nil
}

func (r *rig) mcpHub() (mcp.Transport, error) {
	port, err := r.peer("mcp-hub/dist/cli.js", func(port, tool string) ([]string, error) {
		config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"tool": map[string]any{"command": tool, "args": []string{}}}})
		if err != nil {
			return nil, err
		}
		file := filepath.Join(r.dir, "mcp-hub-"+port+".json")
		return []string{"--port", port, "--config", file}, os.WriteFile(file, config, 0o600)
	})
	return &mcp.SSEClientTransport{Endpoint: fmt.Sprintf("http://127.0.0.1:%d/mcp", port)}, err
}

func (r *rig) mcpProxy() (mcp.Transport, error) {
	port, err := r.peer("mcp-proxy/dist/bin/mcp-proxy.mjs", func(port, tool string) ([]string, error) {
		return []string{"--port", port, "--host", "127.0.0.1", "--server", "stream", "--", tool}, nil
	})
	return &mcp.StreamableClientTransport{Endpoint: fmt.Sprintf("http://127.0.0.1:%d/mcp", port)}, err
}
