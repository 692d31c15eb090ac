package acp

import (
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// NewDialect is the protocol without a program.
func NewDialect(def runner.Definition) duplex.Dialect { return &dialect{def: def} }
