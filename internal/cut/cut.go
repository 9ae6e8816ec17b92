// Package cut cuts text into lines.
package cut

import (
	"bytes"
	"iter"
)

// Lines yields the lines of a text, each with the newline that ends it, as
// strings.Lines and bytes.Lines do. Those need Go 1.24, which this module's go
// line would then require of every importer.
func Lines[T string | []byte](text T) iter.Seq[T] {
	return func(yield func(T) bool) {
		for rest := []byte(text); len(rest) > 0; {
			end := bytes.IndexByte(rest, '\n') + 1
			if end == 0 {
				end = len(rest)
			}
			if !yield(T(rest[:end:end])) {
				return
			}
			rest = rest[end:]
		}
	}
}
