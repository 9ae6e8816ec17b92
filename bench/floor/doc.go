// Package floor attaches containers with as little as the kernel asks for: it
// is what the benchmarks measure everything else against. A container gets a
// port on a bridge (or a pair of its own), addresses, routes, masquerading, and
// one port of the host, and leaves an address file of host-local's with its
// lock. There is no configuration, no protocol, no record of what was done and
// no way back after a crash, so nobody should attach containers with it.
//
// It speaks netlink through sockets of its own, because to decode and check
// what a general library would is a cost that is not the kernel's.
package floor
