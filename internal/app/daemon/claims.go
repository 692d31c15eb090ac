package daemon

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/mcp/delegation"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// fileClaims are the claims of files for the hub's user. It implements dialect.Claims.
type fileClaims struct {
	files   *lazyAssigner
	members *members
	tokens  *delegation.TokenSigner
}

// FileClaims implements dialect.Claims.
func (f fileClaims) FileClaims(ctx context.Context) ([]dialect.FileClaim, error) {
	all, err := f.files.FileClaims(ctx)
	list := make([]dialect.FileClaim, len(all))
	for i, c := range all {
		list[i] = fileClaim(c)
	}
	return list, claimsError(err)
}

// CheckFiles implements dialect.Claims.
func (f fileClaims) CheckFiles(ctx context.Context, p dialect.FileCheckParams) ([]dialect.HeldFile, error) {
	guid := p.GUID
	if caller, ok := f.tokens.Verify(p.Token); ok {
		guid = cmp.Or(f.members.of(caller), guid)
	}
	hits, err := f.files.CheckFiles(ctx, guid, parseTargets(p.Files))
	held := make([]dialect.HeldFile, len(hits))
	for i, h := range hits {
		held[i] = dialect.HeldFile{FileClaim: fileClaim(h.Claim), Path: h.Path, Held: h.Held(h.Path), Ask: h.Ask()}
	}
	return held, claimsError(err)
}

// BreakFileClaim implements dialect.Claims.
func (f fileClaims) BreakFileClaim(ctx context.Context, id string) (dialect.BrokenClaim, error) {
	broken, notified, err := f.files.BreakFileClaim(ctx, id)
	return dialect.BrokenClaim{FileClaim: fileClaim(broken), Notified: notified}, claimsError(err)
}

func fileClaim(c claims.Claim) dialect.FileClaim {
	return dialect.FileClaim{ID: c.ID, Holder: c.Holder(), HolderGUID: c.HolderGUID, Repository: c.Repository, Paths: c.Paths, Mode: string(c.Mode),
		AllWorkTrees: c.Tree == "", TaskID: c.TaskID, Why: c.Why, Until: c.Until, ClaimedAt: c.ClaimedAt}
}

// parseTargets returns the files of a request; what names none is left out.
func parseTargets(names []string) (files []claims.Target) {
	for _, name := range names {
		if t, err := claims.ParseTarget(name); err == nil && len(files) < claims.MaxTargets {
			files = append(files, t)
		}
	}
	return files
}

// claimsError returns an error of the agents' network as one of the hub.
func claimsError(err error) error {
	e, ok := errors.AsType[*store.Error](err)
	if !ok {
		return err
	}
	he := &hub.Error{Code: hub.CodeUnavailable, Message: strings.TrimSuffix(e.Message, "."), Remedy: strings.TrimSuffix(e.Remedy, "."), Err: err}
	if e.Code == store.NotFoundError || e.Code == store.ValidationError {
		he.Code, he.Subject, he.Remedy = hub.CodeInvalid, "claimId", "list the claims with `"+local.Program()+" claims`"
	}
	return he
}

var _ dialect.Claims = fileClaims{}

// members are the agents of the agents' network that the hub's own agents are, where they have joined it. The zero value is ready.
type members struct {
	mu    sync.Mutex
	guids map[mcpserver.Caller]string
}

const maxPrograms = 1000

// joined notes the agent of a conversation: the latest counts.
func (p *members) joined(caller mcpserver.Caller, guid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.guids == nil || len(p.guids) >= maxPrograms { // the others report again when they register again
		p.guids = make(map[mcpserver.Caller]string)
	}
	p.guids[caller] = guid
}

// of returns the agent of a conversation, "" for none.
func (p *members) of(caller mcpserver.Caller) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.guids[caller]
}

// fileGuard answers the hub which files other agents hold than the one of a conversation.
type fileGuard struct{ d *daemon }

// held implements hub.Config.HeldFiles. It ends with ctx, also when the file system hangs.
func (g fileGuard) held(ctx context.Context, agentID, contextID string, files []string) ([]hub.HeldFile, error) {
	if g.d.files == nil || !g.d.files.used() {
		return nil, nil // nobody can have claimed anything
	}
	targets, err := g.d.locating.locate(ctx, files)
	if err != nil {
		return nil, err
	}
	guid := g.d.members.of(mcpserver.Caller{Agent: agentID, Context: contextID})
	var held []hub.HeldFile
	for some := range slices.Chunk(targets, claims.MaxTargets) {
		hits, err := g.d.files.CheckFiles(ctx, guid, some)
		if err != nil {
			return held, err
		}
		for _, h := range hits {
			if h.Mode == claims.Exclusive {
				held = append(held, hub.HeldFile{Path: h.Path, Holder: h.Holder(), Until: text.OneLine(text.Valid(h.Until, 40)), Held: h.Held(h.Path), Ask: h.Ask()})
			}
		}
	}
	return held, nil
}

// locator asks the file system what claims of files call them. It has capacity maxLocating, the calls that may be under way:
// a file system that hangs holds up these, not their callers.
type locator chan struct{}

const maxLocating = 16

// locate is claims.LocateAll, but ends with ctx also when the file system hangs.
func (l locator) locate(ctx context.Context, files []string) ([]claims.Target, error) {
	select {
	case l <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	located := make(chan []claims.Target, 1)
	go func() { // ends with the calls of the file system
		defer func() { <-l }()
		located <- claims.LocateAll(ctx, files)
	}()
	select {
	case all := <-located:
		return all, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
