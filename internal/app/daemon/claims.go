package daemon

import (
	"context"
	"errors"
	"strings"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/hub"
)

// fileClaims are the claims of files for the hub's user. It implements dialect.Claims.
type fileClaims struct{ files *lazyAssigner }

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
	hits, err := f.files.CheckFiles(ctx, p.GUID, parseTargets(p.Files))
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
