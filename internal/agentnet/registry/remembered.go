package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/wait"
)

// The computer remembers the identities that a hub has assigned to its agents, with the secrets that prove them. So an
// agent that comes back is the same at once, whether the hub knows that its former process has ended or not, and also
// if the hub has lost its record. The process that uses an identity holds a lock, which the system releases when it ends.

// Remembered is an identity that this process holds, or may get. Its holder calls Release.
type Remembered struct {
	// GUID and Secret are of the last admission; empty for a new identity.
	GUID, Secret string

	kind          string // the type under which it is kept
	handle        string
	conversations []string  // that had the identity, the latest last
	at            time.Time // when it was remembered
	file          string
	lock          *flock.Flock
}

// rememberedFile is the content of the file of an identity.
type rememberedFile struct {
	GUID          string   `json:"guid"`
	Secret        string   `json:"secret"`
	Handle        string   `json:"handle,omitempty"`
	Conversations []string `json:"conversations,omitempty"`
	// Said is in the files of version 1.0.0. It is kept by conversation now: see Said.
	Said *said `json:"said,omitempty"`
}

const (
	// lockTimeout bounds the wait for another process that chooses an identity, which takes it milliseconds.
	lockTimeout = 10 * time.Second
	lockRetry   = 2 * time.Millisecond
	maxRemember = 32 << 10 // bytes of a file; JSON takes six for some of a conversation

	// handoverTime bounds the wait for a process that has the identity of the same conversation, which may be about to end.
	handoverTime  = 3 * time.Second
	handoverRetry = 50 * time.Millisecond

	maxConversations = 16
	maxConversation  = 256 // bytes
)

// Remember returns an identity that no process of this computer uses: the one that the conversation had last, then one that it ever had,
// one of an agent of this kind or type and handle, else a new one. It never returns that of an agent of another conversation with another
// handle, whose mail would come with it. hub tells the user's hubs apart. cfg has the directory, the host and the project.
//
// While a live process has the conversation's, Remember waits for that to end, up to handoverTime: a program that begins its MCP server anew
// may do so before the former one has ended.
func Remember(ctx context.Context, cfg store.Config, hub string, as Registration) (*Remembered, error) {
	f, err := freeOf(ctx, cfg, hub, as, as.Known)
	for end := time.Now().Add(handoverTime); err == nil && f.held && time.Now().Before(end); {
		f.release()
		if !wait.Pause(ctx, handoverRetry) {
			return nil, ctx.Err()
		}
		f, err = freeOf(ctx, cfg, hub, as, as.Known)
	}
	if err != nil {
		return nil, err
	}
	defer f.unlock()
	free := f.all
	r := pick(free, as)
	fits := r != nil && (r.GUID != "" && r.rank(as) >= rankOfHandle || !as.Known)
	for _, other := range free {
		if other != r || !fits {
			other.Release()
		}
	}
	switch {
	case as.Known && !fits:
		return nil, noneKnown(as)
	case !fits:
		return nil, tooManyAgents(as.kind())
	case r.rank(as) < rankOfHandle:
		*r = Remembered{kind: r.kind, file: r.file, lock: r.lock}
	}
	return r, nil
}

// freed are the free identities under which an agent may be kept. No other process chooses among them until unlock is called.
type freed struct {
	all   []*Remembered
	held  bool // a live process has the identity that the agent's conversation had last
	locks []*flock.Flock
}

func (f *freed) unlock() {
	for _, lock := range f.locks {
		unlock(lock)
	}
}

func (f *freed) release() {
	for _, r := range f.all {
		r.Release()
	}
	f.unlock()
}

// freeOf locks the free identities of an agent, and new ones of its kind unless only known ones are wanted.
func freeOf(ctx context.Context, cfg store.Config, hub string, as Registration, known bool) (*freed, error) {
	f := &freed{}
	for _, kind := range as.kinds() {
		choice, err := choose(ctx, cfg, hub, kind)
		if err == nil {
			f.locks = append(f.locks, choice.lock)
			err = choice.free(known || kind != as.kind(), as.Conversation, f)
		}
		if err != nil {
			f.release()
			return nil, err
		}
	}
	return f, nil
}

// rankOfHandle is the least rank of an identity that is the agent's; see rank.
const rankOfHandle = 2

// rank says how well an identity fits an agent: that of another one, a new one, of its handle, which its conversation had at some time, or
// has now.
func (r *Remembered) rank(as Registration) int {
	rank := 0
	switch {
	case r.GUID == "":
		return 1
	case r.hasNow(as.Conversation):
		rank = 5
	case slices.Contains(r.conversations, as.Conversation):
		rank = 3
	case r.handle == as.Handle:
		return rankOfHandle
	default:
		return 0
	}
	if r.handle == as.Handle {
		rank++
	}
	return rank
}

// pick returns the free identity that fits best, of those of other agents that of the agent that has not come back for the longest time; nil
// if there is none.
func pick(free []*Remembered, as Registration) *Remembered {
	var best *Remembered
	for _, r := range free {
		switch {
		case best == nil, r.rank(as) > best.rank(as), r.rank(as) == 0 && best.rank(as) == 0 && r.at.Before(best.at):
			best = r
		}
	}
	return best
}

// hasNow reports whether a conversation was the last one that had the identity.
func (r *Remembered) hasNow(conversation string) bool {
	return len(r.conversations) > 0 && r.conversations[len(r.conversations)-1] == conversation
}

// Converse notes which conversation has the identity of an agent. It reports true if another identity that may be the agent's, which no
// process uses, is the conversation's: then nothing is noted. r may be nil.
func (r *Remembered) Converse(ctx context.Context, cfg store.Config, hub string, as Registration) (elsewhere bool, err error) {
	conversation := as.Conversation
	if r == nil || r.GUID == "" || conversation == "" || len(conversation) > maxConversation || r.hasNow(conversation) {
		return false, nil
	}
	if !slices.Contains(r.conversations, conversation) {
		if elsewhere, err = r.elsewhere(ctx, cfg, hub, as); elsewhere || err != nil {
			return elsewhere, err
		}
	}
	return false, r.write(store.Admission{GUID: r.GUID, Secret: r.Secret}, r.handle, conversation)
}

func (r *Remembered) elsewhere(ctx context.Context, cfg store.Config, hub string, as Registration) (found bool, err error) {
	f, err := freeOf(ctx, cfg, hub, as, true)
	if err != nil {
		return false, err
	}
	defer f.release()
	return slices.ContainsFunc(f.all, func(other *Remembered) bool {
		return other.GUID != "" && slices.Contains(other.conversations, as.Conversation)
	}), nil
}

// KeepUnder changes the handle under which the identity is remembered. r may be nil.
func (r *Remembered) KeepUnder(handle string) error {
	if r == nil || r.GUID == "" || r.handle == handle {
		return nil
	}
	return r.write(store.Admission{GUID: r.GUID, Secret: r.Secret}, handle, "")
}

// Kind returns the type under which the identity is kept.
func (r *Remembered) Kind() string { return r.kind }

// choice are the identities of a kind of agents. One process at a time chooses among them: a lock that is only looked at would
// appear as held to others.
type choice struct {
	kind, base string
	lock       *flock.Flock
}

func choose(ctx context.Context, cfg store.Config, hub, agentType string) (choice, error) {
	base := filepath.Join(cfg.StateDir, admittedPrefix+store.Digest(hub, cfg.Hostname, cfg.ProjectPath, agentType))
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return choice{}, err
	}
	lock, err := lockFor(ctx, base)
	return choice{agentType, base, lock}, err
}

// lockFor locks files with a prefix. Another process has them for milliseconds only.
func lockFor(ctx context.Context, base string) (*flock.Flock, error) {
	lock := flock.New(base+lockSuffix, flock.SetPermissions(0o600))
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	_, err := lock.TryLockContext(ctx, lockRetry)
	return lock, err
}

// free adds the identities that no live process has, locked, and a new one unless only known ones are wanted.
func (c choice) free(known bool, conversation string, to *freed) error {
	unused := known
	for i := range maxAgentsOnThisHost {
		slot := fmt.Sprintf("%s.%d", c.base, i)
		if _, err := os.Stat(slot + lockSuffix); unused && errors.Is(err, fs.ErrNotExist) {
			break // no process has had it or one after it
		}
		r, free, err := lockRemembered(slot)
		if err != nil {
			return err
		}
		if !free {
			to.held = to.held || r.hasNow(conversation)
			continue
		}
		r.kind = c.kind
		to.all = append(to.all, r)
		unused = unused || r.GUID == ""
	}
	return nil
}

const lockSuffix = ".lock"

// lockRemembered returns the identity of a slot, and whether it is free and locked now; otherwise a live process has it.
func lockRemembered(slot string) (r *Remembered, free bool, err error) {
	lock := flock.New(slot+lockSuffix, flock.SetPermissions(0o600))
	free, err = lock.TryLock()
	if err != nil {
		return nil, false, err
	}
	if r, err = readRemembered(slot, lock, free); err != nil {
		unlock(lock)
		return nil, false, err
	}
	return r, free, nil
}

// readRemembered reads the identity of a slot, whose lock the caller has if it is free.
func readRemembered(slot string, lock *flock.Flock, free bool) (*Remembered, error) {
	r := &Remembered{file: slot + ".json", lock: lock}
	if !isOurs(r.file, maxRemember) {
		return r, nil // it is written anew
	}
	read := peekRemembered
	if free {
		read = statefile.File[rememberedFile].Read
	}
	have, err := read(admittedFile(r.file))
	if statefile.IsShortage(err) {
		return nil, err // the agent comes back later
	}
	if err == nil && have.GUID != "" { // else there is none, or it is damaged without a copy, and written anew
		r.GUID, r.Secret, r.handle, r.conversations = have.GUID, have.Secret, have.Handle, have.Conversations
		if info, err := os.Stat(r.file); err == nil {
			r.at = info.ModTime()
		}
	}
	return r, nil
}

func peekRemembered(f statefile.File[rememberedFile]) (rememberedFile, error) {
	have, _, err := f.Peek()
	return have, err
}

// Keep remembers an admission, on the disk, before the agent is entered under it, and the conversation that it is for, if it is known.
func (r *Remembered) Keep(adm store.Admission, handle, conversation string) error {
	if r == nil || r.GUID == adm.GUID && r.Secret == adm.Secret && r.handle == handle && (conversation == "" || r.hasNow(conversation)) {
		return nil
	}
	return r.write(adm, handle, conversation)
}

// write remembers an admission. The conversations of another identity, which the slot had before, are forgotten.
func (r *Remembered) write(adm store.Admission, handle, conversation string) error {
	var conversations []string
	if r.GUID == adm.GUID {
		conversations = slices.Clone(r.conversations)
	}
	if conversation != "" && len(conversation) <= maxConversation {
		conversations = slices.DeleteFunc(conversations, func(c string) bool { return c == conversation })
		conversations = append(conversations, conversation)
		conversations = conversations[max(len(conversations)-maxConversations, 0):]
	}
	err := admittedFile(r.file).Write(rememberedFile{GUID: adm.GUID, Secret: adm.Secret, Handle: handle, Conversations: conversations})
	if err == nil {
		r.GUID, r.Secret, r.handle, r.conversations = adm.GUID, adm.Secret, handle, conversations
	}
	return err
}

// Release lets the next process of this kind have the identity. nil is released, too.
func (r *Remembered) Release() {
	if r != nil {
		unlock(r.lock)
	}
}
