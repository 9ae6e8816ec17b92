// Package oracle compares this library with others: with go-cni, which it
// replaces, with libcni on the configurations of the field's network engines, and
// with the reference plugins' own packages. It is a module of its
// own, so that its requirements stay out of the module graphs of this library's
// importers.
package oracle
