// Picture draws boxes and arrows, described by a text, as an SVG:
//
//	go run ./docs/picture docs/life.txt >docs/life.svg
//
// The text says at its beginning how it is written.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: picture FILE.txt >FILE.svg")
		os.Exit(2)
	}
	text, err := os.ReadFile(os.Args[1])
	if err == nil {
		var p *picture
		if p, err = parse(string(text)); err == nil {
			_, err = os.Stdout.WriteString(p.svg())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}
