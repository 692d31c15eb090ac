package claims

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestPatternsMatchPaths(t *testing.T) {
	for _, tt := range []struct {
		pattern, path string
		want          bool
	}{
		{"src/main.go", "src/main.go", true}, {"src/main.go", "src/main.go2", false}, {"src/main.go", "main.go", false},
		{"*.go", "a.go", true}, {"*.go", "src/a.go", false}, {"src/*", "src/a", true}, {"src/*", "src/a/b", false},
		{"**", "a", true}, {"**", "a/b/c", true}, {"src/**", "src/a/b", true}, {"src/**", "srcs/a", false},
		{"**/*.go", "a.go", true}, {"**/*.go", "x/y/a.go", true}, {"a/**/b", "a/b", true}, {"a/**/b", "a/x/y/b", true}, {"a/**/b", "a/x/c", false},
		{"?.go", "é.go", true}, {"?.go", "ab.go", false}, {"a**b", "a-x-b", true}, {"a**b", "a/b", false},
		{"[id].tsx", "[id].tsx", true}, {"[id].tsx", "i.tsx", false}, {"*", "", true}, {"a?c", "a*c", true}, {"a*c", "a*c", true}, {"abc", "a*c", false},
	} {
		if got := overlap(parse(tt.pattern), names(tt.path)); got != tt.want {
			t.Errorf("%s matches %s: %t", tt.pattern, tt.path, got)
		}
		if got := overlap(names(tt.path), parse(tt.pattern)); got != tt.want {
			t.Errorf("%s is matched by %s: %t", tt.path, tt.pattern, got)
		}
	}
}

func TestPatternsOverlap(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"src/**", "**/*.go", true}, {"src/*.go", "src/*.ts", false}, {"src/a*", "src/*b", true}, {"docs/**", "src/**", false},
		{"a/**/z", "a/b/**", true}, {"*a*", "b?c", true}, {"*a", "b?c", false}, {"**/x", "x/**", true}, {"?", "??", false},
	} {
		if overlap(parse(tt.a), parse(tt.b)) != tt.want || overlap(parse(tt.b), parse(tt.a)) != tt.want {
			t.Errorf("%s and %s overlap: not %t", tt.a, tt.b, tt.want)
		}
	}
}

// What matches two patterns is an overlap of them, for every path of a small world; and where there is an overlap a path of that
// world is matched by both, but for patterns that need longer ones.
func TestPatternsOverlapWhereAPathMatchesBoth(t *testing.T) {
	const seed = 17
	random := rand.New(rand.NewPCG(seed, seed))
	pick := func(parts ...string) string { return parts[random.IntN(len(parts))] }
	pattern := func() string {
		var all []string
		for range 1 + random.IntN(4) {
			if random.IntN(4) == 0 {
				all = append(all, "**")
				continue
			}
			one := ""
			for range 1 + random.IntN(3) {
				one += pick("a", "b", "*", "?")
			}
			all = append(all, one)
		}
		return strings.Join(all, "/")
	}
	path := func() string {
		var all []string
		for range 1 + random.IntN(4) {
			one := ""
			for range 1 + random.IntN(3) {
				one += pick("a", "b")
			}
			all = append(all, one)
		}
		return strings.Join(all, "/")
	}
	both := 0
	for range 20_000 {
		a, b, p := pattern(), pattern(), path()
		if !overlap(parse(a), names(p)) || !overlap(parse(b), names(p)) {
			continue
		}
		both++
		if !overlap(parse(a), parse(b)) || !overlap(parse(b), parse(a)) {
			t.Fatalf("%s and %s match %s, but do not overlap (seed %d)", a, b, p, seed)
		}
	}
	if both < 100 {
		t.Errorf("only %d cases", both)
	}
}

func FuzzPatterns(f *testing.F) {
	f.Add("src/**/*.go", "src/a?c/**")
	f.Add("*a*a*a*", "**/**/**")
	f.Fuzz(func(t *testing.T, a, b string) {
		if len(a) > MaxPath || len(b) > MaxPath {
			return
		}
		if overlap(parse(a), parse(b)) != overlap(parse(b), parse(a)) {
			t.Errorf("%q and %q overlap one way only", a, b)
		}
		if !overlap(parse(a), parse(a)) || overlap(names(a), names(b)) != (fold(strings.ToValidUTF8(a, "\uFFFD")) == fold(strings.ToValidUTF8(b, "\uFFFD"))) && !strings.ContainsAny(a+b, "\uFFFD") {
			t.Errorf("%q, %q", a, b)
		}
	})
}
