package main

import (
	"archive/tar"
	"archive/zip"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// file is a file of an archive.
type file struct {
	name    string // in the archive
	path    string
	program bool
	link    string // what a symbolic link leads to, "" for a file
}

// list returns the files of an archive: programs from one directory, documents from another, all below the directory
// top, sorted by name.
func list(top, programs, documents string) ([]file, error) {
	var files []file
	for _, dir := range []string{programs, documents} {
		err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			rel, err := filepath.Rel(dir, p)
			if err != nil {
				return err
			}
			f := file{name: path.Join(top, filepath.ToSlash(rel)), path: p, program: dir == programs}
			if e.Type() == fs.ModeSymlink {
				f.link, err = os.Readlink(p)
			}
			files = append(files, f)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	sortFiles(files)
	return files, nil
}

func sortFiles(files []file) {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
}

// packer writes an archive that does not depend on the time and the machine of the build.
type packer func(w io.Writer, files []file, at time.Time) error

func (f file) mode() int64 {
	if f.program {
		return 0o755
	}
	return 0o644
}

// packTar writes files as a compressed tar archive, which does not depend on the time and the machine of the build.
func packTar(w io.Writer, files []file, at time.Time) error {
	zw, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(zw)
	for _, f := range files {
		if f.link != "" {
			h := &tar.Header{Typeflag: tar.TypeSymlink, Name: f.name, Linkname: f.link, Mode: 0o777, ModTime: at, Format: tar.FormatPAX}
			if err := tw.WriteHeader(h); err != nil {
				return err
			}
			continue
		}
		info, err := os.Stat(f.path)
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: info.Size(), Mode: f.mode(), ModTime: at, Format: tar.FormatPAX}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if err := copyFrom(tw, f.path); err != nil {
			return err
		}
	}
	return errors.Join(tw.Close(), zw.Close())
}

// packZip writes files as a zip archive, as packTar does, but without links.
func packZip(w io.Writer, files []file, at time.Time) error {
	zw := zip.NewWriter(w)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: at}
		h.SetMode(fs.FileMode(f.mode()))
		part, err := zw.CreateHeader(h)
		if err != nil {
			return err
		}
		if err := copyFrom(part, f.path); err != nil {
			return err
		}
	}
	return zw.Close()
}

func copyFrom(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// sum appends a line of SHA256SUMS, in the format of sha256sum -c.
func sum(w io.Writer, dir, name string) error {
	text, err := fileSum(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s  %s\n", text, name)
	return err
}
