// Package behaviour tests the library from outside, through its exported API.
// Its tests make hosts, containers and plugins with
// [github.com/embedcni/cni/internal/testhost]. Tests of one file of the library
// are next to that file.
package behaviour
