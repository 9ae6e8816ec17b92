package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Measures of the plot in pixels.
const (
	plotWidth, plotHeight  = 860, 460
	plotLeft, plotTop      = 70, 50
	plotInnerW, plotInnerH = 530, 350
	legendX                = plotLeft + plotInnerW + 14
	labelGap               = 16 // between two curves' names
	markRadius             = 3.5
	axisMin, axisMax       = 0.8, 1.25 // distance of the axes' ends from the data, as factors
)

// point is one measurement: the number of attached containers, and a duration
// in milliseconds.
type point struct{ x, y float64 }

// curve is a contender's line.
type curve struct {
	name   string
	class  string
	points []point
}

// costPlot draws cost.svg: the median ADD against the number of attached
// containers, on logarithmic axes. Its colours follow the reader's colour
// scheme.
func (r *results) costPlot() string {
	var curves []curve
	for _, c := range r.contenders("attached") {
		line := curve{name: c.String(), class: class(c)}
		for _, n := range r.levels("attached") {
			if m := r.median("attached", c, "ADD", n); m > 0 {
				line.points = append(line.points, point{float64(n), float64(m) / float64(time.Millisecond)})
			}
		}
		curves = append(curves, line)
	}
	return drawPlot(curves)
}

// class returns the CSS class of a contender's colour.
func class(c contender) string {
	name := map[kind]string{kindGoCNI: "gocni", kindNetavark: "netavark", kindOneLine: "disk", kindDisk: "disk", kindInProcess: "ours", kindFloor: "floor"}[c.Kind]
	switch c.Backend {
	case iptables:
		name += " ipt"
	case native:
		name += " sets"
	}
	return name
}

const plotStyle = `<style>
text { font: 13px system-ui, sans-serif; fill: #24292f }
.grid { stroke: #d0d7de; stroke-width: 1 }
.back { fill: #ffffff }
.line { fill: none; stroke-width: 2.2 }
.gocni { --c: #cf222e } .netavark { --c: #8250df } .disk { --c: #9a6700 } .ours { --c: #0969da } .floor { --c: #57606a }
.line, .mark { stroke: var(--c) } .mark { fill: var(--c) } .name { fill: var(--c) }
.ipt.line { stroke-dasharray: 6 4 }
.sets.line { stroke-width: 4 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.grid { stroke: #30363d }
.back { fill: #0d1117 }
.gocni { --c: #ff7b72 } .netavark { --c: #d2a8ff } .disk { --c: #e3b341 } .ours { --c: #58a6ff } .floor { --c: #9ea7b3 }
.name { fill: var(--c) }
}
</style>
`

func drawPlot(curves []curve) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="cost of an ADD against attached containers">`+"\n",
		plotWidth, plotHeight)
	b.WriteString(plotStyle)
	fmt.Fprintf(&b, `<rect class="back" width="%d" height="%d"/>`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<text x="%d" y="26">One ADD, median in ms: bridge with ipMasq, host-local, portmap with one port</text>`+"\n", plotLeft)
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">containers attached</text>`+"\n", plotLeft+plotInnerW/2, plotTop+plotInnerH+42)
	a := newAxes(curves)
	a.draw(&b)
	labels := a.labels(curves)
	for i, c := range curves {
		if len(c.points) == 0 {
			continue
		}
		var path strings.Builder
		for _, p := range c.points {
			fmt.Fprintf(&path, "%.1f,%.1f ", a.x.at(p.x), a.y.at(p.y))
		}
		fmt.Fprintf(&b, `<polyline class="line %s" points="%s"/>`+"\n", c.class, strings.TrimSpace(path.String()))
		for _, p := range c.points {
			fmt.Fprintf(&b, `<circle class="mark %s" cx="%.1f" cy="%.1f" r="%g"><title>%s: %s ms with %s attached</title></circle>`+"\n",
				c.class, a.x.at(p.x), a.y.at(p.y), markRadius, c.name, digits(p.y), thousands(int(p.x)))
		}
		fmt.Fprintf(&b, `<text class="name %s" x="%d" y="%.1f">%s</text>`+"\n", c.class, legendX, labels[i], c.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// scale is a logarithmic axis. It maps values from lo to hi to pixels from
// begin to end.
type scale struct{ lo, hi, begin, end float64 }

func (s scale) at(v float64) float64 {
	return s.begin + (s.end-s.begin)*math.Log(v/s.lo)/math.Log(s.hi/s.lo)
}

// ticks returns the powers of ten in the range, and two and five times those.
func (s scale) ticks() []float64 {
	var all []float64
	for power := math.Pow(10, math.Floor(math.Log10(s.lo))); power <= s.hi; power *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if v := m * power; v >= s.lo && v <= s.hi {
				all = append(all, v)
			}
		}
	}
	return all
}

type axes struct{ x, y scale }

func newAxes(curves []curve) axes {
	lo, hi := point{math.Inf(1), math.Inf(1)}, point{}
	for _, c := range curves {
		for _, p := range c.points {
			lo, hi = point{min(lo.x, p.x), min(lo.y, p.y)}, point{max(hi.x, p.x), max(hi.y, p.y)}
		}
	}
	if hi.x == 0 { // nothing was measured
		lo, hi = point{1, 1}, point{10, 10}
	}
	return axes{
		x: scale{lo.x * axisMin, hi.x * axisMax, plotLeft, plotLeft + plotInnerW},
		y: scale{lo.y * axisMin, hi.y * axisMax, plotTop + plotInnerH, plotTop},
	}
}

func (a axes) draw(b *strings.Builder) {
	for _, v := range a.y.ticks() {
		y := a.y.at(v)
		fmt.Fprintf(b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n",
			plotLeft, plotLeft+plotInnerW, y, y, plotLeft-8, y+4, v)
	}
	for _, v := range a.x.ticks() {
		x := a.x.at(v)
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			x, x, plotTop, plotTop+plotInnerH, x, plotTop+plotInnerH+20, thousands(int(v)))
	}
}

// labels returns the heights of the curves' names: at the curves' ends, but
// apart from each other.
func (a axes) labels(curves []curve) []float64 {
	heights := make([]float64, len(curves))
	order := make([]int, 0, len(curves))
	for i, c := range curves {
		if n := len(c.points); n > 0 {
			heights[i] = a.y.at(c.points[n-1].y) + 4
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int { return int(math.Copysign(1, heights[i]-heights[j])) })
	for k := 1; k < len(order); k++ {
		heights[order[k]] = max(heights[order[k]], heights[order[k-1]]+labelGap)
	}
	return heights
}
