// Package builtin contains the built-in plugins. Each has a package of its own,
// named after its type, and takes the configuration of the reference plugin of
// that type (plugins v1.9.1).
package builtin
