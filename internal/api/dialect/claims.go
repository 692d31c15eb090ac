package dialect

import (
	"context"

	"github.com/parleyhub/parley/internal/agentnet/claims"
)

// MaxFiles is how many files a request may name.
const MaxFiles = claims.MaxTargets

// FileClaim is an agent's claim of files. Paths and reason are the agent's words.
type FileClaim struct {
	ID           string   `json:"claimId"`
	Holder       string   `json:"holder"`
	HolderGUID   string   `json:"holderGuid"`
	Repository   string   `json:"repository"` // the name of its directory
	Paths        []string `json:"paths"`      // below the top of the work tree
	Mode         string   `json:"mode"`       // exclusive or shared
	AllWorkTrees bool     `json:"allWorkTrees"`
	TaskID       string   `json:"taskId,omitempty"`
	Why          string   `json:"why,omitempty"`
	Until        string   `json:"until"`
	ClaimedAt    string   `json:"claimedAt"`
}

// FileCheckParams are the parameters of hub/claims/check.
type FileCheckParams struct {
	// Files are the keys of repository and work tree, and the path in it, with spaces between.
	Files []string `json:"files"`
	// GUID is the agent that asks: its own claims are left out. "" is nobody of the agents' network.
	GUID string `json:"guid,omitempty"`
	// Token is that of a conversation of an agent of the hub, whose own claims are left out, too.
	Token string `json:"token,omitempty"`
}

// HeldFile is a file that an agent holds.
type HeldFile struct {
	FileClaim
	Path string `json:"path"` // below the top of the work tree
	// Held says who holds it, why, and until when; Ask how to get it.
	Held string `json:"held"`
	Ask  string `json:"ask"`
}

// BreakClaimParams are the parameters of hub/claims/break.
type BreakClaimParams struct {
	ClaimID string `json:"claimId"` // or a part of it
}

// BrokenClaim is a claim that was ended for its holder.
type BrokenClaim struct {
	FileClaim
	Notified bool `json:"notified"` // whether its holder has mail about it
}

// Claims are the claims of files on this computer, for the hub's own user. The errors are *hub.Error.
type Claims interface {
	FileClaims(ctx context.Context) ([]FileClaim, error)
	// CheckFiles returns the files that others than the agent that asks have claimed.
	CheckFiles(ctx context.Context, p FileCheckParams) ([]HeldFile, error)
	BreakFileClaim(ctx context.Context, id string) (BrokenClaim, error)
}

func (s *Service) claimsList(ctx context.Context) ([]FileClaim, error) {
	all, err := s.cfg.Claims.FileClaims(ctx)
	return append([]FileClaim{}, all...), err // never null on the wire
}

func (s *Service) claimsCheck(c *call) action {
	p := FileCheckParams{Files: c.textsUpTo(MaxFiles, "files"), GUID: c.text("guid", maxID), Token: c.text("token", maxSessionToken)}
	return func(ctx context.Context) (any, error) {
		held, err := s.cfg.Claims.CheckFiles(ctx, p)
		return append([]HeldFile{}, held...), err
	}
}

func (s *Service) claimBreak(ctx context.Context, id string) (BrokenClaim, error) {
	return s.cfg.Claims.BreakFileClaim(ctx, id)
}
