package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// mutation is one error in the hub that a campaign must find.
type mutation struct {
	breaks   string // in words
	file     string
	old, new string // old occurs exactly once; MUTANT in new is whether the mutation is active
	disk     bool   // only a power cut shows it
	faults   string // the kinds of faults that show it; all by default
	// simulated is whether a simulation shows it, too.
	simulated bool
	only      bool // by nothing else, as far as is known
	// federated is whether a simulation of paired hubs and their programs shows it, and nothing else.
	federated bool
}

var mutations = []mutation{
	{breaks: "a write is acknowledged before it is synced", file: "internal/bus/syncfs_linux.go",
		old: "err := unix.Syncfs(int(s.dir.Fd()))", new: "var err error\nif !MUTANT { err = unix.Syncfs(int(s.dir.Fd())) }", disk: true, faults: "power cuts"},
	{breaks: "a repeated message begins a second task", file: "internal/hub/send.go",
		old: "\tcase once:\n", new: "\tcase once && !MUTANT:\n"},
	{breaks: "a task's end is acknowledged before it is stored", file: "internal/hub/jetstream.go",
		old:    "\tif err := s.store(ctx, msg); err != nil {\n\t\treturn err\n\t}\n",
		new:    "if MUTANT { time.AfterFunc(300*time.Millisecond, func() { _ = s.store(context.WithoutCancel(ctx), msg) }) } else if err := s.store(ctx, msg); err != nil { return err }\n",
		faults: "kills"},
	{breaks: "a message's acknowledgement is forwarded before it is synced", file: "internal/bus/acks.go",
		old:  "\t\terr := s.commits.commit(ctx)\n",
		new:  "\t\tif MUTANT { s.forward(gathered, nil); _ = s.commits.commit(ctx); continue }\n\t\terr := s.commits.commit(ctx)\n",
		disk: true, faults: "power cuts"},
	{breaks: "an item is given out before its claim is synced", file: "internal/agentnet/work/claim.go",
		old: "\t\tif err == nil && x != nil { // a power cut", new: "\t\tif err == nil && x != nil && !MUTANT { // a power cut", disk: true, faults: "power cuts"},
	{breaks: "a claim of files is answered before it is synced", file: "internal/agentnet/claims/claims.go",
		old: "\tif err == nil { // a power cut", new: "\tif err == nil && !MUTANT { // a power cut", disk: true, faults: "power cuts"},
	{breaks: "mail that was acknowledged is not marked on the disk", file: "internal/agentnet/mail/take.go",
		old: "\t\terr = b.Commit(ctx) // else a power cut", new: "\t\tif !MUTANT { err = b.Commit(ctx) } // else a power cut", disk: true, faults: "power cuts"},
	{simulated: true, breaks: "mail is marked as read before the answer is written", file: "internal/agentnet/mail/take.go",
		old: "useless := len(t.mail) == 0 && len(t.invalid) > 0", new: "useless := len(t.mail) == 0 && len(t.invalid) > 0 || MUTANT && len(t.mail) > 0", faults: "kills of agents"},
	{simulated: true, breaks: "mail is read in another order", file: "internal/agentnet/mail/take.go",
		old: "\treturn found.mail, found.more, nil\n", new: "if MUTANT { slices.Reverse(found.mail) }\n\treturn found.mail, found.more, nil\n", faults: "kills of agents, kills"},
	{simulated: true, breaks: "the time of a receipt is overwritten", file: "internal/agentnet/mail/receipt.go",
		old: "if *at == \"\" && rank <= r.rank() {", new: "if (*at == \"\" || MUTANT) && rank <= r.rank() {"},
	{simulated: true, breaks: "who held an item before may complete it", file: "internal/agentnet/work/holder.go",
		old: "\tcase w.holds(x, token):\n", new: "\tcase MUTANT || w.holds(x, token):\n", faults: "kills of agents, pauses"},
	{simulated: true, breaks: "a claim of files excludes nobody", file: "internal/agentnet/claims/claims.go",
		old: "if other.HolderGUID == c.HolderGUID || c.Mode == Shared", new: "if MUTANT || other.HolderGUID == c.HolderGUID || c.Mode == Shared"},
	{simulated: true, breaks: "a released claim of files stays", file: "internal/agentnet/claims/claims.go",
		old: "\t\t\treturn ends\n\t\t}), nil\n", new: "\t\t\treturn ends && !MUTANT\n\t\t}), nil\n"},
	{simulated: true, only: true, breaks: "an item is given to another worker while its holder's lease lasts", file: "internal/agentnet/work/claim.go",
		old: "\tcase isHeld:\n\t\treturn false, s.putBack(ctx, x, msg)\n", new: "\tcase isHeld:\n\t\tif !MUTANT { return false, s.putBack(ctx, x, msg) }\n"},
	{federated: true, breaks: "a request of another hub that is repeated begins a second task", file: "internal/federation/node/keyed.go",
		old: "\t\tm.Metadata[hub.MetaOnce] = m.ID\n", new: "\t\tif !MUTANT { m.Metadata[hub.MetaOnce] = m.ID }\n"},
	{federated: true, breaks: "a task with a key begins before it is stored", file: "internal/hub/turn.go",
		old: "\tif _, keyed := msg.Metadata[MetaOnce]; !keyed {\n", new: "\tif _, keyed := msg.Metadata[MetaOnce]; !keyed || MUTANT {\n"},
	{federated: true, breaks: "a repeated answer is appended to what came before the link was lost", file: "internal/federation/exchange/answer.go",
		old: "\tif p.Resumed {\n", new: "\tif p.Resumed && !MUTANT {\n"},
	{federated: true, breaks: "a lost link is the end of the answer", file: "internal/federation/exchange/exchange.go",
		old: "\t\t\tcase !ok && keyed:\n", new: "\t\t\tcase !ok && keyed && MUTANT:\n\t\t\t\treturn runner.Outcome{Status: runner.OutcomeCompleted, Text: x.answer.text.String()}, nil, true\n\t\t\tcase !ok && keyed:\n"},
	{federated: true, breaks: "a cancellation is not repeated when the link was lost", file: "internal/federation/peers/withdraw.go",
		old: "\tfor !p.confirmed(ctx, w) {\n", new: "\tfor !p.confirmed(ctx, w) && !MUTANT {\n"},
	{federated: true, breaks: "a canceled question stays open at the other hub", file: "internal/hub/tasks.go",
		old: "\tif Interrupted(t.status.State) && t.hasAgent() {\n", new: "\tif Interrupted(t.status.State) && t.hasAgent() && !MUTANT {\n"},
	{federated: true, breaks: "a task that was restored begins as submitted", file: "internal/hub/resume.go",
		old: "\tt.agent = a\n\tt.reopen()\n", new: "\tt.agent = a\n\tif MUTANT { t.status.State, t.snap = a2a.TaskStateSubmitted, nil }\n\tt.reopen()\n"},
	{federated: true, breaks: "the answer to a question that is gone is a new task", file: "internal/federation/node/keyed.go",
		old: "{ return s.Terminal() && s != a2a.TaskStateCompleted }", new: "{ return s.Terminal() && s != a2a.TaskStateCompleted && !MUTANT }"},
	{federated: true, breaks: "a program does a task again when its hub repeats the request", file: "tasks/server.go",
		old: "\tif x := s.runs[k]; x != nil {\n", new: "\tif x := s.runs[k]; x != nil && !MUTANT {\n"},
	{federated: true, breaks: "the failure of a program's request is its answer", file: "internal/federation/node/responder.go",
		old: "\tcase answers(task.Status.State):\n\t\tr.addDuration(time.Since(began))\n", new: "\tcase MUTANT || answers(task.Status.State):\n\t\tr.addDuration(time.Since(began))\n"},
	{federated: true, breaks: "a program's request is answered twice", file: "internal/federation/node/responder.go",
		old: "\t\tr.reply(ctx, e, envelope.Response, resultOf(task))\n", new: "\t\tif MUTANT { r.reply(ctx, e, envelope.Response, resultOf(task)) }\n\t\tr.reply(ctx, e, envelope.Response, resultOf(task))\n"},
	{simulated: true, only: true, breaks: "an agent of a cluster comes back as another one", file: "internal/agentnet/registry/identity.go",
		old: "\tnow := g.Now()\n\trecord := identityRecord{", new: "\tnow := g.Now()\nif MUTANT { w.guid = uuid.NewString() }\n\trecord := identityRecord{"},
	{breaks: "an agent comes back as another one", file: "internal/agentnet/registry/admission.go",
		old: "\t\t\tif !before.Released {\n", new: "if MUTANT { adm.GUID = uuid.NewString() }\n\t\t\tif !before.Released {\n", faults: "kills of agents"},
}

// mutationRuns are how often a mutation may stay unnoticed before it counts as such.
const mutationRuns = 3

// runMutations runs a campaign against each mutated hub and returns the mutations that were not found. The campaign's program, if
// there is one, has been built with all of them. only selects those whose words
// contain it.
func runMutations(ctx context.Context, out io.Writer, c campaign, only string) (unnoticed []string, err error) {
	dir, err := os.MkdirTemp("", "parley-mutations-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	if c.program == "" {
		if c.program, err = buildMutants(ctx, dir); err != nil {
			return nil, err
		}
	}
	for i, m := range mutations {
		switch {
		case !strings.Contains(m.breaks, only):
			continue
		case m.disk && !c.disk:
			fmt.Fprintf(out, "not tried  %s (needs -disk)\n", m.breaks)
			continue
		case m.only:
			fmt.Fprintf(out, "not tried  %s (needs -simulations)\n", m.breaks)
			continue
		case m.federated:
			fmt.Fprintf(out, "not tried  %s (needs -simulations and -hubs)\n", m.breaks)
			continue
		}
		c.mutant = i + 1
		found, err := m.find(ctx, c)
		switch {
		case err != nil:
			return unnoticed, fmt.Errorf("%s: %w", m.breaks, err)
		case found == "":
			unnoticed = append(unnoticed, "unnoticed: "+m.breaks)
			fmt.Fprintf(out, "UNNOTICED  %s\n", m.breaks)
		default:
			fmt.Fprintf(out, "found      %s: %s\n", m.breaks, found)
		}
	}
	return unnoticed, nil
}

// find runs campaigns until one finds the mutation, and says what was found and with which seed. A campaign that could not run to its end has found
// it only if none could.
func (m mutation) find(ctx context.Context, c campaign) (found string, err error) {
	c.disk, c.only = m.disk, m.faults
	failed := 0
	for range mutationRuns {
		began := time.Now()
		r, err := run(ctx, io.Discard, c)
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		say := func(broken ...string) string {
			return fmt.Sprintf("seed %d, %.0f s, %d times, %.120q", c.seed, time.Since(began).Seconds(), len(broken), broken[0])
		}
		switch {
		case err != nil: // a hub that does not work, or a computer that is too slow
			failed++
			found = say(err.Error())
		case len(r.broken) > 0:
			return say(r.broken...), nil
		}
		c.seed++
	}
	if failed < mutationRuns {
		return "", nil
	}
	return found, nil
}

// mutantVariable is the environment variable with the number of the active mutation, from 1.
const mutantVariable = "PARLEY_FAULTS_MUTANT"

// buildMutants builds a program with all mutations, of which the environment activates one.
func buildMutants(ctx context.Context, dir string) (program string, err error) {
	overlay, err := writeMutants(dir)
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, "parley")
	if out, err := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", program, "./cmd/parley").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the mutated hub: %w\n%s", err, out)
	}
	return program, nil
}

// writeMutants writes the mutated files, and what makes go build read them.
func writeMutants(dir string) (overlay string, err error) {
	sources, replaced := map[string]string{}, map[string]string{}
	for i, m := range mutations {
		source, known := sources[m.file]
		if !known {
			data, err := os.ReadFile(filepath.FromSlash(m.file))
			if err != nil {
				return "", fmt.Errorf("run it at the top of the repository: %w", err)
			}
			source = string(data)
		}
		if sources[m.file], err = m.apply(source, i+1); err != nil {
			return "", err
		}
	}
	for file, source := range sources {
		path, err := filepath.Abs(filepath.FromSlash(file))
		if err != nil {
			return "", err
		}
		replaced[path] = filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(replaced[path], []byte(source), 0o600); err != nil {
			return "", err
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, data, 0o600)
}

var packageClause = regexp.MustCompile(`(?m)^package \w+\n`)

// apply returns a source with the mutation, which has a variable and an import of its own.
func (m mutation) apply(source string, number int) (string, error) {
	if n := strings.Count(source, m.old); n != 1 {
		return "", fmt.Errorf("%s: the place to break is there %d times", m.breaks, n)
	}
	source = strings.Replace(source, m.old, strings.ReplaceAll(m.new, "MUTANT", fmt.Sprintf("mutant%d", number)), 1)
	clause := packageClause.FindString(source)
	source = strings.Replace(source, clause, fmt.Sprintf("%s\nimport os%d \"os\"\n", clause, number), 1)
	return source + fmt.Sprintf("\nvar mutant%d = os%d.Getenv(%q) == \"%d\"\n", number, number, mutantVariable, number), nil
}
