package toolbox

import "unicode"

// unseen are characters by which a text says to a model, or does to a terminal, what a
// person who reads it does not see: those that change the direction of what follows, and
// the tags, which repeat ASCII invisibly.
var unseen = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x202a, Hi: 0x202e, Stride: 1}, {Lo: 0x2066, Hi: 0x2069, Stride: 1}},
	R32: []unicode.Range32{{Lo: 0xe0000, Hi: 0xe007f, Stride: 1}},
}

// visibleText reports whether a text has neither control characters, but for those of
// lines, nor other ones that cannot be seen.
func visibleText(text string) bool {
	for _, r := range text {
		if unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' || unicode.Is(unseen, r) {
			return false
		}
	}
	return true
}
