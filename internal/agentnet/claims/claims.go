// Package claims keeps which agent works on which files, on one bus: claims of the files of a repository, so that agents do not
// change a file at the same time.
//
// The claims of a repository are one value of a bucket, which is replaced as a whole: of two agents that claim the same file
// at the same moment one gets it. A claim counts until its end, and only as long as the registration of its holder lives: the
// holder's heartbeats renew it, and the end of its session ends it. So a claim outlives a killed holder by what its heartbeats
// may be late. Nothing on disk is locked; a claim binds those who ask.
package claims

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// The limits of claims.
const (
	DefaultTime = time.Hour
	MaxTime     = 24 * time.Hour
	MaxPaths    = 50  // of a claim
	MaxClaims   = 20  // of an agent in a repository
	MaxWhy      = 200 // bytes
	MaxTargets  = 500 // files of one check
	maxID       = 64
	maxRecord   = 256 << 10 // bytes of the claims of a repository
	maxListed   = 1000      // claims of all repositories
)

// Mode says what else may be claimed.
type Mode string

// The modes.
const (
	Exclusive Mode = "exclusive" // nobody else's claim of the files
	Shared    Mode = "shared"    // others' shared claims
)

// Modes lists them.
var Modes = []Mode{Exclusive, Shared}

// Claim is an agent's claim of files.
type Claim struct {
	ID           string   `json:"claimId"`
	HolderGUID   string   `json:"holderGuid"`
	HolderHandle string   `json:"holderHandle"`
	Repository   string   `json:"repository" jsonschema:"The name of the repository's directory"`
	Paths        []string `json:"paths" jsonschema:"Paths and patterns below the top of the work tree"`
	Mode         Mode     `json:"mode"`
	// Tree is the key of the work tree that it is for, "" for all of them.
	Tree      string `json:"workTree,omitempty" jsonschema:"The work tree that it is for; absent if it is for all of the repository"`
	TaskID    string `json:"taskId,omitempty" jsonschema:"The task with which the claim ends"`
	Why       string `json:"why" jsonschema:"The holder's words"`
	Until     string `json:"until" jsonschema:"ISO 8601, UTC"`
	ClaimedAt string `json:"claimedAt"`
	// Registered is when the holder registered: another agent that gets its GUID later does not have its claims.
	Registered string `json:"registeredAt"`
}

// record is the value of a repository.
type record struct {
	Claims []Claim `json:"claims"`
}

// Service is the claims on one bus. It is safe for concurrent use.
type Service struct {
	reg *registry.Registry
	cfg store.Config
}

// New returns the claims on a registry's bus. It adds to what the Store prepares.
func New(reg *registry.Registry) *Service {
	s := &Service{reg, reg.Config()}
	if !s.cfg.Confined() { // a confined agent needs the right for it, which it may lack where it claims nothing
		reg.Prepare(s.prepare)
	}
	return s
}

func (s *Service) prepare(ctx context.Context, b *bus.Bus) error {
	return s.reg.EnsureStreams(ctx, b, store.BucketConfig(s.cfg.ClaimsBucket(), "Who works on which files", MaxTime+time.Hour))
}

// decode reads the claims of a repository. What another program wrote and is no claim is left out.
func decode(v store.Value) []Claim {
	var r record
	if !v.Exists() || len(v.Data) > maxRecord || json.Unmarshal(v.Data, &r) != nil {
		return nil
	}
	return slices.DeleteFunc(r.Claims, func(c Claim) bool { return !c.valid() })
}

// Stored returns how many claims a stored value has, and the name of their repository, which is "" without a claim.
func Stored(value []byte) (repository string, n int) {
	all := decode(store.Value{Data: value, Revision: 1})
	if len(all) > 0 {
		repository = clean(all[0].Repository, store.MaxName)
	}
	return repository, len(all)
}

func (c Claim) valid() bool {
	if _, err := store.CheckGUID("holder", c.HolderGUID); err != nil || c.ID == "" || len(c.ID) > maxID || !slices.Contains(Modes, c.Mode) {
		return false
	}
	if len(c.Paths) == 0 || len(c.Paths) > MaxPaths || len(c.Why) > MaxWhy || len(c.HolderHandle) > store.MaxName {
		return false
	}
	return !slices.ContainsFunc(c.Paths, func(p string) bool { return checkPattern(p) != nil })
}

// counting returns the claims that count now: before their end, and of registrations that live.
func (s *Service) counting(ctx context.Context, b *bus.Bus, all []Claim) ([]Claim, error) {
	now := s.reg.Now()
	type registration struct{ guid, at string }
	lives := make(map[registration]bool)
	var kept []Claim
	for _, c := range all {
		if until := store.ParseTime(c.Until); !now.Before(until) || until.Sub(now) > MaxTime+time.Minute {
			continue
		}
		who := registration{c.HolderGUID, c.Registered}
		live, known := lives[who]
		if !known {
			var err error
			if live, err = s.reg.IsLive(ctx, b, who.guid, who.at); err != nil {
				return nil, err
			}
			lives[who] = live
		}
		if live {
			kept = append(kept, c)
		}
	}
	return kept, nil
}

// In returns the claims of a repository that count.
func (s *Service) In(ctx context.Context, b *bus.Bus, repository string) ([]Claim, error) {
	v, err := s.cfg.ClaimsKey(repository).Get(ctx, b)
	if err == nil {
		var kept []Claim
		kept, err = s.counting(ctx, b, decode(v))
		if err == nil {
			return kept, nil
		}
	}
	if store.IsAPIError(err, jetstream.JSErrCodeStreamNotFound) {
		return nil, nil // nobody has claimed anything
	}
	return nil, store.AsError(err)
}

// All returns the claims of all repositories that count, by repository and time, up to some number.
func (s *Service) All(ctx context.Context, b *bus.Bus) ([]Claim, error) {
	latest := make(map[string][]Claim)
	key := s.cfg.ClaimsKey("*")
	err := store.Scan(ctx, b, key.Stream, key.Subject, 1, func(m store.Message) bool {
		latest[m.Subject] = decode(store.Value{Data: m.Data, Header: m.Header, Revision: m.Sequence})
		return len(latest) < maxListed
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, store.AsError(err)
	}
	var all []Claim
	for _, claims := range latest {
		all = append(all, claims...)
	}
	slices.SortFunc(all, func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.ClaimedAt, b.ClaimedAt), cmp.Compare(a.ID, b.ID))
	})
	all, err = s.counting(ctx, b, all[:min(len(all), maxListed)])
	return all, store.AsError(err)
}

// Request is what an agent wants to claim.
type Request struct {
	Paths []string
	Mode  Mode   // Exclusive by default
	Why   string // may be empty
	Task  string // with which the claim ends; may be empty
	// Until is the end; DefaultTime from now where it is zero.
	Until time.Time
	// AllTrees claims the files in all work trees of the repository, instead of the one that they are in.
	AllTrees bool
}

// Claim claims files for an agent of this computer, in the repository of its project. It fails with a ConflictError that names the
// holder if another agent has one of them. A claim of the same files replaces that which the agent has.
func (s *Service) Claim(ctx context.Context, b *bus.Bus, who registry.Entry, project string, r Request) (Claim, error) {
	repository, err := Find(s.cfg.Hostname, project)
	if err != nil {
		return Claim{}, err
	}
	c, err := s.claim(repository, who, project, r)
	if err != nil {
		return Claim{}, err
	}
	err = s.update(ctx, b, repository.Key, func(all []Claim) ([]Claim, error) {
		if err := c.checkAgainst(ctx, all); err != nil {
			return nil, err
		}
		same := func(x Claim) bool {
			return x.HolderGUID == c.HolderGUID && x.Tree == c.Tree && slices.Equal(x.Paths, c.Paths)
		}
		if i := slices.IndexFunc(all, same); i >= 0 {
			c.ID, c.ClaimedAt = all[i].ID, all[i].ClaimedAt
		}
		all = slices.DeleteFunc(all, same)
		if held := count(all, func(x Claim) bool { return x.HolderGUID == c.HolderGUID }); held >= MaxClaims {
			return nil, &store.Error{Code: store.RateLimitError, Message: fmt.Sprintf("You have %d claims already.", held), Remedy: "Release some with release_files, or claim a directory."}
		}
		return append(all, c), nil
	})
	return c, err
}

func count(all []Claim, is func(Claim) bool) (n int) {
	for _, c := range all {
		if is(c) {
			n++
		}
	}
	return n
}

// claim returns the claim of a request that was checked.
func (s *Service) claim(repository Repository, who registry.Entry, project string, r Request) (Claim, error) {
	now := s.reg.Now()
	if r.Until.IsZero() {
		r.Until = now.Add(DefaultTime)
	}
	r.Mode = cmp.Or(r.Mode, Exclusive)
	switch {
	case len(r.Paths) == 0 || len(r.Paths) > MaxPaths:
		return Claim{}, store.Invalid("The claim has %d paths.", len(r.Paths)).WithRemedy("Use 1 to %d, or a directory or pattern such as src/**.", MaxPaths)
	case !slices.Contains(Modes, r.Mode):
		return Claim{}, store.Invalid("There is no mode %s.", store.Quote(string(r.Mode))).WithRemedy("Use exclusive or shared.")
	case len(r.Why) > MaxWhy:
		return Claim{}, store.Invalid("The reason has %d bytes.", len(r.Why)).WithRemedy("Say in at most %d bytes what you do.", MaxWhy)
	case len(r.Task) > maxID:
		return Claim{}, store.Invalid("The task id %s is too long.", store.Quote(r.Task)).WithRemedy("Use the id of the task that you were given.")
	case !r.Until.After(now) || r.Until.Sub(now) > MaxTime:
		return Claim{}, store.Invalid("The claim would end at %s.", store.Timestamp(r.Until)).WithRemedy("Choose a time within the next %d hours.", int(MaxTime.Hours()))
	}
	c := Claim{ID: uuid.NewString(), HolderGUID: who.GUID, HolderHandle: who.Handle, Registered: who.RegisteredAt, Repository: clean(repository.Name, store.MaxName),
		Mode: r.Mode, TaskID: r.Task, Why: clean(r.Why, MaxWhy), Until: store.Timestamp(r.Until), ClaimedAt: store.Timestamp(now)}
	for i, given := range r.Paths {
		pattern, in, err := repository.pattern(s.cfg.Hostname, project, given)
		if err != nil {
			return Claim{}, err
		}
		if i > 0 && !r.AllTrees && in.Tree != c.Tree {
			return Claim{}, store.Invalid("The paths are in several work trees.").WithRemedy("Claim the files of each work tree by itself, or in all work trees.")
		}
		if !r.AllTrees {
			c.Tree = in.Tree
		}
		c.Paths = append(c.Paths, pattern)
	}
	slices.Sort(c.Paths)
	c.Paths = slices.Compact(c.Paths)
	return c, nil
}

// checkAgainst returns a ConflictError if another agent's claim excludes this one.
func (c Claim) checkAgainst(ctx context.Context, all []Claim) error {
	mine := make([][]name, len(c.Paths))
	for i, p := range c.Paths {
		mine[i] = parse(p)
	}
	for _, other := range all {
		if other.HolderGUID == c.HolderGUID || c.Mode == Shared && other.Mode == Shared || c.Tree != "" && other.Tree != "" && c.Tree != other.Tree {
			continue
		}
		for _, p := range other.Paths {
			if err := ctx.Err(); err != nil {
				return err
			}
			theirs := parse(p)
			if i := slices.IndexFunc(mine, func(m []name) bool { return overlap(m, theirs) }); i >= 0 {
				return &store.Error{Code: store.ConflictError, Message: "Nothing was claimed. " + other.Held(c.Paths[i]), Remedy: other.Ask()}
			}
		}
	}
	return nil
}

// Held says who holds a file, why, and until when. The reason is the holder's text, and marked as such.
func (c Claim) Held(path string) string {
	how := "has claimed it"
	if c.Mode == Shared {
		how = "works on it, too, and shares it with others"
	}
	why := "It gives no reason."
	if c.Why != "" {
		why = fmt.Sprintf("Its reason, in its words and not your user's: %q.", clean(c.Why, MaxWhy))
	}
	return fmt.Sprintf("%q: the agent %s %s until %s. %s", clean(path, MaxPath), c.Holder(), how, clean(c.Until, store.MaxName), why)
}

// Holder names the holder.
func (c Claim) Holder() string {
	if store.CheckName("handle", c.HolderHandle) != nil {
		return c.HolderGUID
	}
	return c.HolderHandle
}

// Ask says how to get a file that somebody holds.
func (c Claim) Ask() string {
	return fmt.Sprintf("Do something else first, or ask its holder with send_direct_message to %s to release the claim %s, and claim the file yourself once it is released.",
		c.HolderGUID, clean(c.ID, maxID))
}

// update replaces the claims of a repository that count.
func (s *Service) update(ctx context.Context, b *bus.Bus, repository string, change func([]Claim) ([]Claim, error)) error {
	_, err := s.cfg.ClaimsKey(repository).Update(ctx, b, func(v store.Value) (any, error) {
		before := decode(v)
		kept, err := s.counting(ctx, b, before)
		if err != nil {
			return nil, err
		}
		kept, err = change(kept)
		if err != nil || !v.Exists() && len(kept) == 0 {
			return nil, err
		}
		data, err := json.Marshal(record{kept})
		if err == nil && len(data) > maxRecord {
			err = &store.Error{Code: store.RateLimitError, Message: "This repository has too many claims.", Remedy: "Claim a directory or pattern instead of many files."}
		}
		return data, err
	})
	if err == nil { // a power cut must not bring back a claim that was released, nor take one from an agent of another computer
		err = b.Commit(ctx)
	}
	switch {
	case errors.Is(err, store.ErrConflict):
		return &store.Error{Code: store.RateLimitError, Message: "Too many agents claim files at once.", Remedy: "Try again in a second.", RetryAfter: time.Second, Err: err}
	case store.IsAPIError(err, jetstream.JSErrCodeStreamNotFound):
		return &store.Error{Code: store.ConnectionError, Message: "The agents' network has no file claims.",
			Remedy: "Its operator's process has to run this version of the program first.", Err: err}
	}
	return store.AsError(err)
}

// Release ends claims of an agent in a repository, those that match, and returns them.
func (s *Service) Release(ctx context.Context, b *bus.Bus, guid, repository string, matches func(Claim) bool) (released []Claim, err error) {
	err = s.update(ctx, b, repository, func(all []Claim) ([]Claim, error) {
		released = nil
		return slices.DeleteFunc(all, func(c Claim) bool {
			ends := c.HolderGUID == guid && matches(c)
			if ends {
				released = append(released, c)
			}
			return ends
		}), nil
	})
	return released, err
}

// Break ends a claim of any agent, by its id or a part of it that no other has, and returns it.
func (s *Service) Break(ctx context.Context, b *bus.Bus, id string) (broken Claim, err error) {
	repository, full, err := s.find(ctx, b, id)
	if err != nil {
		return broken, err
	}
	err = s.update(ctx, b, repository, func(all []Claim) ([]Claim, error) {
		i := slices.IndexFunc(all, func(c Claim) bool { return c.ID == full })
		if i < 0 {
			return nil, noClaim(id)
		}
		broken = all[i]
		return slices.Delete(all, i, i+1), nil
	})
	return broken, err
}

func noClaim(id string) error {
	return &store.Error{Code: store.NotFoundError, Message: fmt.Sprintf("There is no claim %s.", store.Quote(id)), Remedy: "The list of the claims has their ids; a claim may have ended meanwhile."}
}

// EndTask ends an agent's claims that end with a task.
func (s *Service) EndTask(ctx context.Context, b *bus.Bus, guid, task string) error {
	all, err := s.All(ctx, b)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.HolderGUID != guid || c.TaskID != task {
			continue
		}
		if _, err := s.Break(ctx, b, c.ID); err != nil && !store.IsNotFound(err) { // it may have ended meanwhile
			return err
		}
	}
	return nil
}

// minID is the shortest part of an id that is looked for.
const minID = 4

// find returns the repository and the id of a claim.
func (s *Service) find(ctx context.Context, b *bus.Bus, id string) (repository, full string, err error) {
	several := false
	key := s.cfg.ClaimsKey("*")
	prefix := strings.TrimSuffix(key.Subject, "*")
	err = store.Scan(ctx, b, key.Stream, key.Subject, 1, func(m store.Message) bool {
		for _, c := range decode(store.Value{Data: m.Data, Header: m.Header, Revision: m.Sequence}) {
			if c.ID == id || len(id) >= minID && (strings.HasPrefix(c.ID, id) || strings.HasSuffix(c.ID, id)) {
				several = several || full != "" && full != c.ID
				repository, full = strings.TrimPrefix(m.Subject, prefix), c.ID
			}
		}
		return true
	})
	switch {
	case err != nil && !errors.Is(err, jetstream.ErrStreamNotFound):
		return "", "", store.AsError(err)
	case several:
		return "", "", store.Invalid("Several claims have %s in their id.", store.Quote(id)).WithRemedy("Use more of the id.")
	case full == "":
		return "", "", noClaim(id)
	}
	return repository, full, nil
}

// Hit is a claim of a file that is to be changed.
type Hit struct {
	Claim
	Path string // of the file
}

// Check returns the claims of other agents than guid on files, one for each file, an exclusive one if there is one.
func (s *Service) Check(ctx context.Context, b *bus.Bus, guid string, targets []Target) ([]Hit, error) {
	if len(targets) > MaxTargets {
		return nil, store.Invalid("These are %d files.", len(targets)).WithRemedy("Check at most %d.", MaxTargets)
	}
	in := make(map[string][]Claim)
	var hits []Hit
	for _, t := range targets {
		all, known := in[t.Repository]
		if !known {
			var err error
			if all, err = s.In(ctx, b, t.Repository); err != nil {
				return nil, err
			}
			in[t.Repository] = all
		}
		hit, found, err := t.claimed(ctx, all, guid)
		if err != nil {
			return nil, err
		}
		if found {
			hits = append(hits, Hit{hit, t.Path})
		}
	}
	return hits, nil
}

// claimed returns the claim of another agent on a file.
func (t Target) claimed(ctx context.Context, all []Claim, guid string) (hit Claim, found bool, err error) {
	path := names(t.Path)
	for _, c := range all {
		if err := ctx.Err(); err != nil {
			return hit, false, err
		}
		if c.HolderGUID == guid || c.Tree != "" && c.Tree != t.Tree || found && c.Mode == Shared {
			continue
		}
		if slices.ContainsFunc(c.Paths, func(p string) bool { return overlap(path, parse(p)) }) {
			hit, found = c, true
		}
		if found && hit.Mode == Exclusive {
			break
		}
	}
	return hit, found, nil
}
