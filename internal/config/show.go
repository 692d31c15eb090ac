package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
)

// Value is one effective value.
type Value struct {
	Key    string
	Value  any // a plain JSON value; [Secret] in place of a secret
	Origin Origin
}

// secretKey matches the keys whose values are never shown.
var secretKey = text.Pattern(`^(http\.token|bus\.(leaf\.)?password|peers\.nats\.password|peers\.hyperswarm\.network|agents\..+\.env\.set\..+|mcpServers\..+\.(env|headers)\..+)$`)

// Secret is shown in place of a secret.
const Secret = "(secret)"

// environmentKey matches the keys of environment variables, most of which are no secrets.
var environmentKey = text.Pattern(`\.env\.(set\.)?[^.]+$`)

// Secrets returns the texts that must appear in no log or record: the values that Values replaces, but of environment
// variables only those whose names look like those of secrets. Addresses hold none: Load refuses them.
func (l *Loaded) Secrets() []string {
	var secrets []string
	l.walk("", reflect.ValueOf(l.Config).Elem(), func(key string, v reflect.Value) {
		if v.Kind() != reflect.String || v.String() == "" {
			return
		}
		switch s := v.String(); {
		case !secretKey().MatchString(key):
		case !environmentKey().MatchString(key) || process.NamesSecret(key[strings.LastIndexByte(key, '.')+1:]):
			secrets = append(secrets, s)
			if _, token, ok := strings.Cut(s, " "); ok && strings.Contains(key, ".headers.") { // after the scheme
				secrets = append(secrets, token)
			}
		}
	})
	return secrets
}

// Values returns the effective values, sorted by key, without the empty defaults of agents.
// Secrets are replaced by [Secret].
func (l *Loaded) Values() []Value {
	var all []Value
	l.walk("", reflect.ValueOf(l.Config).Elem(), func(key string, v reflect.Value) {
		origin := l.Origin(key)
		if v.IsZero() && origin.Kind == FromDefault && strings.HasPrefix(key, "agents.") {
			return
		}
		all = append(all, Value{Key: key, Value: shown(key, v, origin), Origin: origin})
	})
	slices.SortFunc(all, func(a, b Value) int { return cmp.Compare(a.Key, b.Key) })
	return all
}

// walk calls visit with each value below key.
func (l *Loaded) walk(key string, v reflect.Value, visit func(key string, v reflect.Value)) {
	switch {
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			l.walk(key, v.Elem(), visit)
		}
		return
	case v.Kind() == reflect.Struct:
		for name, index := range structFields(v.Type()) {
			l.walk(join(key, name), v.FieldByIndex(index), visit)
		}
		return
	case v.Kind() == reflect.Map:
		for iter := v.MapRange(); iter.Next(); {
			l.walk(join(key, iter.Key().String()), iter.Value(), visit)
		}
		return
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		for i := range v.Len() {
			l.walk(fmt.Sprintf("%s[%d]", key, i), v.Index(i), visit)
		}
		return
	}
	visit(key, v)
}

// shown returns a value for display, without secrets. The environment of a built-in agent is not secret.
func shown(key string, v reflect.Value, origin Origin) any {
	switch {
	case secretKey().MatchString(key) && !v.IsZero() && (origin.Kind != FromDefault || !strings.HasPrefix(key, "agents.")):
		return Secret
	case v.Type() == durationType:
		return FormatDuration(time.Duration(v.Int()))
	case v.Kind() == reflect.Slice && v.IsNil():
		return []string{}
	}
	return v.Interface()
}

// FormatDuration formats a duration for [ParseDuration].
func FormatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	s := d.String() // for example 30m0s or 2h0m0s
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
