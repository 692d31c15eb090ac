package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/text"
)

// latest names the newest task, conversation, swarm and so on wherever an id is expected.
const latest = "latest"

// minShort is the length of a short id. A short id is the end of a UUID: the beginning of a task's id is its time,
// which all tasks of a minute share.
const minShort = 8

// shortIDs returns the short forms of the ids of one table: as long as they must be to differ. Ids that are not UUIDs
// are names, which are not shortened.
func shortIDs[T any](items []T, id func(T) string) func(string) string {
	n := minShort
	for ; n < 36; n++ {
		seen := make(map[string]bool, len(items))
		same := slices.ContainsFunc(items, func(item T) bool {
			s := tail(id(item), n)
			was := seen[s]
			seen[s] = true
			return was
		})
		if !same {
			break
		}
	}
	return func(id string) string { return tail(id, n) }
}

// shortID returns the short form of one id.
func shortID(id string) string { return tail(id, minShort) }

// tail returns the last n characters of a UUID, and any other id as it is.
func tail(id string, n int) string {
	if uuid.Validate(id) != nil || len(id) <= n {
		return id
	}
	return strings.TrimPrefix(id[len(id)-n:], "-")
}

// idKind is a kind of thing that has ids.
type idKind struct {
	noun string
	// find returns the ids that begin or end with part, the newest first. It may return at most limit.
	find func(ctx context.Context, part string, limit int) ([]string, error)
	// about describes one, for the choice between several; nil has nothing to say.
	about func(ctx context.Context, id string) string
	// create accepts a name that does not exist yet.
	create bool
}

// maxChoice is how many candidates an error lists.
const maxChoice = 5

// resolve returns the id that given names: the id itself, a beginning or an end of it that no other id has, or
// "latest". It returns given where nothing has such an id: the hub's error then says so.
func (k idKind) resolve(ctx context.Context, given string) (string, error) {
	if given == "" || uuid.Validate(given) == nil || k.create && !abbreviated(given) {
		return given, nil
	}
	part := given
	if given == latest {
		part = ""
	}
	found, err := k.find(ctx, part, maxChoice+1)
	switch {
	case err != nil:
		return "", err
	case slices.Contains(found, given):
		return given, nil
	case given == latest && len(found) == 0:
		return "", &failure{Exit: exitNotFound, Kind: "not-found", Message: "there is no " + k.noun + " yet"}
	case given == latest, len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return given, nil
	}
	return "", k.ambiguous(ctx, given, found)
}

// abbreviated reports whether given can only be meant as a part of a UUID, and not as the name of something new.
func abbreviated(given string) bool {
	return given == latest || len(given) >= minShort && strings.Trim(strings.ToLower(given), "0123456789abcdef-") == ""
}

func (k idKind) ambiguous(ctx context.Context, given string, found []string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%q is the beginning or the end of more than one %s:", given, k.noun)
	for i, id := range found {
		if i == maxChoice {
			b.WriteString("\n  …")
			break
		}
		b.WriteString("\n  " + plain(id))
		if k.about != nil {
			b.WriteString("  " + k.about(ctx, id))
		}
	}
	return &failure{Exit: exitUsage, Kind: "ambiguous-id", Message: b.String(), Remedy: "use more of the id"}
}

// inList is the find function of things that can only be listed: like the others, of which list returns all ids.
func inList(list func(context.Context) ([]string, error)) func(context.Context, string, int) ([]string, error) {
	return func(ctx context.Context, part string, limit int) ([]string, error) {
		all, err := list(ctx)
		if err != nil {
			return nil, err
		}
		var found []string
		for _, id := range all {
			if id == part {
				return []string{id}, nil
			}
			if len(found) < limit && (hasPrefixFold(id, part) || uuid.Validate(id) == nil && hasSuffixFold(id, part)) {
				found = append(found, id)
			}
		}
		return found, nil
	}
}

func hasPrefixFold(s, part string) bool {
	return len(s) >= len(part) && strings.EqualFold(s[:len(part)], part)
}

func hasSuffixFold(s, part string) bool {
	return len(s) >= len(part) && strings.EqualFold(s[len(s)-len(part):], part)
}

// taskID returns the id of the task that given names.
func taskID(ctx context.Context, c *client.Client, given string) (string, error) {
	return idKind{
		noun: "task",
		find: func(ctx context.Context, part string, limit int) ([]string, error) {
			return c.IDs(ctx, dialect.IDsParams{Kind: dialect.IDsOfTasks, Like: part, Limit: limit})
		},
		about: func(ctx context.Context, id string) string {
			task, err := c.Task(ctx, id)
			if err != nil {
				return ""
			}
			return fmt.Sprintf("%s  %s  %s", task.Status.State, oneLine(agentOf(task)), text.Clip(asked(task), 40))
		},
	}.resolve(ctx, given)
}

// contextID returns the id of the conversation that given names. With create, a name that no conversation has is
// the name of a new one, and only what cannot be a name is completed.
func contextID(ctx context.Context, c *client.Client, given string, create bool) (string, error) {
	return idKind{
		noun: "conversation", create: create,
		find: func(ctx context.Context, part string, limit int) ([]string, error) {
			return c.IDs(ctx, dialect.IDsParams{Kind: dialect.IDsOfContexts, Like: part, Limit: limit})
		},
	}.resolve(ctx, given)
}

// swarmID returns the id of the swarm that given names.
func swarmID(ctx context.Context, c *client.Client, given string) (string, error) {
	return idKind{
		noun: "swarm",
		find: inList(func(ctx context.Context) ([]string, error) {
			swarms, err := newestSwarms(ctx, c)
			return idsOf(swarms, func(s dialect.SwarmSummary) string { return s.ID }), err
		}),
	}.resolve(ctx, given)
}

// idsOf returns the ids of the items of a list.
func idsOf[T any](list []T, id func(T) string) []string {
	ids := make([]string, len(list))
	for i, item := range list {
		ids[i] = id(item)
	}
	return ids
}
