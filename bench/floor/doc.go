// Package floor attaches containers with the least work that the kernel
// requires. The benchmarks measure everything else against it. A container gets
// a port on a bridge (or a veth pair of its own), addresses, routes,
// masquerading and one port of the host. Its address is reserved in
// host-local's files, under host-local's lock. The package has no
// configuration, no protocol, no record and no recovery after a crash, so it is
// not fit for production.
//
// It speaks netlink through its own sockets. The encoding and checks of a
// general library would add a cost that is not the kernel's.
package floor
