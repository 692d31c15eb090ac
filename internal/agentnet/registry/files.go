package registry

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/base/statefile"
)

// The state directory has three kinds of files that decide which agent a process is. All have a checksum and a copy, since a flipped bit would
// make it another agent, without a word. Whoever has a file's lock mends it.

const (
	guidSuffix     = ".guid"     // of a slot's GUID and the digest of its handle, in two lines
	admittedPrefix = "admitted." // of an identity with its secret
	saidPrefix     = "said."     // of what agents have registered themselves as

	identityLoss = "an agent may have another identity"
	saidLoss     = "an agent is registered as another kind of agent until it says what it is"
)

func guidFile(path string) statefile.Raw {
	return statefile.Raw{Path: path, Loss: identityLoss, Valid: func(b []byte) error {
		_, _, err := decodeGUIDFile(b)
		return err
	}}
}

var errNoGUID = errors.New("it does not begin with a GUID")

func decodeGUIDFile(b []byte) (guid, handle string, err error) {
	guid, handle, _ = strings.Cut(strings.TrimSpace(string(b)), "\n")
	id, err := uuid.Parse(guid)
	if err != nil {
		return "", "", errNoGUID
	}
	return id.String(), handle, nil
}

func admittedFile(path string) statefile.File[rememberedFile] {
	return statefile.File[rememberedFile]{Path: path, Version: 1, Loss: identityLoss,
		Former: func(b []byte) (f rememberedFile, err error) { return f, json.Unmarshal(b, &f) },
		Valid: func(f rememberedFile) error {
			if uuid.Validate(f.GUID) != nil {
				return errNoGUID
			}
			return nil
		},
	}
}

func saidFile(path string) statefile.Raw {
	return statefile.Raw{Path: path, Loss: saidLoss, Valid: func(b []byte) error {
		var all []said
		if json.Unmarshal(b, &all) != nil {
			return errors.New("it is not a list of registrations")
		}
		return nil
	}}
}

// peek is Raw.Peek for whoever does not have the file's lock.
func peek(f statefile.Raw) ([]byte, error) {
	b, _, err := f.Peek()
	return b, err
}

// isOurs reports whether a file can be one of Parley's, or is not there.
func isOurs(path string, limit int64) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return info.Mode().IsRegular() && info.Size() <= limit
}

// DamagedFiles returns the damage of the files of a state directory, and what processes have moved aside of it. It changes nothing: a process
// that has a file's lock mends it.
func DamagedFiles(dir string) (all []statefile.Damage, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if d := damageOf(filepath.Join(dir, e.Name())); d != nil {
			all = append(all, *d)
		}
	}
	return all, err
}

// damageOf returns nil for a file that is not damaged, or is none of the state directory's.
func damageOf(path string) (d *statefile.Damage) {
	if of, isCopy := statefile.CopyOf(path); isCopy {
		if _, err := os.Lstat(of); !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		path = of // which is gone
	}
	name := filepath.Base(path)
	if aside, ok := statefile.SetAside(path); ok {
		aside.Loss = identityLoss
		if strings.HasPrefix(name, saidPrefix) {
			aside.Loss = saidLoss
		}
		return &aside
	}
	isJSON := filepath.Ext(name) == ".json"
	switch {
	case filepath.Ext(name) == guidSuffix:
		_, d, _ = guidFile(path).Peek()
	case isJSON && strings.HasPrefix(name, admittedPrefix):
		_, d, _ = admittedFile(path).Peek()
	case isJSON && strings.HasPrefix(name, saidPrefix):
		_, d, _ = saidFile(path).Peek()
	}
	return d
}
