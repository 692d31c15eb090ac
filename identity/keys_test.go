package identity_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func seeded(n byte) *identity.Pair { return identity.FromSeed([32]byte(bytes.Repeat([]byte{n}, 32))) }

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The expected bytes come from the npm packages.
//
// WIRE-T1.
func TestVectors(t *testing.T) {
	one := seeded(1).Public()
	target := identity.Hash(one[:])
	for want, got := range map[string][32]byte{
		"8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c": one,
		"8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394": seeded(2).Public(),
		"ed4928c628d1c2c6eae90338905995612959273a5c63f93636c14614ac8737d1": seeded(3).Public(),
		"ca93ac1705187071d67b83c7ff0efe8108e8ec4530575d7726879333dbdabe7c": seeded(4).Public(),
		"c5e21ab1c9f6022d81c3b25e3436cb7f1df77f9652ae3e1310c28e621dd87b4c": target,
		"14d6d4b49214ab1033ed204976caa258bae9e1e8543b9ad1fd996a910b0c4e3a": identity.PeerHandshake,
		"f1191cd5e67b10b54a507033280ed1ff0e12278268d5679c8f93d417210d168b": identity.PeerHolepunch,
		"36386adddf9f6fd60db83a6f42fc159d1146aa8644037664230aaa1f0179d497": identity.Announce,
		"ded293cd93fb395e756ecf5fff426529e72c36eacc22e5ed944d9099a2561e32": identity.Unannounce,
		"668e823edd5ce7f5338d68bf1161f4a3c28ce437ee2ab49efd30d99366039b1e": identity.MutablePut,
		"6b8a2a8623f28c6c02a1e22abe515ce31cafd9af61d4b69970639aa7eb96a8d5": identity.Namespace("hyperswarm/dht", 10),
		"a931a0155b5c09e6d28628236af83c4b8a6af9af60986edeede9dc5d63192bf7": identity.StreamInitiator,
		"742c9d833d430af4c48a8705e91631eecf295442bbca18996e597097723b1061": identity.StreamResponder,
		"aab97d097471f56651b0460ffc8aaa7d3342f7377597d60b925a1dac689adcbf": identity.Namespace("hyperswarm/secret-stream", 2),
	} {
		if hex.EncodeToString(got[:]) != want {
			t.Errorf("got %x, want %s", got, want)
		}
	}
}

var (
	neutral      = "01" + strings.Repeat("00", 31)
	nonCanonical = "ee" + strings.Repeat("ff", 30) + "7f"
	badPoints    = map[string]string{
		"order 8":                 "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"mixed order":             "4075dbb597fbad7f4f06294126a980b0b988a773f2e887aaf06fbcbc7745a116",
		"identity":                neutral,
		"identity, non-canonical": nonCanonical,
		"not on the curve":        "02" + strings.Repeat("00", 31),
		"order 4":                 strings.Repeat("00", 32),
	}
)

// WIRE-T24.
func TestDHRefusesPointsOutsideTheGroup(t *testing.T) {
	p := seeded(1)
	for name, text := range badPoints {
		if _, err := p.DH(identity.PublicKey(unhex(t, text))); err == nil {
			t.Errorf("%s was accepted", name)
		}
		if _, err := identity.ParsePublicKey(text); err == nil {
			t.Errorf("%s was parsed", name)
		}
	}
	good := identity.PublicKey(unhex(t, "031c17a3a66b60e976a72673d9b0e38d352fd887fa58e3f48e0b7503caac6e5c"))
	if _, err := p.DH(good); err != nil {
		t.Errorf("a point of the prime-order group: %v", err)
	}
}

func TestDHAgrees(t *testing.T) {
	a, b := identity.Generate(), identity.Generate()
	x, err := a.DH(b.Public())
	if err != nil {
		t.Fatal(err)
	}
	if y, err := b.DH(a.Public()); err != nil || x != y {
		t.Errorf("%x, %x, %v", x, y, err)
	}
}

// With the identity point as the key, R = [s]B verifies for every message in crypto/ed25519.
//
// WIRE-T24.
func TestVerifyRefusesKeysThatSignEverything(t *testing.T) {
	key := identity.PublicKey(unhex(t, neutral))
	var sig [64]byte
	sig[0] = 1 // R is the identity, s is 0
	if identity.Verify(key, []byte("anything"), sig) {
		t.Error("a signature under the identity point verifies")
	}
	p := seeded(1)
	sig = p.Sign([]byte("this"))
	if !identity.Verify(p.Public(), []byte("this"), sig) || identity.Verify(p.Public(), []byte("that"), sig) {
		t.Error("a valid signature does not verify, or an invalid one does")
	}
}

// A hub reads its peers' keys again and again: the check of a valid one, which takes long, is made once.
func TestValidKeysAreRemembered(t *testing.T) {
	p := seeded(7)
	if !p.Public().Valid() {
		t.Fatal("a valid key is not valid")
	}
	if n := testing.AllocsPerRun(10, func() { p.Public().Valid() }); n > 0 {
		t.Errorf("a key that is known is checked again: %.0f allocations", n)
	}
	if sig := p.Sign([]byte("this")); identity.Verify(p.Public(), []byte("that"), sig) {
		t.Error("a signature verifies because its key is known")
	}
	bad := identity.PublicKey(unhex(t, neutral))
	for range 2 {
		if bad.Valid() {
			t.Error("a key that signs everything is valid")
		}
	}
}

func TestPublicKeyText(t *testing.T) {
	k := identity.Generate().Public()
	if back, err := identity.ParsePublicKey(k.String()); err != nil || back != k {
		t.Errorf("%v, %v", back, err)
	}
	for _, text := range []string{"", "zz", k.String() + "00"} {
		if _, err := identity.ParsePublicKey(text); err == nil {
			t.Errorf("%q was parsed", text)
		}
	}
}

func TestPairNeverPrintsItsSecret(t *testing.T) {
	p := identity.Generate()
	seed := p.Seed()
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, p); strings.Contains(text, hex.EncodeToString(seed[:])) || !strings.Contains(text, p.Public().String()) {
			t.Errorf("%s gives %s", format, text)
		}
	}
}

// WIRE-IDENTITY.
func TestLoadKeepsTheIdentity(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "identity")
	var pairs [8]*identity.Pair
	var wg sync.WaitGroup
	for i := range pairs { // concurrently, like several processes
		wg.Go(func() {
			p, err := identity.Load(path)
			if err != nil {
				t.Error(err)
				return
			}
			pairs[i] = p
		})
	}
	wg.Wait()
	for _, p := range pairs {
		if p == nil || p.Public() != pairs[0].Public() {
			t.Fatal("concurrent loads returned different identities")
		}
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 2 { // and the copy
		t.Errorf("the directory has %d files, %v", len(left), err)
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// WIRE-IDENTITY.
func TestLoadRefusesInvalidFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"empty": "", "short": "0102", "words": strings.Repeat("x", 64)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := identity.Load(path); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if _, err := identity.Load(dir); err == nil {
		t.Error("a directory was loaded")
	}
	if runtime.GOOS == "windows" {
		return
	}
	path := filepath.Join(dir, "open")
	if err := os.WriteFile(path, []byte(strings.Repeat("01", 32)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.Load(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others may read: %v", err)
	}
}

func TestDerivedKeys(t *testing.T) {
	p := identity.FromSeed([32]byte{1})
	a, b := p.Derive("a"), p.Derive("b")
	if a.Public() != identity.FromSeed([32]byte{1}).Derive("a").Public() {
		t.Error("the derived pair differs each time")
	}
	if a.Public() == b.Public() || a.Public() == p.Public() || a.Public() == identity.FromSeed([32]byte{2}).Derive("a").Public() {
		t.Error("different inputs derive the same pair")
	}
}

// A flipped bit in the file never makes another identity, and never is one lost.
func TestADamagedIdentityIsRestored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity")
	load := func() *identity.Pair {
		t.Helper()
		p, err := identity.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	own := load().Public()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range len(text) * 8 {
		flipped := slices.Clone(text)
		flipped[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		if load().Public() != own {
			t.Fatalf("bit %d makes another identity", bit)
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, text) {
			t.Fatalf("bit %d: the file is not restored: %v", bit, err)
		}
	}
	kept, err := filepath.Glob(path + ".damaged-*")
	if err != nil || len(kept) != len(text)*8 {
		t.Errorf("%d damaged files were kept, %v", len(kept), err)
	}
	for _, p := range append(kept, path+".copy") {
		if info, err := os.Stat(p); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
			t.Fatalf("others may read %s: %v", p, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if load().Public() != own {
		t.Error("without its file it is another identity")
	}
	for _, p := range []string{path, path + ".copy"} {
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	if load().Public() == own {
		t.Error("without its file and copy it is the same identity")
	}
}

// An identity of a former program gets a copy, and without a copy a damaged one stays as it is: the error has nothing of it.
func TestAnIdentityWithoutACopy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity")
	seed := strings.Repeat("0a", 32)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damaged := seed[:40] + "\x00" + seed[41:]
	write(damaged)
	for range 2 {
		if _, err := identity.Load(path); err == nil || strings.Contains(err.Error(), seed[:8]) || !strings.Contains(err.Error(), path) {
			t.Errorf("the error is %v", err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != damaged {
		t.Errorf("the file is %q, %v", text, err)
	}
	write(seed)
	own, err := identity.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	write(damaged)
	if p, err := identity.Load(path); err != nil || p.Public() != own.Public() {
		t.Errorf("not restored: %v", err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.Chmod(path+".copy", 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.Load(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a copy that others may read: %v", err)
	}
}

// Whoever keeps the secret elsewhere and has a link to it gets no copy beside the link.
func TestALinkedIdentityIsNotCopied(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "identity")
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte(strings.Repeat("0a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("secret", path); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.Load(path); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path + ".copy"); err == nil {
		t.Error("the secret was copied")
	}
}
