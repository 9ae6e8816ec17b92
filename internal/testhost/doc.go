// Package testhost is a host for tests of the whole library: a network namespace
// with a state directory, plugins and container namespaces of its own. The root's
// tests use it, and those of the modules beside it that compare this library with
// others.
package testhost
