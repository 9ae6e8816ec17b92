// Package testhost is a host for tests of the whole library: a network
// namespace with a state directory, plugins and container namespaces of its
// own. It serves the root's tests, and those of the modules that compare this
// library with others.
package testhost
