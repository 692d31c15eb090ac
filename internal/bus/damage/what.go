package damage

import (
	"encoding/base64"
	"fmt"
	"path"
	"slices"
	"strings"
)

// names says what the records of a subject are; $n is the n-th token.
var names = []struct{ subject, what string }{
	{"parley.hub.*.task.*", "task $5"},
	{"parley.hub.*.part.*.*.*", "a part of task $5"},
	{"parley.hub.*.output.*", "output of task $5"},
	{"parley.hub.*.trace.*.*", "the trace of task $5, turn $6"},
	{"parley.hub.*.record.session.*", "the session of the conversation %6"},
	{"parley.hub.*.record.*.*", "a record of a conversation"},
	{"parley.hub.*.event", "an event"},
	{"*.crdt.*.*.log", "a change of the document $3"},
	{"*.crdtsnap.>", "a part of a document's snapshot"},
	{"$KV.*_crdt_head.*", "the head of the document $3"},
	{"$KV.*_crdt_access.*", "who may use the document $3"},
	{"$KV.parley-push-*.>", "a push notification configuration"},
	{"global.agent.>", "mail of an agent"},
	{"global.mail.>", "a receipt of mail"},
	{"global.outbox.>", "mail that waits for the network"},
	{"global.workqueue.*", "an item of the queue $3"},
	{"global.work.item.*", "the state of an item of a queue"},
	{"$KV.>", "an entry of a registry or a limit"},
	{"*.*", "a message of the channel $2"},
}

// What says what the record was, in a few words.
func (r Record) What() string {
	switch r.Kind {
	case KindIndex:
		return "the index of " + r.Stream
	case KindSettings:
		return "the settings of " + r.Stream
	case KindPosition:
		return "the position of a consumer of " + r.Stream
	case KindDeletion:
		return "a deletion mark of " + r.Stream
	case KindWrite:
		return "an unfinished write to " + r.Stream
	case KindBlock:
		return "a file of " + r.Stream
	case KindStream:
		return "all of " + r.Stream
	case KindFile:
		return "the file " + path.Base(r.File)
	}
	for _, n := range names {
		if tokens := strings.Split(r.Subject, "."); fits(strings.Split(n.subject, "."), tokens) {
			return expand(n.what, tokens)
		}
	}
	if r.Last > r.Sequence {
		return fmt.Sprintf("%d records of %s", r.Last-r.Sequence+1, r.Stream)
	}
	return "a record of " + r.Stream
}

// Derived reports whether other records hold what the record held, so that it can be made anew from them.
func (r Record) Derived() bool {
	return slices.ContainsFunc([]string{"$KV.*_crdt_head.*", "*.crdtsnap.>"}, func(pattern string) bool {
		return r.Kind == KindMessage && fits(strings.Split(pattern, "."), strings.Split(r.Subject, "."))
	})
}

// fits reports whether the tokens of a subject match those of a pattern, in which a star may be a part of a token.
func fits(pattern, tokens []string) bool {
	for i, p := range pattern {
		if i == len(tokens) {
			return false
		}
		if p == ">" {
			return true
		}
		if ok, err := path.Match(p, tokens[i]); !ok || err != nil {
			return false
		}
	}
	return len(pattern) == len(tokens)
}

// expand replaces $n by the n-th token, and %n by what it is the base64 of.
func expand(what string, tokens []string) string {
	for i, token := range tokens {
		what = strings.ReplaceAll(what, fmt.Sprintf("$%d", i+1), token)
		if plain, err := base64.RawURLEncoding.DecodeString(token); err == nil {
			what = strings.ReplaceAll(what, fmt.Sprintf("%%%d", i+1), string(plain))
		}
	}
	return what
}
