package main

import (
	"fmt"
	"strconv"
	"strings"
)

// A picture is what a text describes.
type picture struct {
	title         string // for readers who do not see it
	width, height int
	boxes         map[string]box
	names         []string // of the boxes, in the order of the text
	arrows        []arrow
}

type box struct {
	x, y, width, height int
	colour              string
	group               bool // it is behind others, and its title is at the top
	lines               []string
}

type arrow struct {
	from, to end
	colour   string
	dashed   bool
	label    []string
}

// An end of an arrow is on a side of a box.
type end struct {
	x, y int
	side byte // n, e, s or w
}

// vertical reports whether an arrow leaves the side upwards or downwards.
func (e end) vertical() bool { return e.side == 'n' || e.side == 's' }

// parse reads a text such as
//
//	title | two boxes
//	size 880 430
//	box   a 20 120 90 62 blue | title | second line
//	box   b 220 120 90 62 blue | title
//	arrow a:e b:w blue dashed | label
func parse(text string) (*picture, error) {
	p := &picture{boxes: map[string]box{}}
	for n, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		if err := p.add(line); err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", n+1, line, err)
		}
	}
	return p, nil
}

func (p *picture) add(line string) error {
	parts := strings.Split(line, "|")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	words, lines := strings.Fields(parts[0]), parts[1:]
	switch words[0] {
	case "title":
		p.title = strings.Join(lines, " ")
		return nil
	case "size":
		_, err := fmt.Sscanf(parts[0], "size %d %d", &p.width, &p.height)
		return err
	case "box", "group":
		b := box{group: words[0] == "group", lines: lines}
		var name string
		if _, err := fmt.Sscanf(parts[0], words[0]+" %s %d %d %d %d %s", &name, &b.x, &b.y, &b.width, &b.height, &b.colour); err != nil {
			return err
		}
		if _, ok := p.boxes[name]; ok {
			return fmt.Errorf("there is a box %s already", name)
		}
		p.boxes[name], p.names = b, append(p.names, name)
		return known(b.colour)
	case "arrow":
		return p.addArrow(words[1:], lines)
	}
	return fmt.Errorf("there is no %s", words[0])
}

func (p *picture) addArrow(words, label []string) error {
	a := arrow{label: label}
	if len(words) == 4 && words[3] == "dashed" {
		a.dashed, words = true, words[:3]
	}
	if len(words) != 3 {
		return fmt.Errorf("an arrow has two ends and a colour")
	}
	var err error
	if a.from, err = p.end(words[0]); err != nil {
		return err
	}
	if a.to, err = p.end(words[1]); err != nil {
		return err
	}
	a.colour = words[2]
	p.arrows = append(p.arrows, a)
	return known(a.colour)
}

// end returns the place on a box that NAME:SIDE names: the middle of the side, or as far from it
// as a number behind the side says.
func (p *picture) end(text string) (end, error) {
	name, place, _ := strings.Cut(text, ":")
	b, ok := p.boxes[name]
	if !ok {
		return end{}, fmt.Errorf("there is no box %s before", name)
	}
	if place == "" {
		return end{}, fmt.Errorf("%s has no side", text)
	}
	off := 0
	if len(place) > 1 {
		var err error
		if off, err = strconv.Atoi(place[1:]); err != nil {
			return end{}, err
		}
	}
	x, y := b.x+b.width/2+off, b.y+b.height/2+off
	switch place[0] {
	case 'n':
		y = b.y
	case 'e':
		x = b.x + b.width
	case 's':
		y = b.y + b.height
	case 'w':
		x = b.x
	default:
		return end{}, fmt.Errorf("a box has the sides n, e, s and w, not %s", place)
	}
	return end{x, y, place[0]}, nil
}

func known(colour string) error {
	if _, ok := colours[colour]; !ok {
		return fmt.Errorf("there is no colour %q", colour)
	}
	return nil
}
