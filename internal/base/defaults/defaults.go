// Package defaults replaces options that are not set by their defaults.
package defaults

import "time"

// Number is the type of an option for which zero or less means the default.
type Number interface{ int | int64 | time.Duration }

// Or returns n, or otherwise if n is not positive.
func Or[N Number](n, otherwise N) N {
	if n > 0 {
		return n
	}
	return otherwise
}

// Set sets an option that is not positive to its default.
func Set[N Number](n *N, to N) { *n = Or(*n, to) }
