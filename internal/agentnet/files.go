package agentnet

import (
	"context"
	"errors"
	"slices"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/store"
)

// claiming returns the member in whose bus the claims of files are: the hub's where there is one, because they are about this
// computer's files.
func (a *Agent) claiming() (*member, error) {
	if local := a.readyLocal(); local != nil {
		return local, nil
	}
	_, err := a.main.Ready()
	return a.main, err
}

// ClaimFiles claims files of the agent's project.
func (a *Agent) ClaimFiles(ctx context.Context, r claims.Request) (claims.Claim, error) {
	at, err := a.claiming()
	if err != nil {
		return claims.Claim{}, err
	}
	if at.Unlisted() {
		return claims.Claim{}, &store.Error{Code: store.NotRegisteredError, Message: "Only agents of the registry claim files.", Remedy: "Call register_agent first."}
	}
	b, err := at.Ready()
	if err != nil {
		return claims.Claim{}, err
	}
	return at.of.claims.Claim(ctx, b, at.Entry(), a.net.cfg.ProjectPath, r)
}

// ReleaseFiles ends claims of the agent in its project, those that match, and returns them.
func (a *Agent) ReleaseFiles(ctx context.Context, matches func(claims.Claim) bool) ([]claims.Claim, error) {
	at, repository, err := a.project()
	if err != nil {
		return nil, err
	}
	b, err := at.Ready()
	if err != nil {
		return nil, err
	}
	return at.of.claims.Release(ctx, b, a.GUID(), repository.Key, matches)
}

// FileClaims returns the claims of the agent's repository, its own too.
func (a *Agent) FileClaims(ctx context.Context) ([]claims.Claim, error) {
	at, repository, err := a.project()
	if err != nil {
		return nil, err
	}
	b, err := at.Ready()
	if err != nil {
		return nil, err
	}
	return at.of.claims.In(ctx, b, repository.Key)
}

// project returns where the claims of the agent's repository are.
func (a *Agent) project() (*member, claims.Repository, error) {
	at, err := a.claiming()
	if err != nil {
		return nil, claims.Repository{}, err
	}
	repository, err := claims.Find(a.net.cfg.Hostname, a.net.cfg.ProjectPath)
	return at, repository, err
}

// releaseTask ends the claims that end with a task. A failure is logged: they end by themselves.
func (a *Agent) releaseTask(ctx context.Context, task string) {
	if _, err := a.ReleaseFiles(ctx, func(c claims.Claim) bool { return c.TaskID == task }); err != nil {
		a.main.Log().Warn("the files of a task are claimed until the claim ends", "task", task, "error", err)
	}
}

// FileClaims returns the claims of all repositories, for people.
func (n *Network) FileClaims(ctx context.Context) ([]claims.Claim, error) {
	var all []claims.Claim
	err := n.eachClaims(func(be *backend) error {
		b, err := be.store.Connected()
		if err != nil {
			return err
		}
		found, err := be.claims.All(ctx, b)
		all = append(all, found...)
		return err
	})
	return all, err
}

// BreakFileClaim ends the claim of any agent, by its id or a part of it, and returns it.
func (n *Network) BreakFileClaim(ctx context.Context, id string) (broken claims.Claim, err error) {
	err = n.eachClaims(func(be *backend) error {
		b, err := be.store.Connected()
		if err == nil && broken.ID == "" {
			broken, err = be.claims.Break(ctx, b, id)
		}
		return err
	})
	if broken.ID != "" {
		return broken, nil
	}
	return broken, err
}

// eachClaims calls f with the hub's bus and the network's. It fails if f fails at all of them.
func (n *Network) eachClaims(f func(*backend) error) error {
	backends := []*backend{n.local, n.main}
	if n.local == nil {
		backends = backends[1:]
	}
	var errs []error
	for _, be := range backends {
		errs = append(errs, f(be))
	}
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}
