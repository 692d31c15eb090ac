package hub

import (
	"context"
	"errors"
	"fmt"

	"github.com/parleyhub/parley/internal/runner"
	"github.com/parleyhub/parley/internal/workdir"
)

// workDirs are the directories that agents work in, as their definitions say.
type workDirs struct{ dirs *workdir.Dirs }

// hasWorkDir tells whether an agent gets a directory: echo touches no files.
func hasWorkDir(def runner.Definition) bool { return def.Driver != runner.DriverEcho }

// prepare returns the directory for a session, which is there then; "" for an
// agent that has none.
func (w workDirs) prepare(ctx context.Context, def runner.Definition, contextID string) (string, error) {
	if !hasWorkDir(def) {
		return "", nil
	}
	dir, err := w.dirs.Prepare(ctx, def.ID, contextID, workdir.Spec(def.WorkDir))
	switch {
	case err == nil:
		return dir, nil
	case errors.Is(err, workdir.ErrConfig), errors.Is(err, workdir.ErrOutside):
		return "", &runner.Error{
			Code: runner.CodeConfig, Message: fmt.Sprintf("agent %s: %v", def.ID, err),
			Remedy: "correct the agent's workdir, or workdirs.roots, in config.yaml", Err: err,
		}
	}
	return "", &runner.Error{
		Code: runner.CodeConfig, Message: fmt.Sprintf("the working directory of agent %s cannot be made", def.ID),
		Remedy: "check the data directory's permissions and free space", Err: err,
	}
}

// remove removes a context's directory.
func (w workDirs) remove(ctx context.Context, def runner.Definition, contextID string) error {
	if !hasWorkDir(def) {
		return nil
	}
	return w.dirs.Remove(ctx, def.ID, contextID, workdir.Spec(def.WorkDir))
}
