package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/federation/peers"
)

// edited are the files of a data directory that people and commands edit, with what they have.
type edited map[string][]byte

// newEdited writes the files into a data directory: no fault may change what they say.
func newEdited(ctx context.Context, data string) (edited, error) {
	trusted := filepath.Join(filepath.Dir(data), "trusted")
	err := os.MkdirAll(trusted, 0o700)
	if err == nil {
		_, _, err = config.NewTrust(data).Add(ctx, trusted)
	}
	if err != nil {
		return nil, err
	}
	list, err := identity.OpenAllowList(peers.AllowPath(data))
	if err == nil {
		err = list.Add(identity.Entry{Key: identity.Generate().Public(), Name: "bob"})
	}
	e := edited{peers.AllowPath(data): nil, config.NewTrust(data).File(): nil}
	for _, name := range []string{"installed.json", "loops/0123456789abcdef/state.json"} {
		path := filepath.Join(data, filepath.FromSlash(name))
		e[path] = nil
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700), statefile.Edited(path).Write([]byte(`{"version":1,"items":{}}`+"\n")))
	}
	for path := range e {
		raw, rerr := os.ReadFile(path)
		e[path], err = raw, errors.Join(err, rerr)
	}
	return e, err
}

// check uses the files, as commands do, and returns which say something else than before.
func (e edited) check() (broken []string) {
	for path, want := range e {
		got, err := statefile.Edited(path).ReadShared(path + ".lock")
		if err != nil || !bytes.Equal(got, want) {
			broken = append(broken, fmt.Sprintf("a flipped bit has changed %s: %q, %v", path, got, err))
		}
	}
	return broken
}
