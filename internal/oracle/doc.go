// Package oracle compares this library with others: with go-cni, whose place it
// takes, and with the reference plugins' own packages. It is a module of its own,
// so that what only comparisons need stays out of the module graphs of this
// library's importers.
package oracle
