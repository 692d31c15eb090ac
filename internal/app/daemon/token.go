package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/config"
)

const (
	tokenName = "http-token"
	maxToken  = 4 << 10 // bytes
)

// Token returns the token with which a program of the user calls the hub over HTTP and gRPC: the configured one, or that of
// the file http-token in the data directory, which the hub makes at its first start.
func Token(cfg *config.Loaded) (string, error) {
	if cfg.HTTP.Token != "" {
		return cfg.HTTP.Token, nil
	}
	return readToken(cfg.DataDir, func(f statefile.Raw) ([]byte, error) {
		data, _, err := f.Peek() // the hub mends it
		return data, err
	})
}

func tokenFile(dataDir string) statefile.Raw {
	return statefile.Edited(filepath.Join(dataDir, tokenName))
}

// errToken is the error for a file that others may have read or written, or that has no token.
var errToken = errors.New("it is not a private file with a token")

func readToken(dataDir string, read func(statefile.Raw) ([]byte, error)) (string, error) {
	f := tokenFile(dataDir)
	if err := checkPrivate(f.Path); err != nil {
		return "", err
	}
	data, err := read(f)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if len(token) < 16 || len(data) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", &fs.PathError{Op: "read", Path: f.Path, Err: errToken}
	}
	return token, nil
}

// checkPrivate returns an error for what is not a regular file that only the user can read.
func checkPrivate(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || !local.OwnedByUser(info) || local.OthersMayRead(info) {
		return &fs.PathError{Op: "read", Path: path, Err: errToken}
	}
	return nil
}

// openToken reads the token of callers that are not the user's own, and makes it at the first start or when its file is
// not private. The file stays when a token is configured, for the day when it no longer is.
func (d *daemon) openToken(context.Context) error {
	token, err := readToken(d.cfg.DataDir, func(f statefile.Raw) ([]byte, error) {
		f.Damaged = d.fileDamaged
		return f.Read()
	})
	if err == nil {
		d.httpToken = token
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("the token for HTTP is replaced", "error", err)
	}
	token = rand.Text() + rand.Text()
	if err := tokenFile(d.cfg.DataDir).Write([]byte(token + "\n")); err != nil {
		return dataDirError(d.cfg.DataDir, err)
	}
	d.httpToken = token
	return nil
}
