package config

import (
	"fmt"
	"log/slog"
	"reflect"
	"strings"

	"github.com/parleyhub/parley/internal/base/text"
)

// URL is the URL of a NATS server, or several separated by commas. Credentials in it are never printed.
type URL string

var urlStart = text.Pattern(`(?:^|,)[a-z]+://`)

// String hides the user information, and all of a text that is no URL and may contain a login.
func (u URL) String() string {
	shown := ""
	starts := append(urlStart().FindAllStringIndex(string(u), -1), []int{len(u), len(u)})
	if len(starts) == 1 && strings.Contains(string(u), "@") {
		return hidden
	}
	if len(starts) == 1 {
		return string(u)
	}
	for i, start := range starts[:len(starts)-1] {
		rest := string(u[start[1]:starts[i+1][0]])
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			rest = hidden + rest[at:]
		}
		shown += string(u[start[0]:start[1]]) + rest
	}
	return shown
}

// GoString is String for %#v.
func (u URL) GoString() string { return fmt.Sprintf("%q", u.String()) }

// LogValue is String for slog.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalText is String for JSON.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// hidden stands for a secret.
const hidden = "(hidden)"

// Value is one setting.
type Value struct {
	Key    string
	Value  any // can be encoded as JSON; secrets are hidden
	Origin Origin
}

// Values returns the settings in force, in the order of the document; a channel is one setting. Unset settings without
// a default are omitted.
func (c *Config) Values() []Value {
	var all []Value
	c.collect(&all, "", reflect.ValueOf(c.Document))
	return all
}

func (c *Config) collect(all *[]Value, prefix string, document reflect.Value) {
	for i := range document.NumField() {
		field, v := document.Type().Field(i), document.Field(i)
		key := prefix + field.Tag.Get("json")
		switch {
		case v.Kind() == reflect.Struct:
			c.collect(all, key+".", v)
		case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
			for i := range v.Len() {
				*all = append(*all, Value{fmt.Sprintf("%s[%d]", key, i), v.Index(i).Interface(), c.Origin(key)})
			}
		default:
			origin := c.Origin(key)
			if v.IsZero() && origin.Layer == LayerDefault {
				continue
			}
			value := v.Interface()
			if field.Tag.Get("secret") != "" && !v.IsZero() {
				value = hidden
			}
			*all = append(*all, Value{key, value, origin})
		}
	}
}

// Origin returns the origin of the value at a path of the document.
func (c *Config) Origin(path string) Origin {
	if origin, ok := c.Origins[path]; ok {
		return origin
	}
	if path == "namespace" {
		return Origin{Layer: LayerDerived, Name: c.ProjectPath}
	}
	return Origin{Layer: LayerDefault}
}
