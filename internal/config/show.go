package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/text"
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

// Values returns the effective values, sorted by key, without the empty defaults of agents.
// Secrets are replaced by [Secret].
func (l *Loaded) Values() []Value {
	var all []Value
	l.collect(&all, "", reflect.ValueOf(l.Config).Elem())
	slices.SortFunc(all, func(a, b Value) int { return cmp.Compare(a.Key, b.Key) })
	return all
}

func (l *Loaded) collect(all *[]Value, key string, v reflect.Value) {
	switch {
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			l.collect(all, key, v.Elem())
		}
		return
	case v.Kind() == reflect.Struct:
		for name, index := range structFields(v.Type()) {
			l.collect(all, join(key, name), v.FieldByIndex(index))
		}
		return
	case v.Kind() == reflect.Map:
		for iter := v.MapRange(); iter.Next(); {
			l.collect(all, join(key, iter.Key().String()), iter.Value())
		}
		return
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		for i := range v.Len() {
			l.collect(all, fmt.Sprintf("%s[%d]", key, i), v.Index(i))
		}
		return
	}
	origin := l.Origin(key)
	if v.IsZero() && origin.Kind == FromDefault && strings.HasPrefix(key, "agents.") {
		return
	}
	*all = append(*all, Value{Key: key, Value: shown(key, v, origin), Origin: origin})
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
