// Package testhost provides a host for tests of the whole library: a network
// namespace with its own state directory, plugins and container namespaces. It
// serves the tests of the library, and those of the modules that compare it
// with others.
package testhost
