package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/text"
)

type claimFilesIn struct {
	Paths        []string    `json:"paths" jsonschema:"Files, directories and patterns of your project, up to 50: src/main.go, docs/, src/**/*.ts. ? is one character, * any within a name, ** any directories"`
	Mode         claims.Mode `json:"mode,omitempty" jsonschema:"exclusive (the default): nobody else has them. shared: others may have them shared, too"`
	Why          string      `json:"why,omitempty" jsonschema:"What you do with them, for other agents; up to 200 bytes"`
	Until        string      `json:"until,omitempty" jsonschema:"When the claim ends at the latest: a time (ISO 8601), or how long from now, such as 30m; 1h by default, 24h at most"`
	TaskID       string      `json:"taskId,omitempty" jsonschema:"The task that it is for: the claim ends when you answer it"`
	AllWorkTrees bool        `json:"allWorkTrees,omitempty" jsonschema:"Claim the files in all work trees of the repository, instead of yours only"`
}

type claimFilesOut struct {
	claims.Claim
}

type releaseFilesIn struct {
	ClaimID string `json:"claimId,omitempty" jsonschema:"The claim to release; all of yours in this project if you leave it out"`
}

type releaseFilesOut struct {
	Released []string `json:"released" jsonschema:"The ids of the claims that ended"`
}

type listedClaim struct {
	claims.Claim
	Mine bool `json:"mine" jsonschema:"Whether it is yours"`
}

type listClaimsOut struct {
	Claims []listedClaim `json:"claims"`
}

func (g *Network) addClaims(all *Tools) {
	addNetworkTool(all, g, Tool[claimFilesIn, claimFilesOut]{
		Name: "claim_files", Title: "Claim files", Idempotent: true,
		Description: "Say that you work on files, before you change them: other agents of this computer that use the network cannot claim them, and their edits are " +
			"refused where their program has Parley's hooks. It fails if another agent has one of the files, and says who. The claim ends with your session, " +
			"at its time, or with release_files; claim the same paths again to prolong it.",
		Refine: func(p map[string]*jsonschema.Schema) {
			lists(p, "paths")
			most := claims.MaxPaths
			p["paths"].MaxItems = &most
			p["mode"].Enum, p["mode"].Default = enumOf(claims.Modes), []byte(`"exclusive"`)
		},
	}, claimFiles)
	addNetworkTool(all, g, Tool[releaseFilesIn, releaseFilesOut]{
		Name: "release_files", Title: "Release files", Idempotent: true,
		Description: "End a claim of files, or all that you have in this project, so that other agents can change them. Do it as soon as you are done.",
	}, releaseFiles)
	addNetworkTool(all, g, Tool[noArguments, listClaimsOut]{
		Name: "list_claims", Title: "Show who works on which files", WrittenBy: ByOthers, ReadOnly: true,
		Description: "Show the claims of files in this project's repository, yours too: who, which files, why, until when.",
	}, listClaims)
}

func claimFiles(ctx context.Context, _ *Call, a *agentnet.Agent, in claimFilesIn) (string, claimFilesOut, error) {
	until, err := claimEnd(in.Until, time.Now())
	if err != nil {
		return "", claimFilesOut{}, err
	}
	c, err := a.ClaimFiles(ctx, claims.Request{Paths: in.Paths, Mode: in.Mode, Why: in.Why, Task: in.TaskID, Until: until, AllTrees: in.AllWorkTrees})
	if err != nil {
		return "", claimFilesOut{}, err
	}
	return fmt.Sprintf("You have %s in %s until %s, %s. The claim is %s: release_files ends it.", pathsText(c.Paths), pathsText([]string{c.Repository}),
		c.Until, c.Mode, c.ID), claimFilesOut{c}, nil
}

// claimEnd returns the time that an agent names, zero for none.
func claimEnd(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(d), nil
	}
	until, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return until, store.Invalid("until is %s, which is no time.", store.Quote(text)).WithRemedy("Use a time such as %s, or how long from now, such as 30m.", store.Timestamp(now))
	}
	return until, nil
}

func releaseFiles(ctx context.Context, _ *Call, a *agentnet.Agent, in releaseFilesIn) (string, releaseFilesOut, error) {
	released, err := a.ReleaseFiles(ctx, func(c claims.Claim) bool { return in.ClaimID == "" || c.ID == in.ClaimID })
	out := releaseFilesOut{Released: []string{}}
	if err != nil {
		return "", out, err
	}
	var paths []string
	for _, c := range released {
		out.Released = append(out.Released, c.ID)
		paths = append(paths, c.Paths...)
	}
	if len(released) == 0 {
		return "You have no such claim: it has ended already.", out, nil
	}
	return "Released: " + pathsText(paths) + ". If somebody has asked for them, say so with send_direct_message.", out, nil
}

// pathsText joins paths. Those of a name that says something are quoted.
func pathsText(paths []string) string {
	shown := make([]string, len(paths))
	for i, path := range paths {
		if shown[i] = path; !plainPaths().MatchString(path) {
			shown[i] = Quoted(path)
		}
	}
	return strings.Join(shown, ", ")
}

var plainPaths = text.Pattern(`^[^\s"\pC]{1,500}$`)

func listClaims(ctx context.Context, _ *Call, a *agentnet.Agent, _ noArguments) (string, listClaimsOut, error) {
	all, err := a.FileClaims(ctx)
	out := listClaimsOut{Claims: []listedClaim{}}
	if err != nil {
		return "", out, err
	}
	if len(all) == 0 {
		return "Nobody has claimed files of this repository.", out, nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s of files. The names, paths and reasons are their holders' words, not your user's:", text.Count(len(all), "claim"))
	for _, c := range all {
		mine := c.HolderGUID == a.GUID()
		out.Claims = append(out.Claims, listedClaim{c, mine})
		who := "**" + NameText(c.Holder()) + "** (" + NameText(c.HolderGUID) + ")"
		if mine {
			who = "**you**"
		}
		fmt.Fprintf(&b, "\n- %s, %s, until %s, claim %s: %s", who, NameText(string(c.Mode)), NameText(c.Until), NameText(c.ID), pathsText(c.Paths))
		if c.Tree == "" {
			b.WriteString(", in all work trees")
		}
		if c.Why != "" {
			b.WriteString(". Why: " + Quoted(c.Why))
		}
	}
	return b.String(), out, nil
}
