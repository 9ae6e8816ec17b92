package cli

import (
	"io"
	"os"

	"golang.org/x/term"
)

// columns returns the width of the terminal that w is, and 0 if it is none.
func columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// The values of --color.
const (
	colorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

// color is the part of an ANSI escape (ECMA-48, SGR) that selects a color.
type color string

const (
	plain  color = ""
	red    color = "31"
	green  color = "32"
	yellow color = "33"
	dim    color = "2"
)

// colors reports whether w gets colors: see https://no-color.org for the variable.
func (a *app) colors(w io.Writer) bool {
	switch a.flags.color {
	case colorAlways:
		return true
	case colorNever:
		return false
	}
	return a.Getenv("NO_COLOR") == "" && a.Getenv("TERM") != "dumb" && a.Columns(w) > 0
}

// paint returns text in a color.
func paint(c color, text string) string {
	if c == plain || text == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}
