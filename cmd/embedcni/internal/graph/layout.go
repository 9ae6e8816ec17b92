package graph

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/embedcni/cni"
)

// Measures are in pixels.
const (
	margin    = 24 // around everything
	padding   = 24 // between the host's edge and what is in it
	gutter    = 28 // left of each column of boxes; the line from the bridge is in its middle
	rowGap    = 16
	barHeight = 32
	boxInset  = 10
	portGap   = 8
	lineStep  = 17 // from one line of text to the next
	textSize  = 12
	headSize  = 20
	barSize   = 14
	minBox    = 168
	maxBox    = 340
	maxPort   = 220
	minInner  = 860 // of the host; the legend needs as much
	maxWords  = 6   // lines of words in a box
)

// What boxes, lines and texts look like is said by classes; svg.go has the style of each.
const (
	classHost    = "host"
	classBar     = "bar"
	classBox     = "box"
	classPort    = "port"
	classWire    = "wire"
	classBroken  = " broken"
	classUnknown = " unknown"
	classGone    = " gone"
	classDirect  = " direct" // a bar that is no bridge
)

// rect is a rectangle on the picture.
type rect struct{ x, y, w, h int }

func (r rect) right() int  { return r.x + r.w }
func (r rect) bottom() int { return r.y + r.h }

// shape is a rectangle with its text and its tooltip.
type shape struct {
	rect
	class string
	title string
	texts []label
}

// label is a line of text; y is its baseline.
type label struct {
	x, y  int
	size  int
	class string
	s     string
	right bool // x is where it ends
}

// wire is a part of the line between a bridge and its containers.
type wire struct {
	x1, y1, x2, y2 int
	class          string
}

// picture is a layout of a Host.
type picture struct {
	w, h   int
	host   shape
	shapes []shape // bars, boxes and ports; no two overlap
	wires  []wire
	labels []label
}

// layout places everything.
func layout(h Host) picture {
	inner := minInner
	sizes := make([]int, len(h.Segments))
	for i, s := range h.Segments {
		sizes[i] = boxWidth(s)
		inner = max(inner, columns(s, sizes[i])*(sizes[i]+gutter)+gutter)
	}
	p := picture{w: inner + 2*padding + 2*margin}
	y := p.placePorts(h, margin, inner+2*padding)
	p.host = shape{rect: rect{margin, y, inner + 2*padding, 0}, class: classHost}
	p.labels = append(p.labels,
		label{x: margin + padding, y: y + 36, size: headSize, class: "head", s: cut("host "+h.Name, fit(inner, headSize))},
		label{x: margin + padding, y: y + 58, size: textSize, class: summaryClass(h), s: h.summary()})
	y += 78
	for i, s := range h.Segments {
		y = p.placeSegment(s, rect{margin + padding, y, inner, 0}, sizes[i])
	}
	if len(h.Segments) == 0 {
		p.labels = append(p.labels, label{x: margin + padding, y: y + 12, size: textSize, class: "quiet", s: "no network is loaded, and no container is on record"})
		y += 28
	}
	p.host.h = y - p.host.y
	p.h = p.placeLegend(y+16) + margin
	return p
}

// summaryClass is that of the line below the host's name.
func summaryClass(h Host) string {
	switch _, broken, doubtful := h.count(); {
	case broken > 0:
		return "bad"
	case doubtful > 0:
		return "doubt"
	}
	return "quiet"
}

// columns returns in how many columns the containers of a segment stand, so that they take
// half as much room again in width as in height.
func columns(s Segment, w int) int {
	n := float64(len(s.Members))
	height := 0.0
	for _, m := range s.Members {
		height += float64(boxHeight(lines(m, s, w)) + rowGap)
	}
	if n == 0 {
		return 1
	}
	wanted := int(math.Ceil(math.Sqrt(height * 1.5 / float64(w+gutter))))
	return min(len(s.Members), max(wanted, 3))
}

// boxWidth returns the width of the boxes of a segment: what its addresses and ports need.
func boxWidth(s Segment) int {
	w := minBox
	for _, m := range s.Members {
		w = max(w, width(m.ContainerID+stateWord(m), textSize+1)+textSize)
		for _, addr := range m.Addresses {
			w = max(w, width(addr, textSize))
		}
		for _, port := range m.Ports {
			w = max(w, width(port.String(), textSize))
		}
		w = max(w, width(interfaces(m, s), textSize))
	}
	return min(w+2*boxInset, maxBox)
}

// stateWord is what a box says beside the name, for readers who do not see the colours.
func stateWord(m Member) string {
	if m.healthy() {
		return ""
	}
	return string(m.State)
}

// interfaces names a member's interface and the host's end of it.
func interfaces(m Member, s Segment) string {
	parts := []string{m.IfName}
	if m.HostIfName != "" {
		parts = append(parts, m.HostIfName)
	}
	if len(s.Networks) > 1 {
		parts = append(parts, m.Network)
	}
	return strings.Join(parts, ", ")
}

// lines returns the text of a box below its name.
func lines(m Member, s Segment, w int) (all []label) {
	room := fit(w-2*boxInset, textSize)
	put := func(class, text string) {
		all = append(all, label{class: class, s: cut(text, room), size: textSize})
	}
	put("quiet", interfaces(m, s))
	for _, addr := range m.Addresses {
		put("mono", addr)
	}
	for _, port := range m.Ports {
		put("portline", port.String())
	}
	for _, other := range m.Elsewhere {
		put("quiet", "also "+other)
	}
	told := m.Words
	if len(told) == 0 && m.broken() {
		told = []string{"its bridge is broken"}
	}
	class := "bad"
	if !m.broken() {
		class = "doubt"
	}
	var wrapped []string
	for _, w := range told {
		wrapped = append(wrapped, wrap(w, room)...)
	}
	if len(wrapped) > maxWords {
		more := len(wrapped) - maxWords + 1
		wrapped = append(wrapped[:maxWords-1:maxWords-1], "… "+plural(more, "more line"))
	}
	for _, w := range wrapped {
		put(class, w)
	}
	return all
}

func boxHeight(below []label) int { return 2*boxInset + (1+len(below))*lineStep - 2 }

// placePorts places the ports of the host above its edge, and returns where the edge is.
func (p *picture) placePorts(h Host, y, w int) int {
	type entry struct {
		Port
		m Member
	}
	var all []entry
	longest := 0
	for _, s := range h.Segments {
		for _, m := range s.Members {
			for _, port := range m.Ports {
				all = append(all, entry{port, m})
				longest = max(longest, width(portLabel(port, m), textSize))
			}
		}
	}
	if len(all) == 0 {
		return y
	}
	slices.SortStableFunc(all, func(a, b entry) int { return comparePorts(a.Port, b.Port) })
	p.labels = append(p.labels, label{x: margin + padding, y: y + 12, size: textSize, class: "quiet", s: "ports of the host"})
	y += 22
	pill := min(longest+2*boxInset, maxPort)
	perRow := max(1, (w-2*padding+portGap)/(pill+portGap))
	for i, e := range all {
		at := rect{margin + padding + i%perRow*(pill+portGap), y + i/perRow*(24+portGap), pill, 24}
		class := classPort + stateClass(e.m)
		p.shapes = append(p.shapes, shape{rect: at, class: class,
			title: fmt.Sprintf("port %s of the host: container %s, interface %s", e.Port, e.m.ContainerID, e.m.IfName),
			texts: []label{{x: at.x + boxInset, y: at.y + 16, size: textSize, class: "mono", s: cut(portLabel(e.Port, e.m), fit(pill-2*boxInset, textSize))}}})
	}
	return p.shapes[len(p.shapes)-1].bottom() + 6
}

func portLabel(p Port, m Member) string {
	return fmt.Sprintf("%s/%s → %s", p.outside(), p.Protocol, m.ContainerID)
}

// stateClass is what a member's state adds to a class.
func stateClass(m Member) string {
	switch m.State {
	case cni.StateHealthy:
		return ""
	case cni.StateBroken:
		return classBroken
	case cni.StateGone, cni.StateElsewhere, cni.StateNotAttached:
		return classGone
	}
	return classUnknown
}
