package graph

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// style has the looks of the classes. Red is for what is broken, and for nothing else.
const style = `
text { font-family: "DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace; fill: #1c2430 }
.head, .name { font-weight: bold }
.quiet { fill: #5a6675 }
.portline { fill: #12557f }
.bad { fill: #b00020 }
.doubt { fill: #7a4f00 }
.paper { fill: #ffffff }
.host { fill: #f6f8fa; stroke: #3b4654; stroke-width: 2 }
.bar { fill: #cfe3f5; stroke: #2f6690 }
.bar.direct { fill: #e6e9ed; stroke: #5a6675; stroke-dasharray: 5 3 }
.box { fill: #ffffff; stroke: #6b7785 }
.port { fill: #e3f1ea; stroke: #2e7d5b }
.box.unknown, .port.unknown { fill: #fff6df; stroke: #a86f00; stroke-dasharray: 5 3 }
.box.gone, .port.gone { fill: #eceef0; stroke: #7d8794; stroke-dasharray: 2 3 }
.box.broken, .bar.broken, .port.broken { fill: #fde7ea; stroke: #b00020; stroke-width: 2 }
.wire { fill: none; stroke: #2f6690; stroke-width: 1.5 }
.wire.broken { stroke: #b00020; stroke-width: 2; stroke-dasharray: 5 3 }
.wire.unknown, .wire.gone { stroke: #7d8794; stroke-dasharray: 2 3 }
`

// WriteSVG draws the host as a picture for a browser, which shows more of each box in a
// tooltip.
func WriteSVG(to io.Writer, h Host) error {
	p := layout(h)
	w := &svgWriter{out: bufio.NewWriter(to)}
	w.print(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+"\n", p.w, p.h, p.w, p.h)
	w.print("<title>%s</title>\n<style>%s</style>\n", escape("networks of host "+h.Name+": "+h.summary()), style)
	w.print(`<rect class="paper" width="%d" height="%d"/>`+"\n", p.w, p.h)
	w.shape(p.host, 10)
	for _, l := range p.wires {
		w.print(`<path class="%s" d="M%d %dL%d %d"/>`+"\n", l.class, l.x1, l.y1, l.x2, l.y2)
	}
	for _, s := range p.shapes {
		radius := 5
		if strings.HasPrefix(s.class, classPort) {
			radius = min(s.h/2, 12)
		}
		w.shape(s, radius)
	}
	for _, l := range p.labels {
		w.label(l)
	}
	w.print("</svg>\n")
	return w.out.Flush()
}

// svgWriter writes elements. The buffer keeps the first error for Flush.
type svgWriter struct{ out *bufio.Writer }

func (w *svgWriter) print(format string, args ...any) { fmt.Fprintf(w.out, format, args...) }

func (w *svgWriter) shape(s shape, radius int) {
	if s.title != "" {
		w.print("<g><title>%s</title>\n", escape(s.title))
		defer w.print("</g>\n")
	}
	w.print(`<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="%d"/>`+"\n", s.class, s.x, s.y, s.w, s.h, radius)
	for _, l := range s.texts {
		w.label(l)
	}
}

func (w *svgWriter) label(l label) {
	anchor := ""
	if l.right {
		anchor = ` text-anchor="end"`
	}
	w.print(`<text class="%s" x="%d" y="%d" font-size="%d"%s xml:space="preserve">%s</text>`+"\n", l.class, l.x, l.y, l.size, anchor, escape(l.s))
}

// escape makes a text safe in XML. What XML cannot have becomes U+FFFD.
func escape(s string) string {
	var b strings.Builder
	// A strings.Builder does not fail.
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}
