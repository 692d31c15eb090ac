package cli

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/parleyhub/parley/internal/config"
)

// timeFlag is the value of every flag that takes a time: 5s, 2m, 1h30m, 7d, or a bare number of the flag's unit.
type timeFlag struct {
	value *time.Duration
	unit  time.Duration // of a bare number
}

// timeVar defines a flag that takes a time. The value must not be negative.
func timeVar(flags *pflag.FlagSet, value *time.Duration, name string, otherwise, unit time.Duration, usage string) {
	*value = otherwise
	flags.Var(&timeFlag{value, unit}, name, usage)
}

// Type names the value in the help.
func (f *timeFlag) Type() string { return "duration" }

// String formats the value.
func (f *timeFlag) String() string {
	if f.value == nil || *f.value == 0 {
		return "0"
	}
	return f.value.String()
}

// Set parses a value.
func (f *timeFlag) Set(s string) error {
	d, err := config.ParseDuration(s)
	if n, ok := bareNumber(s, f.unit); ok {
		d, err = n, nil
	}
	switch {
	case err != nil:
		return fmt.Errorf("it is not a time such as 5s, 2m, 1h30m or 7d; a bare number is in %s", unitName(f.unit))
	case d < 0:
		return fmt.Errorf("it must not be negative")
	}
	*f.value = d
	return nil
}

// bareNumber returns a number of units, unless the result is too long for a duration.
func bareNumber(s string, unit time.Duration) (time.Duration, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > math.MaxInt64/int64(unit) || n < math.MinInt64/int64(unit) {
		return 0, false
	}
	return time.Duration(n) * unit, true
}

func unitName(unit time.Duration) string {
	switch unit {
	case time.Millisecond:
		return "milliseconds"
	case time.Hour:
		return "hours"
	}
	return "seconds"
}
