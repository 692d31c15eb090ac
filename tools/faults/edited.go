package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// edited is what files of a data directory say that people and commands edit: no fault may change it.
type edited struct {
	h       *hub
	trusted string // a directory
	paired  string // a hub's key
	token   []byte // that HTTP asks for
}

// edit edits the files of a running hub. The paired hub has no name: a bit of one may be what a person has changed.
func (h *hub) edit() error {
	key, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	e := &edited{h: h, trusted: filepath.Join(h.dir, "trusted"), paired: hex.EncodeToString(key)}
	if err := os.MkdirAll(e.trusted, 0o700); err != nil {
		return err
	}
	for _, args := range [][]string{{"trust", e.trusted}, {"peers", "pair", e.paired}} {
		if out, err := h.command(args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
	}
	if e.token, err = os.ReadFile(e.tokenFile()); err != nil {
		return err
	}
	h.edited = e
	return nil
}

func (e *edited) tokenFile() string { return filepath.Join(e.h.home, "data", "http-token") }

// check returns which files say something else than before, by what the program prints, and by the token itself, which the hub's start has mended.
func (e *edited) check() (broken []string) {
	for want, args := range map[string][]string{e.trusted: {"trust", "--list", "--format", "json"}, e.paired: {"peers", "list", "--format", "json"}} {
		if out, err := e.h.command(args...).CombinedOutput(); err != nil || !bytes.Contains(out, []byte(want)) {
			broken = append(broken, fmt.Sprintf("after a flipped bit %v does not have %s: %v\n%s", args, want, err, out))
		}
	}
	if token, err := os.ReadFile(e.tokenFile()); err != nil || !bytes.Equal(token, e.token) {
		broken = append(broken, fmt.Sprintf("after a flipped bit the hub has another token: %v", err))
	}
	return broken
}
