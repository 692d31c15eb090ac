// Package npm installs JavaScript modules into a cache outside of the tree.
package npm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Install installs the packages of a package.json, once for each content of the file, and returns the directory with its
// node_modules. The name distinguishes the directories of several files.
func Install(ctx context.Context, name string, manifest []byte) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(manifest)
	dir = filepath.Join(cache, "parley", name+"-"+hex.EncodeToString(sum[:8]))
	done := filepath.Join(dir, "installed")
	if _, err := os.Stat(done); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), manifest, 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("npm install of %s: %w", name, err)
	}
	return dir, os.WriteFile(done, nil, 0o600)
}
