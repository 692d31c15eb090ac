package hub

import (
	"context"
	"errors"
	"fmt"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/workdir"
)

// errAskedDir is the cause of a run that could not begin because of the directory
// that its message asked for: the agent is not to blame.
var errAskedDir = errors.New("the message asked for a directory that cannot be had")

// dirSpec says where an agent works in a context: where its first message there
// asked for, else as its definition says.
func dirSpec(def runner.Definition, asked string) workdir.Spec {
	if asked != "" {
		return workdir.Spec{Policy: workdir.Fixed, Path: asked}
	}
	return workdir.Spec{Policy: def.WorkDir.Policy, Path: def.WorkDir.Path}
}

// prepareDir returns the directory for a session, which is there then; "" for an
// agent that touches no files.
func (p *sessions) prepareDir(ctx context.Context, def runner.Definition, contextID, asked string) (string, error) {
	if def.Driver == runner.DriverEcho || def.Driver == runner.DriverPeer {
		return "", nil
	}
	dir, err := p.dirs.Prepare(ctx, def.ID, contextID, dirSpec(def, asked))
	if err == nil {
		return dir, nil
	}
	e := &runner.Error{
		Code:    runner.CodeConfig,
		Message: fmt.Sprintf("agent %s has no working directory", def.ID),
		Remedy:  "check the data directory's permissions and free space",
		Err:     err,
	}
	if asked != "" && (errors.Is(err, workdir.ErrOutside) || errors.Is(err, workdir.ErrConfig)) {
		e.Err = fmt.Errorf("%w: %w", errAskedDir, err)
	}
	switch {
	case errors.Is(err, workdir.ErrOutside):
		e.Message, e.Remedy = fmt.Sprintf("agent %s may not work there: %v", def.ID, err), "add the directory, or one above it, to workdirs.roots in config.yaml"
	case errors.Is(err, workdir.ErrConfig) && asked != "":
		e.Message, e.Remedy = fmt.Sprintf("agent %s cannot work there: %v", def.ID, err), "name a directory that exists by its absolute path"
	case errors.Is(err, workdir.ErrConfig):
		e.Message, e.Remedy = fmt.Sprintf("agent %s: %v", def.ID, err), "correct the agent's workdir in config.yaml"
	}
	return "", e
}

// removeDir removes the directory that an agent had in a context. What holds
// work that is not committed stays.
func (p *sessions) removeDir(ctx context.Context, def runner.Definition, contextID string) error {
	if def.Driver == runner.DriverEcho || def.Driver == runner.DriverPeer {
		return nil
	}
	err := p.dirs.Remove(ctx, def.ID, contextID, dirSpec(def, ""))
	if errors.Is(err, workdir.ErrKept) {
		p.hub.log.Warn("a working directory is kept", "agent", def.ID, "reason", err)
		return nil
	}
	return err
}
