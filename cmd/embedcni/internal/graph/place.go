package graph

import (
	"fmt"
	"strings"

	"github.com/embedcni/cni"
)

// placeSegment places a bridge and the containers on it, and returns where it ends.
func (p *picture) placeSegment(s Segment, in rect, w int) int {
	bar := shape{rect: rect{in.x, in.y, in.w, barHeight}, class: classBar, title: barTitle(s)}
	if s.Bridge == "" {
		bar.class += classDirect
	}
	if len(s.Broken) > 0 {
		bar.class += classBroken
	}
	name := cut(s.title(), fit(in.w/2, barSize))
	after := in.x + boxInset + width(name, barSize) + 3*textSize
	bar.texts = []label{
		{x: in.x + boxInset, y: in.y + 21, size: barSize, class: "name", s: name},
		{x: after, y: in.y + 21, size: textSize, class: "mono", s: cut(barText(s), fit(bar.right()-boxInset-after, textSize))},
	}
	for _, broken := range s.Broken {
		for _, line := range wrap(broken, fit(in.w-2*boxInset, textSize)) {
			bar.texts = append(bar.texts, label{x: in.x + boxInset, y: bar.bottom() + 8, size: textSize, class: "bad", s: line})
			bar.h += lineStep
		}
	}
	p.shapes = append(p.shapes, bar)
	if len(s.Members) == 0 {
		return bar.bottom() + padding
	}
	return p.placeBoxes(s, rect{in.x, bar.bottom() + rowGap, in.w, 0}, w, bar)
}

// placeBoxes places the containers of a segment in rows. A line goes down from the bar left
// of each column, with a branch to each box.
func (p *picture) placeBoxes(s Segment, in rect, w int, bar shape) int {
	perRow := max(1, (in.w-gutter)/(w+gutter))
	y := in.y
	down := make([]int, min(perRow, len(s.Members))) // how far the line of each column goes
	for first := 0; first < len(s.Members); first += perRow {
		row := s.Members[first:min(first+perRow, len(s.Members))]
		height := 0
		for _, m := range row {
			height = max(height, boxHeight(lines(m, s, w)))
		}
		for i, m := range row {
			at := rect{in.x + gutter + i*(w+gutter), y, w, height}
			p.shapes = append(p.shapes, box(m, s, at))
			down[i] = at.y + boxInset + 8
			p.wires = append(p.wires, wire{at.x - gutter/2, down[i], at.x, down[i], classWire + stateClass(m)})
		}
		y += height + rowGap
	}
	class := classWire
	if len(s.Broken) > 0 {
		class += classBroken
	}
	for i, end := range down {
		x := in.x + gutter + i*(w+gutter) - gutter/2
		p.wires = append(p.wires, wire{x, bar.bottom(), x, end, class})
	}
	return y + padding - rowGap
}

// box is the box of a container.
func box(m Member, s Segment, at rect) shape {
	b := shape{rect: at, class: classBox + stateClass(m), title: tooltip(m)}
	room := fit(at.w-2*boxInset, textSize+1)
	state := stateWord(m)
	if state != "" {
		room -= len(state) + 1
		b.texts = append(b.texts, label{x: at.right() - boxInset, y: at.y + boxInset + 11, size: textSize, class: wordClass(m), s: state, right: true})
	}
	b.texts = append(b.texts, label{x: at.x + boxInset, y: at.y + boxInset + 11, size: textSize + 1, class: "name", s: cut(nameOf(m), room)})
	y := at.y + boxInset + 11
	for _, l := range lines(m, s, at.w) {
		y += lineStep
		l.x, l.y = at.x+boxInset, y
		b.texts = append(b.texts, l)
	}
	return b
}

// nameOf names a container; a damaged record may not.
func nameOf(m Member) string {
	if m.ContainerID == "" {
		return "(unnamed record)"
	}
	return m.ContainerID
}

func wordClass(m Member) string {
	if m.broken() {
		return "bad"
	}
	return "doubt"
}

// barText is what stands behind the name of a bridge.
func barText(s Segment) string {
	parts := s.Addresses
	switch parts = parts[:len(parts):len(parts)]; len(s.Networks) {
	case 0:
	case 1:
		parts = append(parts, "network "+s.Networks[0])
	default:
		parts = append(parts, "networks "+strings.Join(s.Networks, ", "))
	}
	return strings.Join(append(parts, plural(len(s.Members), "container")), "   ")
}

func barTitle(s Segment) string {
	return strings.Join(append([]string{s.title() + ": " + barText(s)}, s.Broken...), "\n")
}

// tooltip says of a container what has no room in its box, too.
func tooltip(m Member) string {
	all := []string{
		fmt.Sprintf("container %s, interface %s, network %s: %s", nameOf(m), m.IfName, m.Network, m.State),
		"namespace " + m.NetNS,
		"owner " + m.Owner,
	}
	if m.HostIfName != "" {
		all = append(all, "on the host "+m.HostIfName)
	}
	all = append(all, m.Addresses...)
	for _, p := range m.Ports {
		all = append(all, "port "+p.String())
	}
	for _, e := range m.Elsewhere {
		all = append(all, "also "+e)
	}
	return strings.Join(append(all, m.Words...), "\n")
}

// placeLegend places the legend at y, and returns where it ends.
func (p *picture) placeLegend(y int) int {
	x := margin + padding
	for _, e := range []struct {
		class, text string
	}{
		{classBar, "bridge"},
		{classBar + classDirect, "network without a bridge"},
		{classPort, "port of the host"},
		{classBox, "container"},
		{classBox + classBroken, string(cni.StateBroken)},
		{classBox + classUnknown, string(cni.StateUnknown)},
		{classBox + classGone, string(cni.StateGone)},
	} {
		p.shapes = append(p.shapes, shape{rect: rect{x, y, 26, 16}, class: e.class})
		p.labels = append(p.labels, label{x: x + 32, y: y + 12, size: textSize, class: "mono", s: e.text})
		x += 32 + width(e.text, textSize) + 20
	}
	return y + 16
}
