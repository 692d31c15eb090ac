package main

import (
	"bytes"
	"fmt"
	"html"
	"strings"

	"github.com/parleyhub/parley/internal/base/display"
)

// film collects frames.
type film struct {
	width, height int
	title         string
	frames        []frame
}

type frame struct {
	scene
	lines []string
}

func (f *film) add(lines []string, s scene) { f.frames = append(f.frames, frame{s, lines}) }

// The measures of a cell, and of the window around the screen, in pixels.
const (
	cellWidth  = 8.4
	cellHeight = 18.0
	fontSize   = 14
	border     = 14.0
	bar        = 30.0
)

const style = `
  svg { --back: #0d1117; --frame: #30363d; --top: #161b22; --text: #e6edf3; --dim: #8b949e; --bad: #ff7b72; --good: #3fb950; --waits: #d29922; --busy: #39c5cf; --heading: #58a6ff }
  @media (prefers-color-scheme: light) { svg { --back: #ffffff; --frame: #d0d7de; --top: #f6f8fa; --text: #1f2328; --dim: #59636e; --bad: #cf222e; --good: #1a7f37; --waits: #9a6700; --busy: #0a7a85; --heading: #0969da } }
  .window { fill: var(--back); stroke: var(--frame) } .top { fill: var(--top) } text { fill: var(--text); white-space: pre } .back { fill: var(--text) }
  .s1 { font-weight: 600 } .s2 { fill: var(--dim) } .s7 { fill: var(--back) } .s31 { fill: var(--bad) } .s32 { fill: var(--good) } .s33 { fill: var(--waits) } .s36 { fill: var(--busy) } .s1-34 { fill: var(--heading); font-weight: 600 }
  .key { fill: var(--back); font-weight: 600 } .cap { fill: var(--heading) }
`

// svg draws the frames, one after the other; for those who want no motion, the first one.
func (f *film) svg() []byte {
	w, h := float64(f.width)*cellWidth+2*border, float64(f.height)*cellHeight+bar+2*border
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" role="img" aria-labelledby="t d" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="%d">`+"\n", w, h, fontSize)
	fmt.Fprintf(&b, "  <title id=\"t\">%s</title>\n  <desc id=\"d\">%s</desc>\n", html.EscapeString(f.title), html.EscapeString(f.description()))
	fmt.Fprintf(&b, "  <style>%s%s  </style>\n", style, f.motion())
	fmt.Fprintf(&b, `  <rect class="window" x=".5" y=".5" width="%.0f" height="%.0f" rx="8"/><path class="top" d="M1 %.0fV9a8 8 0 0 1 8-8H%.0fa8 8 0 0 1 8 8v%.0fz"/>`, w-1, h-1, bar, w-9, bar-9)
	fmt.Fprint(&b, `<circle cx="20" cy="16" r="5" fill="#f85149"/><circle cx="38" cy="16" r="5" fill="#d29922"/><circle cx="56" cy="16" r="5" fill="#3fb950"/>`+"\n")
	for i, frame := range f.frames {
		fmt.Fprintf(&b, "  <g class=\"f f%d\">\n", i)
		frame.caption(&b, w)
		for row, l := range frame.lines {
			drawLine(&b, l, bar+border+float64(row)*cellHeight)
		}
		fmt.Fprint(&b, "  </g>\n")
	}
	fmt.Fprint(&b, "</svg>\n")
	return b.Bytes()
}

func (f *film) description() string {
	var all []string
	for _, x := range f.frames {
		all = append(all, x.says)
	}
	return "The screens of " + f.title + ": " + strings.Join(all, " · ")
}

// motion returns the animation: each frame is visible in its time.
func (f *film) motion() string {
	total := 0.0
	for _, x := range f.frames {
		total += x.seconds
	}
	var b strings.Builder
	at := 0.0
	fmt.Fprintf(&b, "  .f { visibility: hidden }\n  @media (prefers-reduced-motion: reduce) { .f0 { visibility: visible } }\n  @media (prefers-reduced-motion: no-preference) {\n")
	for i, x := range f.frames {
		from, to := at/total*100, (at+x.seconds)/total*100
		at += x.seconds
		fmt.Fprintf(&b, "    .f%d { animation: k%d %.1fs step-end infinite } @keyframes k%d { 0%% { visibility: hidden } %.2f%% { visibility: visible }", i, i, total, i, from)
		if i+1 < len(f.frames) {
			fmt.Fprintf(&b, " %.2f%% { visibility: hidden }", to)
		}
		fmt.Fprint(&b, " }\n")
	}
	return b.String() + "  }\n"
}

// caption names the key that was pressed, and what one sees.
func (f *frame) caption(b *bytes.Buffer, w float64) {
	x := w - border - float64(display.Cells(f.says))*cellWidth
	fmt.Fprintf(b, `    <text class="cap" x="%.1f" y="21">%s</text>`, x, html.EscapeString(f.says))
	if f.pressed != "" {
		wide := float64(display.Cells(f.pressed))*cellWidth + 12
		fmt.Fprintf(b, `<rect class="back" x="%.1f" y="7" width="%.1f" height="19" rx="4"/><text class="key" x="%.1f" y="21">%s</text>`, x-wide-10, wide, x-wide-4, html.EscapeString(f.pressed))
	}
	b.WriteByte('\n')
}

// drawLine draws a line of the screen: texts of one colour, in columns.
func drawLine(b *bytes.Buffer, line string, top float64) {
	column, role := 0, ""
	for line != "" {
		text, rest, found := strings.Cut(line, "\x1b[")
		drawText(b, text, role, column, top)
		column += display.Cells(text)
		if !found {
			return
		}
		code, after, _ := strings.Cut(rest, "m")
		role, line = strings.ReplaceAll(code, ";", "-"), after
	}
}

func drawText(b *bytes.Buffer, text, role string, column int, top float64) {
	if role == "7" {
		fmt.Fprintf(b, `    <rect class="back" x="%.1f" y="%.0f" width="%.1f" height="%.0f"/>`+"\n", border+float64(column)*cellWidth, top, float64(display.Cells(text))*cellWidth, cellHeight)
	}
	for text != "" {
		spaces := len(text) - len(strings.TrimLeft(text, " "))
		column, text = column+spaces, text[spaces:]
		word, rest, _ := strings.Cut(text, "  ")
		if word == "" {
			return
		}
		class := ""
		if role != "" && role != "0" {
			class = ` class="s` + role + `"`
		}
		n := display.Cells(word)
		fmt.Fprintf(b, `    <text%s x="%.1f" y="%.0f" textLength="%.1f">%s</text>`+"\n", class, border+float64(column)*cellWidth, top+13.5, float64(n)*cellWidth, html.EscapeString(word))
		column += n + 2
		text = rest
	}
}
