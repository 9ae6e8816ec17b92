package main

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// Measures of the picture of profiles in pixels.
const (
	flameWidth  = 1100
	flameMargin = 16
	flameRow    = 30
	flameTitle  = 40 // a panel's title
	flameLetter = 7  // width of a letter, about
)

const flameStyle = `<style>
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 14px; font-weight: 600 }
.back { fill: #ffffff }
rect { stroke: #ffffff; stroke-width: 1 }
.own { fill: #b6d7ff } .kernel { fill: #ffc680 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.back { fill: #0d1117 }
rect { stroke: #0d1117 }
.own { fill: #1f4b7d } .kernel { fill: #7a4a10 }
}
</style>
`

// flames draws profile.svg: each profile's boxes, as wide as their time is long.
// A box is above the boxes of its callees.
func flames(all []profile) string {
	height := flameMargin + flameTitle
	for _, p := range all {
		height += flameTitle + p.Root.depth()*flameRow + flameMargin
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="where the time goes">`+"\n",
		flameWidth, height, flameWidth, height)
	b.WriteString(flameStyle)
	fmt.Fprintf(&b, `<rect class="back" width="%d" height="%d"/>`+"\n", flameWidth, height)
	legend(&b)
	y := flameMargin + flameTitle
	for _, p := range all {
		text := fmt.Sprintf("%s, %s: %s from begin to end, %s of work, some of it at the same time",
			p.Verb, p.Contender, micros(float64(p.Took)), micros(p.Root.Micros))
		fmt.Fprintf(&b, `<text class="title" x="%d" y="%d">%s</text>`+"\n", flameMargin, y+flameTitle-14, escaped(text))
		y += flameTitle
		if p.Root.Micros > 0 {
			p.Root.draw(&b, flameMargin, y, (flameWidth-2*flameMargin)/p.Root.Micros, p.Root.Micros)
		}
		y += p.Root.depth()*flameRow + flameMargin
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func legend(b *strings.Builder) {
	x := flameMargin
	for _, one := range []struct{ class, text string }{
		{"own", "a package of this library: what no box below it covers is its own code"},
		{"kernel", "the kernel: a system call, with how often it is made"},
	} {
		fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="18" height="18"/><text x="%d" y="%d">%s</text>`+"\n",
			one.class, x, flameMargin, x+24, flameMargin+14, one.text)
		x += 60 + flameLetter*len(one.text)
	}
}

// depth returns the number of rows.
func (b box) depth() int {
	deepest := 0
	for _, below := range b.Boxes {
		deepest = max(deepest, below.depth())
	}
	return 1 + deepest
}

// draw draws the box and those in it. Scale is the number of pixels for a
// microsecond, and all the microseconds of the whole operation.
func (b box) draw(svg *strings.Builder, x float64, y int, scale, all float64) {
	class := "own"
	if b.Kernel {
		class = "kernel"
	}
	width := b.Micros * scale
	name := b.Name
	if b.Calls > 0 {
		name += fmt.Sprintf(" ×%s", digits(b.Calls))
	}
	full := fmt.Sprintf("%s: %s, %.0f %%", name, micros(b.Micros), 100*b.Micros/all)
	fmt.Fprintf(svg, `<g><title>%s</title><rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d"/>`,
		escaped(full), class, x, y, width, flameRow)
	if text := fitting(width, full, name, lastName(b.Name)); text != "" {
		fmt.Fprintf(svg, `<text x="%.1f" y="%d">%s</text>`, x+4, y+flameRow-10, escaped(text))
	}
	svg.WriteString("</g>\n")
	for _, below := range b.Boxes {
		below.draw(svg, x, y+flameRow, scale, all)
		x += below.Micros * scale
	}
}

// fitting returns the first text that a box of a width has space for, or the
// beginning of the last one.
func fitting(width float64, texts ...string) string {
	space := int(width-6) / flameLetter
	for _, text := range texts {
		if len([]rune(text)) <= space {
			return text
		}
	}
	if last := []rune(texts[len(texts)-1]); space >= 4 {
		return string(last[:space-1]) + "…"
	}
	return ""
}

// lastName returns the last part of a package's path.
func lastName(name string) string { return name[strings.LastIndexAny(name, "/ ")+1:] }

func escaped(text string) string {
	var b strings.Builder
	// A strings.Builder returns no errors.
	_ = xml.EscapeText(&b, []byte(text))
	return b.String()
}
