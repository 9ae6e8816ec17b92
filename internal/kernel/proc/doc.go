// Package proc answers from /proc which processes there are, and what they keep: threads,
// the references that keep a network namespace alive, the processes that hold a byte of a
// lock file, and whether a process that a record names still runs.
//
// Namespaces and descriptors belong to a thread: /proc/PID shows those of the leading
// thread, which may differ from the others'.
//
// A runtime that was killed could neither wait for its plugin nor kill it. Such a plugin
// keeps the lock of its container, which it inherited: a [Holder]. Off Linux nothing is found.
package proc
