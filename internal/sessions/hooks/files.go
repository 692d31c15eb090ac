package hooks

import (
	"context"
	"slices"
	"strings"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/base/edits"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/sessions/news"
	"github.com/parleyhub/parley/internal/sessions/presence"
)

// EditTools are the tools of each vendor that change files, as their hooks name them in a matcher.
var EditTools = map[string]string{presence.Claude: "Edit|Write|NotebookEdit", presence.Codex: "apply_patch|Bash", presence.Gemini: "write_file|replace",
	presence.OpenCode: "edit|write|multiedit|patch|apply_patch"}

const (
	maxHits     = 3 // claims that a refusal names
	maxClaims   = 5 // claims that a notice names
	maxNotified = 1000
)

// Files returns the absolute paths of the files that the event's tool is about to change, as far as its input names them. They are
// the model's: package claims checks them.
func (e Event) Files() []string {
	if e.Kind != BeforeTool || !slices.Contains(strings.Split(EditTools[e.Vendor], "|"), e.Tool) {
		return nil
	}
	return edits.Files(e.Tool, e.ToolInput, e.Dir)
}

// Files are the claims of files: an *[assignment.Assigner].
type Files interface {
	// CheckFiles returns the claims of other agents than guid on files.
	CheckFiles(ctx context.Context, guid string, files []claims.Target) ([]claims.Hit, error)
	// ClaimsIn returns the claims in the repository of a directory.
	ClaimsIn(ctx context.Context, dir string) ([]claims.Claim, error)
}

// guard keeps a tool from changing files that another agent has claimed. On any doubt the tool runs.
func (s *Service) guard(ctx context.Context, session presence.Session, files []claims.Target) Reply {
	if s.o.Files == nil || len(files) == 0 {
		return Reply{}
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	hits, err := s.o.Files.CheckFiles(ctx, session.GUID, files)
	if err != nil {
		s.log.Debug("it is not known whether files are claimed", "session", session.ID, "error", err)
		return Reply{}
	}
	var denied, shared []string
	for _, h := range hits {
		if session.GUID == "" && !s.isOther(session, h.HolderGUID) {
			continue // it may be the session's own
		}
		if h.Mode == claims.Exclusive && len(denied) < maxHits {
			denied = append(denied, h.Held(h.Path)+" "+h.Ask())
		} else if h.Mode == claims.Shared && len(shared) < maxHits {
			shared = append(shared, holder(h.Claim))
		}
	}
	if len(denied) > 0 {
		return Reply{Answer: Denial(denied)}
	}
	if len(shared) > 0 {
		slices.Sort(shared)
		return Reply{Answer: Answer{Context: "Parley: this file is also worked on by " + strings.Join(slices.Compact(shared), ", ") + ", who shares it. The tool list_claims of parley says more."}}
	}
	return Reply{}
}

// Denial is the answer that keeps a tool from changing files that other agents hold. reasons say who holds each, and how to ask.
func Denial(reasons []string) Answer {
	return Answer{Deny: "Parley: nothing was changed, because another agent has claimed a file. " + strings.Join(reasons[:min(len(reasons), maxHits)], " ")}
}

// isOther reports whether an agent is known to be another open session than one whose agent is not known.
func (s *Service) isOther(session presence.Session, guid string) bool {
	return slices.ContainsFunc(s.o.Records.All(), func(x presence.Session) bool {
		return x.GUID == guid && (x.Vendor != session.Vendor || x.ID != session.ID) && !session.MayBe(x)
	})
}

// holder names the holder of a claim in a notice.
func holder(c claims.Claim) string {
	if name := news.Name(c.HolderHandle); name != "" {
		return name
	}
	return "the agent " + c.HolderGUID
}

// claimed says which agents have claimed files of a session's repository; "" if there are none that the session was not told of.
func (s *Service) claimed(ctx context.Context, key string, session presence.Session) string {
	if s.o.Files == nil || session.Dir == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	all, err := s.o.Files.ClaimsIn(ctx, session.Dir)
	if err != nil {
		s.log.Debug("the claims of a session's repository are not known", "session", session.ID, "error", err)
		return ""
	}
	all = slices.DeleteFunc(all, func(c claims.Claim) bool {
		return c.HolderGUID == session.GUID || session.GUID == "" && !s.isOther(session, c.HolderGUID)
	})
	var ids, words []string
	for _, c := range all {
		ids = append(ids, c.ID)
		if len(words) < maxClaims {
			words = append(words, holder(c)+" ("+text.Count(len(c.Paths), "path")+", "+string(c.Mode)+")")
		}
	}
	if !s.changed(key, strings.Join(ids, " ")) || len(all) == 0 {
		return ""
	}
	if rest := len(all) - len(words); rest > 0 {
		words = append(words, text.Count(rest, "further claim"))
	}
	return "Parley: other agents have claimed files of this repository: " + strings.Join(words, "; ") +
		". Look with the tool list_claims of parley before you change files, and claim yours with claim_files."
}

// changed notes of which claims a session was told last, and reports whether they are others than before.
func (s *Service) changed(key, ids string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.notified[key]
	if len(s.notified) >= maxNotified {
		clear(s.notified)
	}
	s.notified[key] = ids
	return before != ids
}
