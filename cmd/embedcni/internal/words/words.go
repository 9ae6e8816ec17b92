// Package words has short words for people, for what has no room for the library's.
package words

import (
	"fmt"
	"strings"

	"github.com/embedcni/cni"
)

// Part names the part that a difference is about: "bridge port veth01234567".
func Part(d cni.Difference) string {
	text := d.Kind
	if d.Object != "" {
		text += " " + d.Object
	}
	if d.Inside {
		text += " in the container"
	}
	return text
}

// Lost says what has become of the part, in a line.
func Lost(d cni.Difference) string {
	text := Part(d)
	switch {
	case d.Err != nil && d.Kind == "check":
		text = Line(d.Err)
	case d.Found == "":
		text += " is missing"
	default:
		text += fmt.Sprintf(" is %s, not %s", d.Found, d.Wanted)
	}
	return text
}

// Line is an error in a line.
func Line(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
