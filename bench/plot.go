package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// The plot's measures, in pixels.
const (
	plotWidth   = 780
	plotLeft    = 232 // of the axis: the names stand before it
	plotRight   = 720 // of the axis: figures may stand behind it
	plotTop     = 62
	plotRow     = 30
	plotBetween = 34 // between the verbs, with the name of the second
)

// The plot's colours are told apart on a bad printer and by the colour-blind too.
const (
	colourText   = "#24292f"
	colourFaint  = "#6e7781"
	colourGrid   = "#d8dee4"
	colourTheirs = "#8c959f"
	colourOurs   = "#0969da"
	colourFloor  = "#bc4c00"
)

// plotted are the plot's rows for a verb, from the slowest to the fastest.
var plotted = []struct {
	contender    contender
	name, colour string
}{
	{goCNI, "go-cni", colourTheirs},
	{oneLine, "embedcni, executables", colourOurs},
	{ours, "embedcni, built-in plugins", colourOurs},
	{bare, "floor: the kernel's work alone", colourFloor},
}

// The axis has every time from a millisecond to half a second.
const axisLeast, axisMost = 1e3, 5e5

// across returns where a time is on the axis, which is logarithmic.
func across(micros float64) float64 {
	part := math.Log(micros/axisLeast) / math.Log(axisMost/axisLeast)
	return plotLeft + min(max(part, 0), 1)*(plotRight-plotLeft)
}

// plot returns docs/cost.svg: the medians of ADD and DEL with the default conflist, and a line
// from the lower to the upper quartile.
func (r *results) plot() string {
	verbs := []string{verbADD, verbDEL}
	bottom := plotTop + len(verbs)*len(plotted)*plotRow + (len(verbs)-1)*plotBetween
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="13">
<title>How long an attachment takes</title>
<rect width="%[1]d" height="%[2]d" rx="6" fill="#ffffff"/>
`, plotWidth, bottom+48)
	words(&b, 20, 26, colourText, `font-size="15" font-weight="bold"`, "Default conflist: bridge, ipMasq, portmap, firewall, tuning")
	for _, us := range []float64{1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5} {
		fmt.Fprintf(&b, `<line x1="%[1]s" x2="%[1]s" y1="%[2]d" y2="%[3]d" stroke="%[4]s"/>`+"\n", place(across(us)), plotTop-14, bottom, colourGrid)
		words(&b, across(us), bottom+18, colourFaint, `font-size="11" text-anchor="middle"`, micros(us))
	}
	words(&b, plotLeft, bottom+36, colourFaint, `font-size="11"`, "median and quartiles of one run, on a logarithmic axis: left is faster")
	y := plotTop
	for _, verb := range verbs {
		words(&b, 20, y+4, colourText, `font-weight="bold"`, verb)
		for _, row := range plotted {
			if s := r.find("default", row.contender, verb, 0); s != nil {
				mark(&b, y, row.name, row.colour, summarize(s.each()), r.median("default", goCNI, verb, 0))
			}
			y += plotRow
		}
		y += plotBetween
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// mark draws a row: a name, a dot at the median, a line between the quartiles, and the figure.
func mark(b *strings.Builder, y int, name, colour string, s summary, peer float64) {
	words(b, plotLeft-12, y+4, colourText, `text-anchor="end"`, name)
	fmt.Fprintf(b, `<line x1="%d" x2="%s" y1="%[3]d" y2="%[3]d" stroke="%[4]s" stroke-opacity="0.5"/>`+"\n", plotLeft, place(across(s.Median)), y, colour)
	fmt.Fprintf(b, `<line x1="%s" x2="%s" y1="%[3]d" y2="%[3]d" stroke="%[4]s" stroke-width="4" stroke-opacity="0.4" stroke-linecap="round"/>`+"\n",
		place(across(s.Lower)), place(across(s.Upper)), y, colour)
	fmt.Fprintf(b, `<circle cx="%s" cy="%d" r="6" fill="%s"/>`+"\n", place(across(s.Median)), y, colour)
	text := micros(s.Median)
	if ratio := peer / s.Median; ratio >= 1.5 {
		text += fmt.Sprintf(", %s× as fast", digits(ratio))
	}
	// White around the letters keeps the grid away from them.
	words(b, across(s.Upper)+12, y+4, colour, `font-weight="bold" stroke="#ffffff" stroke-width="4" paint-order="stroke"`, text)
}

// words writes a text. attributes may be empty.
func words(b *strings.Builder, x float64, y int, colour, attributes, text string) {
	fmt.Fprintf(b, `<text x="%s" y="%d" fill="%s" %s>%s</text>`+"\n", place(x), y, colour, attributes, html.EscapeString(text))
}

// place formats a place in tenths of a pixel.
func place(v float64) string { return fmt.Sprintf("%.1f", v) }
