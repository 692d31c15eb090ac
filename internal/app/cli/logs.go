package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/wait"
)

const logsLong = `Print the log of the hub of the data directory. It works without a running hub. The log
of a hub that runs with --foreground is on that hub's standard error.`

func (a *app) logsCommand() *cobra.Command {
	v := logView{app: a}
	cmd := command("logs", "Print the hub's log", func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := a.reading(cmd.Context())
		defer cancel()
		cfg, err := a.load(ctx)
		if err != nil {
			return err
		}
		v.path = daemon.LogPath(cfg.DataDir)
		return v.show(ctx)
	})
	cmd.Long = logsLong
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if v.limit < 0 || v.limit > maxLogLimit {
			return usage("--limit %d is not from 0 to %d", v.limit, maxLogLimit)
		}
		return nil
	}
	flags := cmd.Flags()
	flags.BoolVarP(&v.follow, "follow", "f", false, "wait for further records until Ctrl-C")
	flags.IntVarP(&v.limit, "limit", "n", 50, "how many records")
	flags.StringVar(&v.agent, "agent", "", "only records about this agent")
	flags.StringVar(&v.task, "task", "", "only records about this task, by the beginning or the end of its id")
	a.complete(cmd, "agent", agentIDs)
	a.complete(cmd, "task", taskIDs)
	return cmd
}

const (
	maxLogLine  = 1 << 20                // bytes; the rest of a longer line is left out
	maxLogLimit = 10_000                 // records that are held
	logInterval = 250 * time.Millisecond // between two looks at the log
)

// logView prints the records of a log that its filter selects.
type logView struct {
	app         *app
	path        string
	follow      bool
	limit       int
	agent, task string
}

// show prints the latest records, also those of the file before the rotation, and then those that are added.
func (v *logView) show(ctx context.Context) error {
	var latest [][]byte
	keep := func(line []byte) {
		if latest = append(latest, bytes.Clone(line)); len(latest) > v.limit {
			latest[0] = nil
			latest = latest[1:]
		}
	}
	if err := v.readOld(keep); err != nil {
		return logFailure(v.path, err)
	}
	f, err := os.Open(v.path)
	if err != nil {
		return logFailure(v.path, err)
	}
	r := bufio.NewReader(f)
	rest, err := v.read(r, nil, keep)
	for _, line := range latest {
		v.print(line)
	}
	for err == nil && v.follow && wait.Pause(ctx, logInterval) {
		next := v.rotated(f) // before the last read of f, so that nothing is written to f afterwards
		if rest, err = v.read(r, rest, v.print); err == nil && next != nil {
			err = f.Close()
			f, r, rest = next, bufio.NewReader(next), nil
		}
	}
	return logFailure(v.path, errors.Join(err, f.Close()))
}

// readOld reads the file that was the log before the rotation, if there is one.
func (v *logView) readOld(visit func([]byte)) error {
	f, err := os.Open(v.path + ".1")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = v.read(bufio.NewReader(f), nil, visit)
	return errors.Join(err, f.Close())
}

// rotated opens the log again if f is no longer the log, nil otherwise.
func (v *logView) rotated(f *os.File) *os.File {
	have, err1 := f.Stat()
	now, err2 := os.Stat(v.path)
	if err1 != nil || err2 != nil || os.SameFile(have, now) {
		return nil
	}
	next, err := os.Open(v.path)
	if err != nil {
		return nil // it is being rotated
	}
	return next
}

// logFailure returns the failure of reading a log, nil for nil.
func logFailure(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrNotExist):
		return &failure{Exit: exitNotFound, Kind: "no-log", Message: "there is no log of a hub in the background: " + path,
			Remedy: "a hub that runs with --foreground logs to its terminal; else start one with " + local.Program() + " start, or name its data directory with --data-dir"}
	}
	return fmt.Errorf("read the hub's log: %w", err)
}

// read calls visit with the complete lines up to the end of r that the filter selects; partial is the beginning of the
// first. It returns the beginning of a line that is not complete yet.
func (v *logView) read(r *bufio.Reader, partial []byte, visit func([]byte)) ([]byte, error) {
	for {
		piece, err := r.ReadSlice('\n')
		partial = append(partial, piece[:min(len(piece), max(maxLogLine-len(partial), 0))]...)
		switch {
		case err == nil:
			if v.selects(partial) {
				visit(partial)
			}
			partial = partial[:0]
		case errors.Is(err, io.EOF):
			return partial, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return partial, err
		}
	}
}

// selects reports whether a record is about the agent and the task.
func (v *logView) selects(line []byte) bool {
	if v.agent == "" && v.task == "" {
		return true
	}
	var record struct{ Agent, Task string }
	if json.Unmarshal(line, &record) != nil {
		return false
	}
	task := record.Task
	return (v.agent == "" || record.Agent == v.agent) &&
		(v.task == "" || task != "" && (strings.HasPrefix(task, v.task) || strings.HasSuffix(task, v.task)))
}

// print prints a record: as it is in JSON, else its time, level, message and fields. A line that is no record, such as
// one of a crash report, is the message of one.
func (v *logView) print(line []byte) {
	a := v.app
	line = bytes.TrimSpace(line)
	var record map[string]any
	isRecord := json.Unmarshal(line, &record) == nil
	switch {
	case a.json() && isRecord:
		writeJSON(a.stdout, json.RawMessage(line))
	case a.json():
		writeJSON(a.stdout, map[string]string{"msg": strings.ToValidUTF8(string(line), "\uFFFD")})
	case !isRecord:
		fmt.Fprintln(a.stdout, plain(string(line)))
	default:
		level, message := member(record, "level"), member(record, "msg")
		fmt.Fprintf(a.stdout, "%s %s %s%s\n", a.style.dim(logTime(record)), a.paintLevel(pad(oneLine(level), 5)), oneLine(message), a.style.dim(logFields(record)))
	}
}

// member returns a text of a record.
func member(record map[string]any, key string) string {
	s, _ := record[key].(string)
	return s
}

func logTime(record map[string]any) string {
	at, err := time.Parse(time.RFC3339Nano, member(record, "time"))
	if err != nil {
		return strings.Repeat(" ", len(time.DateTime))
	}
	return at.Local().Format(time.DateTime)
}

// logFields returns the other fields of a record as "  key=value", sorted.
func logFields(record map[string]any) string {
	var fields []string
	for key, value := range record {
		if slices.Contains([]string{"time", "level", "msg"}, key) {
			continue
		}
		text, ok := value.(string)
		if raw, err := json.Marshal(value); err == nil && (!ok || text == "" || strings.ContainsAny(text, " \"=")) {
			text = string(raw)
		}
		fields = append(fields, "  "+oneLine(key+"="+text))
	}
	slices.Sort(fields)
	return strings.Join(fields, "")
}

func (a *app) paintLevel(level string) string {
	switch strings.TrimSpace(level) {
	case "ERROR":
		return a.style.red(level)
	case "WARN":
		return a.style.yellow(level)
	}
	return a.style.dim(level)
}
