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

// NewLogger returns the logger that the configuration asks for. terminal says
// that w is one, where pretty is the default.
func NewLogger(w io.Writer, cfg config.Logging, terminal bool) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		level = slog.LevelInfo // config.Load lets nothing else through
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

// clockOnly shortens the time for people, who know the date.
func clockOnly(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.String(slog.TimeKey, a.Value.Time().Format("15:04:05.000"))
	}
	return a
}

// LogPath is where a hub in the background writes its log.
func LogPath(dataDir string) string { return filepath.Join(dataDir, "logs", "hub.log") }

// maxLog bounds the log file, in bytes; one older file is kept beside it.
const maxLog = 16 << 20

// LogFile is a log that turns over at a bound: PATH becomes PATH.1. It also
// receives what the runtime says when the process crashes. Safe for concurrent
// use.
type LogFile struct {
	path  string
	limit int64

	mu   sync.Mutex
	file *os.File
	size int64
}

// OpenLog opens the log file, for its user alone.
func OpenLog(path string) (*LogFile, error) {
	l := &LogFile{path: path, limit: maxLog}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the log: %w", err)
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
	if err != nil {
		f.Close()
		return fmt.Errorf("open the log: %w", err)
	}
	if err := debug.SetCrashOutput(f, debug.CrashOptions{}); err != nil {
		f.Close()
		return fmt.Errorf("direct crashes to the log: %w", err)
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Write appends one record.
func (l *LogFile) Write(record []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(record)) > l.limit {
		if err := l.turnOver(); err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(record)
	l.size += int64(n)
	return n, err
}

// turnOver closes the file first: Windows renames no open file.
func (l *LogFile) turnOver() error {
	if err := l.file.Close(); err != nil {
		return err
	}
	if err := os.Rename(l.path, l.path+".1"); err != nil {
		return err
	}
	return l.open()
}

// Close closes the file. Crashes go to standard error again.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := debug.SetCrashOutput(nil, debug.CrashOptions{}); err != nil {
		return err
	}
	return l.file.Close()
}
