package doctor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/mcp/mounts"
)

const (
	// serverTimeout bounds the check of one MCP server; the hub has the same limit.
	serverTimeout = 30 * time.Second
	// maxConcurrent bounds how many MCP servers are checked at once.
	maxConcurrent = 16
)

// mcpServers connects to each configured MCP server as a hub does, concurrently. It does not
// start a server that a running hub is connected to.
func (p Patient) mcpServers(ctx context.Context, hub *dialect.Status) []Finding {
	return concurrently(p.Config.MCPServers, maxConcurrent, func(name string, s config.MCPServer) Finding {
		return p.mcpServer(ctx, name, s, hub)
	})
}

func (p Patient) mcpServer(ctx context.Context, name string, s config.MCPServer, hub *dialect.Status) Finding {
	f := Finding{Check: "mcp-server", Server: name, Level: OK}
	if s.Disabled {
		f.Message = "is disabled in the configuration"
		return f
	}
	known := false
	if hub != nil {
		for _, at := range hub.MCPServers {
			if at.Name != name {
				continue
			}
			known = true
			if at.Connected {
				return p.offered(f, at.Tools, at.Resources, at.Prompts, at.Skipped)
			}
		}
	}
	limit := cmp.Or(p.ServerTimeout, serverTimeout)
	status, cause := mounts.Try(ctx, name, s, existingParent(p.Config.DataDir), limit)
	if cause == mounts.CauseNone {
		f = p.offered(f, status.Tools, status.Resources+status.Templates, status.Prompts, status.Skipped)
		if hub != nil && !known {
			f.Level, f.Remedy = Warning, "the running hub does not know it: run "+p.Program+" stop, then "+p.Program+" start"
		}
		return f
	}
	f.Level = Warning
	f.Message, f.Remedy = describeServer(name, s, cause, limit)
	if status.Why != "" && cause != mounts.CauseSilent {
		f.Message += ": " + text.OneLine(status.Why)
	}
	return f
}

func (p Patient) offered(f Finding, tools, resources, prompts, skipped int) Finding {
	f.Message = fmt.Sprintf("answers: %s, %s, %s", text.Count(tools, "tool"), text.Count(resources, "resource"), text.Count(prompts, "prompt"))
	if skipped > 0 {
		f.Level = Warning
		f.Message += fmt.Sprintf("; %d of its tools, resources or prompts are skipped", skipped)
		f.Remedy = "see the running hub's log for the reasons: " + daemon.LogPath(p.Config.DataDir)
	}
	return f
}

// describeServer describes why a server cannot be connected.
func describeServer(name string, s config.MCPServer, cause mounts.Cause, limit time.Duration) (message, remedy string) {
	key := "mcpServers." + name
	switch cause {
	case mounts.CauseNotFound:
		if _, err := os.Stat(s.Cwd); s.Cwd != "" && err != nil {
			return "cannot be started", "create the directory of " + key + ".cwd, or set another"
		}
		return "cannot be started", fmt.Sprintf("install %s, or set its path in %s.command", filepath.Base(s.Command), key)
	case mounts.CauseEnded:
		return "ended before it answered", "run its command by hand; its environment contains only what " + key + ".env and envAllow set"
	case mounts.CauseSilent:
		return fmt.Sprintf("has not answered within %s", limit), "check that it is an MCP server; the first run may download a package and take longer: try again"
	case mounts.CauseRefused:
		return "refused the connection", "check that the token in " + key + ".tokenFile or headers is correct and still valid"
	case mounts.CauseUnreachable:
		return "cannot be reached", "check that the server is running and that " + key + ".url is correct"
	}
	return "does not answer as an MCP server", "check that " + key + " is an MCP server; its url must be that of the endpoint, often with /mcp at the end"
}
