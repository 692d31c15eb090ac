package doctor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/tools/mounts"
)

// serverPatience bounds the examination of one MCP server: as long as a hub gives it.
const serverPatience = 30 * time.Second

// maxTried bounds how many MCP servers are examined at once.
const maxTried = 16

// mcpServers connects each MCP server of the configuration as a hub does, all at once.
// One that a running hub is connected with is not begun a second time.
func (p Patient) mcpServers(ctx context.Context, hub *dialect.Status) []Finding {
	names := slices.Sorted(maps.Keys(p.Config.MCPServers))
	findings := make([]Finding, len(names))
	places := make(chan struct{}, maxTried)
	var wait sync.WaitGroup
	for i, name := range names {
		wait.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			findings[i] = p.mcpServer(ctx, name, p.Config.MCPServers[name], hub)
		})
	}
	wait.Wait()
	return findings
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
	patience := serverPatience
	if p.ServerPatience > 0 {
		patience = p.ServerPatience
	}
	status, cause := mounts.Try(ctx, name, s, existingParent(p.Config.DataDir), patience)
	if cause == mounts.CauseNone {
		f = p.offered(f, status.Tools, status.Resources+status.Templates, status.Prompts, status.Skipped)
		if hub != nil && !known {
			f.Level, f.Remedy = Warning, "the running hub does not know it: run "+p.Program+" stop, then "+p.Program+" start"
		}
		return f
	}
	f.Level = Warning
	f.Message, f.Remedy = describeServer(name, s, cause, patience)
	if status.Why != "" && cause != mounts.CauseSilent {
		f.Message += ": " + strings.Join(strings.Fields(status.Why), " ")
	}
	return f
}

func (p Patient) offered(f Finding, tools, resources, prompts, skipped int) Finding {
	f.Message = fmt.Sprintf("answers: %d tools, %d resources, %d prompts", tools, resources, prompts)
	if skipped > 0 {
		f.Level = Warning
		f.Message += fmt.Sprintf("; %d things of it cannot be taken in", skipped)
		f.Remedy = "a hub that runs says in its log what and why: " + daemon.LogPath(p.Config.DataDir)
	}
	return f
}

// describeServer puts what keeps a server from being connected into words.
func describeServer(name string, s config.MCPServer, cause mounts.Cause, patience time.Duration) (message, remedy string) {
	key := "mcpServers." + name
	switch cause {
	case mounts.CauseNotFound:
		if _, err := os.Stat(s.Cwd); s.Cwd != "" && err != nil {
			return "cannot be started", "make the directory that " + key + ".cwd names, or name another"
		}
		return "cannot be started", fmt.Sprintf("install %s, or name its path in %s.command", filepath.Base(s.Command), key)
	case mounts.CauseEnded:
		return "ended before it answered", "run its command by hand; it gets only the environment that " + key + ".env and envAllow name"
	case mounts.CauseSilent:
		return fmt.Sprintf("has not answered within %s", patience), "see whether it speaks MCP there; a package that is loaded at first may need longer: try again"
	case mounts.CauseRefused:
		return "refuses us", "see whether the token in " + key + ".tokenFile or headers is right, and still good"
	case mounts.CauseUnreachable:
		return "cannot be reached", "see whether the server runs, and whether " + key + ".url is right"
	}
	return "does not answer as an MCP server", "see whether " + key + " names an MCP server; the url is that of its endpoint, often with /mcp at the end"
}
