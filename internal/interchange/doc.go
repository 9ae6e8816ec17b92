// Package interchange holds the tests that the plugins of this module and the
// reference plugins of the same types are interchangeable in the middle of a
// container's life: what one ADDs the other CHECKs and DELs, either notices
// what is damaged, and equal configurations give equal results and equal state
// in the kernel and on disk.
//
// The tests run the plugins through libcni, which differs from how the runtime
// does it in one thing only: for each verb it is said which types are run in
// process, and which are executed.
package interchange
