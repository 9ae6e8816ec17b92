package main

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// profile shows where the time of an operation goes.
type profile struct {
	Scenario  string
	Contender contender
	Verb      string
	Took      int64 // median duration of an operation, in microseconds
	Root      box   // the work of an operation; parts of it are done at the same time
}

// box is a part of an operation: a package with its callees, or a system call. The time
// that its boxes do not cover is that of the package's own code.
type box struct {
	Name   string
	Kernel bool    `json:",omitempty"` // a system call
	Micros float64 // per operation, with the boxes in it
	Calls  float64 `json:",omitempty"` // system calls per operation
	Boxes  []box   `json:",omitempty"`
}

// stretch is a time in which a goroutine did one thing.
type stretch struct {
	Stack  []string // functions, the innermost first
	Kernel bool     // in a system call, or waiting for the kernel
	Took   time.Duration
}

// tree adds up stretches.
type tree struct {
	micros float64
	calls  int
	kernel bool
	below  map[string]*tree
}

// add adds a stretch, unless no function of this module is in it: the benchmark
// waits, or Go's runtime works.
func (t *tree) add(s stretch) {
	path := packages(s.Stack)
	if len(path) == 0 {
		return
	}
	micros := float64(s.Took) / float64(time.Microsecond)
	at := t
	at.micros += micros
	for _, name := range path {
		at = at.child(name)
		at.micros += micros
	}
	if s.Kernel {
		at = at.child(systemCall(s.Stack))
		at.micros += micros
		at.kernel = true
		at.calls++
	}
}

func (t *tree) child(name string) *tree {
	if t.below == nil {
		t.below = make(map[string]*tree)
	}
	if t.below[name] == nil {
		t.below[name] = &tree{}
	}
	return t.below[name]
}

// mostBoxes is the number of boxes that a reader of a picture can take in.
const mostBoxes = 28

// box returns the tree with the times of one of several operations. It leaves
// out the smallest boxes, until mostBoxes are left.
func (t *tree) box(name string, operations int) box {
	for least := 0.01; ; least *= 1.25 {
		b, n := t.shown(name, operations, least*t.micros)
		if n <= mostBoxes || least > 1 {
			return b
		}
	}
}

// shown returns the box and its number of boxes, without those below a minimum.
func (t *tree) shown(name string, operations int, least float64) (b box, number int) {
	b = box{Name: name, Kernel: t.kernel, Micros: t.micros / float64(operations), Calls: float64(t.calls) / float64(operations)}
	number = 1
	for _, below := range slices.Sorted(maps.Keys(t.below)) {
		if child := t.below[below]; child.micros >= least {
			one, n := child.shown(below, operations, least)
			b.Boxes = append(b.Boxes, one)
			number += n
		}
	}
	slices.SortStableFunc(b.Boxes, func(x, y box) int { return cmp.Compare(y.Micros, x.Micros) })
	// A package that only passes the call on to another needs no box of its own.
	if len(b.Boxes) == 1 && !b.Boxes[0].Kernel && b.Boxes[0].Micros > 0.97*b.Micros {
		only := b.Boxes[0]
		only.Name = name + " › " + only.Name
		only.Micros = b.Micros
		return only, number - 1
	}
	return b, number
}

const modulePath = "github.com/embedcni/cni"

// packages returns the packages of this module in a stack, the outermost first.
// Each is named once, where it is entered first.
func packages(stack []string) []string {
	var path []string
	for _, function := range slices.Backward(stack) {
		if name := packageOf(function); name != "" && !slices.Contains(path, name) {
			path = append(path, name)
		}
	}
	return path
}

// packageOf returns the package of a function in this module, or "" if it is not
// in the module, or in the benchmark.
func packageOf(function string) string {
	rest, ok := strings.CutPrefix(function, modulePath)
	if !ok {
		return ""
	}
	if strings.HasPrefix(rest, ".") {
		return "cni"
	}
	rest, _, _ = strings.Cut(strings.TrimPrefix(rest, "/"), "[") // type arguments have paths too
	dir, last := "", rest
	if i := strings.LastIndex(rest, "/"); i >= 0 {
		dir, last = rest[:i+1], rest[i+1:]
	}
	last, _, _ = strings.Cut(last, ".")
	if name := dir + last; name != "bench" && !strings.HasPrefix(name, "bench/") {
		return name
	}
	return ""
}

// systemCall returns the name of the system call that a stack ends in.
func systemCall(stack []string) string {
	for _, function := range stack {
		i := strings.LastIndex(function, ".")
		if i < 0 {
			continue
		}
		name := strings.ToLower(function[i+1:])
		switch function[:i] {
		case "syscall", "golang.org/x/sys/unix", "internal/syscall/unix", "internal/runtime/syscall":
			// The functions for any call have "syscall" in their names.
			if !strings.Contains(name, "syscall") {
				return name
			}
		case "internal/poll": // waits, because the call would block
			return "poll"
		}
	}
	return "system call"
}
