//go:build !race

package backend_test

const sizeFactor = 1
