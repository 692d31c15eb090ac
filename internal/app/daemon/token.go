package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/parleyhub/parley/internal/base/local"
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
	return readToken(filepath.Join(cfg.DataDir, tokenName))
}

// errToken is the error for a file that others may have read or written, or that has no token.
var errToken = errors.New("it is not a private file with a token")

func readToken(path string) (string, error) {
	f, err := openPrivate(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if len(token) < 16 || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", &fs.PathError{Op: "read", Path: path, Err: errToken}
	}
	return token, nil
}

// openPrivate opens a regular file that only the user can read.
func openPrivate(path string) (*os.File, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || !local.OwnedByUser(info) || local.OthersMayRead(info) {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errToken}
	}
	return os.Open(path)
}

// openToken reads the token of callers that are not the user's own, and makes it at the first start or when its file is
// not private. The file stays when a token is configured, for the day when it no longer is.
func (d *daemon) openToken(context.Context) error {
	path := filepath.Join(d.cfg.DataDir, tokenName)
	token, err := readToken(path)
	if err == nil {
		d.httpToken = token
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("the token for HTTP is replaced", "error", err)
	}
	token = rand.Text() + rand.Text()
	if err := local.ReplaceFile(path, []byte(token+"\n")); err != nil {
		return dataDirError(d.cfg.DataDir, err)
	}
	d.httpToken = token
	return nil
}
