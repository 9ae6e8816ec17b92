// Package plainfile opens and reads files of the disk and of /proc, which are
// always ready. Package os asks the poller first whether it could wait for them:
// that is five calls of the kernel for each file, more than what is done with a
// file of a few hundred bytes.
//
// The errors are those of package os.
package plainfile
