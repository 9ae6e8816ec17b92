// Package hostlocal assigns addresses from configured ranges. It keeps them in
// files, so that an address belongs to one attachment until DEL.
//
// The files are those of the reference plugin host-local (v1.9.1), and so is the
// lock, so that both can work on one directory at the same time:
//
//	/var/lib/cni/networks/podnet/lock                 locked with flock(2)
//	/var/lib/cni/networks/podnet/10.1.0.7             "<container ID>\r\n<interface>"
//	/var/lib/cni/networks/podnet/last_reserved_ip.0   "10.1.0.7", for the first range set
//
// The reference plugin reads every file in each ADD and DEL. This one remembers
// the files, and asks the kernel only whether the directory has changed.
package hostlocal
