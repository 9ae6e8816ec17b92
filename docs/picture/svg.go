package main

import (
	"fmt"
	"html"
	"strings"
)

// shade is the colour of a box: its area, that of a group, and its border and text.
type shade struct{ fill, faint, ink string }

var colours = map[string]shade{
	"blue":  {"#ddf4ff", "#f3faff", "#0550ae"},
	"green": {"#dafbe1", "#f2fdf5", "#116329"},
	"red":   {"#ffebe9", "#fff6f5", "#a40e26"},
	"grey":  {"#f6f8fa", "#fafbfc", "#57606a"},
}

const (
	lineHeight = 17
	headLength = 8 // of an arrow
	corner     = 8
)

// svg draws groups, then arrows, then boxes.
func (p *picture) svg() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %d" `+
		`font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" font-size="12" text-anchor="middle">`+"\n", p.width, p.height, p.height)
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(p.title))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="%d" fill="#ffffff"/>`+"\n", p.width, p.height, corner)
	for _, name := range p.names {
		if at := p.boxes[name]; at.group {
			at.draw(&b)
		}
	}
	for _, a := range p.arrows {
		a.draw(&b)
	}
	for _, name := range p.names {
		if at := p.boxes[name]; !at.group {
			at.draw(&b)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (at box) draw(b *strings.Builder) {
	c := colours[at.colour]
	fill, dash := c.fill, ""
	middle := at.x + at.width/2
	first := at.y + at.height/2 - (len(at.lines)-1)*lineHeight/2 + 4 // the baseline is below the middle of a letter
	if at.group {
		fill, dash, first = c.faint, ` stroke-dasharray="2 3"`, at.y+21
	}
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" rx="%d" fill="%s" stroke="%s"%s/>`+"\n", at.x, at.y, at.width, at.height, corner, fill, c.ink, dash)
	for n, line := range at.lines {
		weight, ink := ` font-weight="bold"`, c.ink
		size := 13
		if n > 0 {
			weight, ink, size = "", "#24292f", 11
		}
		write(b, middle, first+n*lineHeight, fmt.Sprintf(`font-size="%d"%s fill="%s"`, size, weight, ink), line)
	}
}

func write(b *strings.Builder, x, y int, attributes, text string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" %s>%s</text>`+"\n", x, y, attributes, html.EscapeString(text))
}

// draw draws the line, its head, and the label beside the line's last part.
func (a arrow) draw(b *strings.Builder) {
	ink, dash := colours[a.colour].ink, ""
	if a.dashed {
		dash = ` stroke-dasharray="6 4"`
	}
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"%s/>`+"\n", a.line(), ink, dash)
	fmt.Fprintf(b, `<path d="%s" fill="%s"/>`+"\n", a.head(), ink)
	x, y := a.to.x, (a.from.y+a.to.y)/2
	for n, line := range a.label {
		write(b, x+10, y+4+n*lineHeight-(len(a.label)-1)*lineHeight/2, fmt.Sprintf(`text-anchor="start" fill="%s"`, ink), line)
	}
}

// line returns the path from end to head: straight, with a bend, or with two where both ends
// go up or down.
func (a arrow) line() string {
	to := a.to
	dx, dy := a.back()
	to.x, to.y = to.x+dx*headLength, to.y+dy*headLength
	switch {
	case a.from.vertical() && to.vertical():
		middle := (a.from.y + to.y) / 2
		return fmt.Sprintf("M%d,%d V%d H%d V%d", a.from.x, a.from.y, middle, to.x, to.y)
	case a.from.vertical():
		return fmt.Sprintf("M%d,%d V%d H%d", a.from.x, a.from.y, to.y, to.x)
	case to.vertical():
		return fmt.Sprintf("M%d,%d H%d V%d", a.from.x, a.from.y, to.x, to.y)
	}
	middle := (a.from.x + to.x) / 2
	return fmt.Sprintf("M%d,%d H%d V%d H%d", a.from.x, a.from.y, middle, to.y, to.x)
}

// back returns the direction from the head's point to the line.
func (a arrow) back() (dx, dy int) {
	switch a.to.side {
	case 'n':
		return 0, -1
	case 'e':
		return 1, 0
	case 's':
		return 0, 1
	}
	return -1, 0
}

func (a arrow) head() string {
	dx, dy := a.back()
	x, y := a.to.x+dx*(headLength+1), a.to.y+dy*(headLength+1)
	return fmt.Sprintf("M%d,%d L%d,%d L%d,%d Z", a.to.x, a.to.y, x+dy*5, y+dx*5, x-dy*5, y-dx*5)
}
