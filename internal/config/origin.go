package config

import "fmt"

// Origin is where a value was set.
type Origin struct {
	Kind   OriginKind
	Name   string // the variable, the flag or the file
	Line   int    // in the file
	Column int
}

// OriginKind is a layer of the configuration.
type OriginKind string

// The layers, in ascending precedence.
const (
	FromDefault     OriginKind = "default"
	FromFile        OriginKind = "file"
	FromEnvironment OriginKind = "environment"
	FromFlag        OriginKind = "flag"
)

// String formats the origin.
func (o Origin) String() string {
	switch o.Kind {
	case FromFile:
		return fmt.Sprintf("%s:%d", o.Name, o.Line)
	case FromEnvironment, FromFlag:
		return o.Name
	}
	return string(FromDefault)
}
