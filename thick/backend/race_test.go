//go:build race

package backend_test

// sizeFactor: the race detector multiplies memory, five to ten times by its documentation.
const sizeFactor = 5
