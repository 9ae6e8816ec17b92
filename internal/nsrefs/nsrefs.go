// Package nsrefs finds the references that keep a network namespace alive: threads in
// it, mounts of it, and open descriptors, of any visible process.
package nsrefs
