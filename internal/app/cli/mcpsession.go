package cli

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

// sessionReporter reports to the hub which session this MCP process serves, whenever that changes and whenever the hub comes
// back. The latest report counts.
type sessionReporter struct {
	app   *app
	log   *slog.Logger
	since time.Time
	token string        // of the conversation of the hub's agent in which this process runs; "" for none
	kick  chan struct{} // of capacity 1

	mu     sync.Mutex
	served mcpserver.SessionServed // the zero value for none
	// undisturbed are the GUIDs of the sessions that were quiet when the hub was asked.
	undisturbed []string
	asked       time.Time
}

func (a *app) newSessionReporter(token string, log *slog.Logger) *sessionReporter {
	return &sessionReporter{app: a, log: quietly(log), since: time.Now(), token: token, kick: make(chan struct{}, 1)}
}

// serve notes a session. It does not block. A program that is not known has no session that anybody could find; as an agent of the hub
// it may be any.
func (r *sessionReporter) serve(s mcpserver.SessionServed) {
	if s.Vendor == "" {
		if r.token == "" {
			return
		}
		s.Vendor = "other"
	}
	r.mu.Lock()
	r.served = s
	r.mu.Unlock()
	wait.Nudge(r.kick)
}

const (
	reportTime  = 5 * time.Second // of one attempt
	reportRetry = 30 * time.Second
	quietTime   = time.Second // for the question which sessions are quiet
	quietLife   = time.Second // of its answer
)

// run reports until ctx ends.
func (r *sessionReporter) run(ctx context.Context) {
	retry := wait.Backoff{First: 200 * time.Millisecond, Most: reportRetry}
	for {
		select {
		case <-r.kick:
		case <-ctx.Done():
			return
		}
		for {
			err := r.report(ctx)
			if err == nil {
				retry.Reset()
				break
			}
			r.log.Debug("the hub does not know yet which session this is", "error", err)
			if !retry.Pause(ctx) {
				return
			}
		}
	}
}

func (r *sessionReporter) report(ctx context.Context) error {
	r.mu.Lock()
	s := r.served
	r.mu.Unlock()
	if s == (mcpserver.SessionServed{}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	c, err := r.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.SessionServe(ctx, r.params(s))
	return err
}

func (r *sessionReporter) dial(ctx context.Context) (*client.Client, error) {
	socket, err := r.app.hubSocket(ctx)
	if err != nil {
		return nil, err
	}
	return client.Dial(ctx, socket)
}

// quiet reports whether an agent is an open session that is not to be disturbed, as far as the hub said so in the last second, or says so
// in time: a sender of many messages does not ask for each.
func (r *sessionReporter) quiet(ctx context.Context, guid string) bool {
	r.mu.Lock()
	quiet, known := r.undisturbed, time.Since(r.asked) < quietLife
	r.mu.Unlock()
	if !known {
		quiet = r.askQuiet(ctx)
		r.mu.Lock()
		r.undisturbed, r.asked = quiet, time.Now()
		r.mu.Unlock()
	}
	return slices.Contains(quiet, guid)
}

// askQuiet returns the GUIDs of the sessions that are not to be disturbed; none if the hub does not answer in time.
func (r *sessionReporter) askQuiet(ctx context.Context) (guids []string) {
	ctx, cancel := context.WithTimeout(ctx, quietTime)
	defer cancel()
	c, err := r.dial(ctx)
	if err != nil {
		return nil
	}
	defer c.Close()
	all, err := c.OpenSessions(ctx)
	if err != nil {
		return nil
	}
	for _, s := range all {
		if s.Quiet {
			guids = append(guids, s.GUID)
		}
	}
	return guids
}

// params describes the session and this process.
func (r *sessionReporter) params(s mcpserver.SessionServed) dialect.SessionServeParams {
	p := dialect.SessionServeParams{Vendor: s.Vendor, GUID: s.GUID, Session: s.Thread, Token: r.token, Since: dialect.Time{Time: r.since},
		Process: dialect.SessionProcess(r.app.sessionProcess(s.Vendor)), Server: dialect.SessionProcess(presence.Running(os.Getpid()))}
	p.Dir, _ = os.Getwd() // without it, process or thread tell the session
	if id := r.app.conversationOf(s.Vendor); id != "" {
		p.Session = id
	}
	return p
}

// conversationOf returns what a vendor's program calls the conversation for which it has started this process; "" if it does not say.
func (a *app) conversationOf(vendor string) string {
	if vendor != presence.Claude {
		return ""
	}
	return a.getenv("CLAUDE_CODE_SESSION_ID")
}
