//go:build race

package backend_test

// The race detector multiplies memory, five to ten times by its documentation.
func init() { residentLimit *= 5 }
