// Package interchange tests that this module's plugins and the reference
// plugins of the same types can replace each other during a container's life, but for
// the rules of packet filters, which have a form of this module's own.
// One side's CHECK and DEL accept the other side's ADD. Both detect damage.
// Equal configurations give equal results and equal state in the kernel and on
// disk.
//
// The tests run the plugins through libcni. They differ from the runtime in one
// way: a test chooses for each verb the types that run in process and those
// that are executed.
package interchange
