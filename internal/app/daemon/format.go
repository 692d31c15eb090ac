package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/parleyhub/parley/internal/base/statefile"
)

// dataFormat is the version of what this program keeps in the data directory. A change that an older program would misread
// raises it, and adds a step to dataSteps.
const dataFormat = 1

// dataSteps are the changes of the data directory from a format to the next one, the first from format 0: that of the programs
// before formats were counted. A step may be cut off, and is repeated then.
var dataSteps = [dataFormat]func(dataDir string) error{
	func(string) error { return nil }, // 1 has the same files, and says so
}

// formatFile is the file that says which format a data directory has.
type formatFile struct {
	Format  int    `json:"format"`
	Program string `json:"program"` // the version of the program that has written it
}

// formatOf returns the file that says which format a data directory has. Programs before it had a copy wrote it without a version.
func formatOf(dataDir string) statefile.File[formatFile] {
	return statefile.File[formatFile]{
		Path: filepath.Join(dataDir, "format.json"), Version: 1,
		Former: func(raw []byte) (f formatFile, err error) { return f, json.Unmarshal(raw, &f) },
		Valid: func(f formatFile) error {
			if f.Format < 1 {
				return errors.New("it has no format")
			}
			return nil
		},
	}
}

// CheckFormat returns an error if the data directory has a format that this program cannot read.
func CheckFormat(dataDir, version string) error {
	_, err := readFormat(dataDir, version)
	return err
}

// readFormat returns the format of a data directory, 0 if it has none or does not exist.
func readFormat(dataDir, version string) (int, error) {
	file := formatOf(dataDir)
	f, damage, err := file.Peek()
	if err != nil {
		return 0, dataDirError(dataDir, err)
	}
	if damage != nil && !damage.Restored {
		return 0, &Error{
			Code: CodeDataDir, Message: file.Path + " does not say which format the data directory has: " + damage.Reason,
			Remedy: "restore the file from a backup, or name another data directory with --data-dir",
		}
	}
	if f.Format > dataFormat {
		return 0, &Error{
			Code: CodeDataDir,
			Message: fmt.Sprintf("the data directory %s was written by a newer Parley (%s, data format %d), which this one (%s, data format %d) cannot read; nothing was changed",
				dataDir, f.Program, f.Format, version, dataFormat),
			Remedy: "install that version again, or name another data directory with --data-dir",
		}
	}
	return f.Format, nil
}

// keepFormat mends the file that says the format of a running hub's data directory: the hub knows it.
func keepFormat(dataDir, version string, damaged func(statefile.Damage)) error {
	file := formatOf(dataDir)
	file.Damaged = damaged
	now, damage, err := file.Peek()
	if err == nil && damage == nil && now.Format != dataFormat {
		return nil // another program's, which the next start refuses
	}
	if err == nil {
		_, err = file.Read()
	}
	if err == nil && damage != nil && !damage.Restored {
		err = file.Write(formatFile{dataFormat, version})
	}
	return err
}

// prepareFormat brings the data directory to the format of this program. The caller has its lock. damaged is called if the file that says
// the format was damaged.
func prepareFormat(dataDir, version string, damaged func(statefile.Damage)) error {
	format, err := readFormat(dataDir, version)
	if err != nil {
		return err
	}
	file := formatOf(dataDir)
	file.Damaged = damaged
	if _, err := file.Read(); err != nil {
		return dataDirError(dataDir, err)
	}
	if format == dataFormat {
		return nil
	}
	for from := format; from < dataFormat; from++ {
		if err := dataSteps[from](dataDir); err != nil {
			return &Error{
				Code: CodeDataDir, Message: fmt.Sprintf("cannot convert the data directory %s from format %d to %d", dataDir, from, from+1),
				Remedy: "see the log, and start again: the conversion continues", Err: err,
			}
		}
	}
	if err := file.Write(formatFile{dataFormat, version}); err != nil {
		return dataDirError(dataDir, err)
	}
	return nil
}
