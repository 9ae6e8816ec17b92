// Package notify receives the announcements that the kernel sends to the groups of a
// netlink protocol: each change of the interfaces or of the packet filter of one
// network namespace. It does not read them; packages links and nft do.
//
// The kernel drops announcements if the receiver's buffer is full, and says so once
// ([Socket.Next] returns lost). A caller that opens a socket, then looks, and then
// listens misses no change.
package notify
