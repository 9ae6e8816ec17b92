// Package behaviour has the tests that try the library from outside, through
// its exported API: on hosts, containers and plugins that its tests make, see
// [github.com/embedcni/cni/internal/testhost]. Tests of one file of the library
// stand beside that file.
package behaviour
