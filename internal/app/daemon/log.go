package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"

	"github.com/parleyhub/parley/internal/config"
)

// NewLogger returns the configured logger. terminal says that w is a terminal, for which pretty is the default.
func NewLogger(w io.Writer, cfg config.Logging, terminal bool) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		level = slog.LevelInfo // cannot happen after config.Load
	}
	pretty := terminal
	if cfg.Pretty != nil {
		pretty = *cfg.Pretty
	}
	if pretty {
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: clockOnly}))
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

// clockOnly removes the date from the time of a record.
func clockOnly(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.String(slog.TimeKey, a.Value.Time().Format("15:04:05.000"))
	}
	return a
}

// LogPath returns the path of the log of a hub in the background.
func LogPath(dataDir string) string { return filepath.Join(dataDir, "logs", "hub.log") }

// maxLog bounds the log file, in bytes; one older file is kept.
const maxLog = 16 << 20

// LogFile is a log file that is rotated at a size limit: PATH becomes PATH.1. The runtime also
// writes crash reports to it. It is safe for concurrent use.
type LogFile struct {
	path  string
	limit int64

	mu   sync.Mutex
	file *os.File
	size int64
}

// OpenLog opens the log file with mode 0600.
func OpenLog(path string) (*LogFile, error) {
	l := &LogFile{path: path, limit: maxLog}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the log: %w", err)
	}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *LogFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	info, err := f.Stat()
	if err == nil {
		err = debug.SetCrashOutput(f, debug.CrashOptions{})
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("open the log: %w", err)
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Write appends one record.
func (l *LogFile) Write(record []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(record)) > l.limit {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(record)
	l.size += int64(n)
	return n, err
}

// rotate closes the file before it renames it, because of Windows.
func (l *LogFile) rotate() error {
	if err := l.file.Close(); err != nil {
		return err
	}
	if err := os.Rename(l.path, l.path+".1"); err != nil {
		return err
	}
	return l.open()
}

// Close closes the file. Crash reports are written to standard error again.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := debug.SetCrashOutput(nil, debug.CrashOptions{}); err != nil {
		return err
	}
	return l.file.Close()
}
