package graph

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// WriteDOT draws the host as text for Graphviz, for readers who want another layout: the
// host's ports, its bridges and the containers on them.
func WriteDOT(to io.Writer, h Host) error {
	w := &dotWriter{out: bufio.NewWriter(to)}
	w.print("graph %s {\n", quote("host "+h.Name))
	w.print("\tlabel=%s; labelloc=t; fontname=monospace; rankdir=LR; ranksep=1.2; nodesep=0.15;\n", quote("host "+h.Name+"\n"+h.summary()))
	w.print("\tnode [shape=box, fontname=monospace, fontsize=11];\n\tedge [fontname=monospace, fontsize=10];\n")
	for i, s := range h.Segments {
		w.segment(fmt.Sprintf("s%d", i), s)
	}
	w.print("}\n")
	return w.out.Flush()
}

// dotWriter writes statements. The buffer keeps the first error for Flush.
type dotWriter struct{ out *bufio.Writer }

func (w *dotWriter) print(format string, args ...any) { fmt.Fprintf(w.out, format, args...) }

func (w *dotWriter) segment(node string, s Segment) {
	look := `style=filled, fillcolor="#cfe3f5"`
	if s.Bridge == "" {
		look = `style="filled,dashed", fillcolor="#e6e9ed"`
	}
	if len(s.Broken) > 0 {
		look = brokenLook
	}
	text := append([]string{s.title()}, s.Addresses...)
	for _, n := range s.Networks {
		text = append(text, "network "+n)
	}
	w.print("\t%s [%s, label=%s];\n", node, look, quote(strings.Join(append(text, s.Broken...), "\n")))
	for i, m := range s.Members {
		w.member(node, fmt.Sprintf("%sm%d", node, i), m)
	}
}

const brokenLook = `style=filled, fillcolor="#fde7ea", color="#b00020", fontcolor="#b00020"`

func (w *dotWriter) member(bridge, node string, m Member) {
	look, edge := "", ""
	switch stateClass(m) {
	case classBroken:
		look, edge = brokenLook+", ", `, color="#b00020", style=dashed`
	case classUnknown:
		look, edge = `style="filled,dashed", fillcolor="#fff6df", color="#a86f00", `, `, style=dashed`
	case classGone:
		look, edge = `style="filled,dotted", fillcolor="#eceef0", `, `, style=dotted`
	}
	text := append([]string{nameOf(m)}, m.Addresses...)
	for _, e := range m.Elsewhere {
		text = append(text, "also "+e)
	}
	if !m.healthy() {
		text = append(append(text, string(m.State)), m.Words...)
	}
	w.print("\t%s [%slabel=%s, tooltip=%s];\n", node, look, quote(strings.Join(text, "\n")), quote(tooltip(m)))
	w.print("\t%s -- %s [label=%s%s];\n", bridge, node, quote(m.IfName), edge)
	for i, p := range m.Ports {
		port := fmt.Sprintf("%sp%d", node, i)
		w.print("\t%s [shape=cds, style=filled, fillcolor=\"#e3f1ea\", label=%s];\n", port, quote(p.outside()+"/"+p.Protocol))
		w.print("\t%s -- %s [style=dotted, label=%s];\n", node, port, quote(fmt.Sprint(p.ContainerPort)))
	}
}

// quote makes a string of DOT. Graphviz ends a line at \n and reads other backslashes as
// the beginning of an escape.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\x00", "").Replace(s) + `"`
}
