package main

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
)

// readKey reads the private key that signs the checksums, as openssl genpkey -algorithm ed25519 writes it; nil without a path.
// Whoever has the public key checks the signature with openssl pkeyutl -verify -rawin, or with install.sh.
func readKey(path string) (ed25519.PrivateKey, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is no key in PEM; make one with: openssl genpkey -algorithm ed25519", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	signer, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is a %T; the checksums need a key of Ed25519, whose signatures are always the same", path, key)
	}
	return signer, nil
}
