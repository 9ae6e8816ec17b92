// Package cni is go-cni v1.1.14, whose work [github.com/embedcni/cni] does. It moves a whole
// program, and the modules that it depends on, without a change in a source file:
//
//	go mod edit -replace github.com/containerd/go-cni=github.com/embedcni/cni/gocni@v0.1.0
//	go mod tidy
//
// The module has go-cni's path, because the go command demands it of a replacement. Each name
// of go-cni is an alias, or calls the function of its name, so values of both packages mix. New
// returns the Runtime of embedcni: its other methods can be reached by a type assertion.
package cni
