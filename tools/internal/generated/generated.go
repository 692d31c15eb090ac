// Package generated writes the committed files that programs make, or checks
// that they are what would be written now.
package generated

import (
	"bytes"
	"fmt"
	"os"
)

// Write writes content to a file below the repository's root, or with check
// set returns an error where the file differs. command is what makes it.
func Write(path string, content []byte, check bool, command string) error {
	if !check {
		return os.WriteFile(path, content, 0o644)
	}
	have, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	// Git may have checked the file out with the line ends of Windows.
	if !bytes.Equal(bytes.ReplaceAll(have, []byte("\r\n"), []byte("\n")), content) {
		return fmt.Errorf("%s is not up to date; run: %s", path, command)
	}
	return nil
}
