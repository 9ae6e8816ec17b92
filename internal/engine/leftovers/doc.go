// Package leftovers knows what an attachment may leave: interfaces, addresses, firewall
// rules, zones, flows and files. It finds that, removes it, and looks again.
//
//	record entry ─► Attachment ─► Of ─► Footprint ─► Target ─► Sweep, or Find and Clear
//	                           ─► Wants: rules in chains that siblings share
//	                           ─► Covers: does the sweep make up for a DEL?
//	                           ─► LetGo: which interfaces on the host end with the container?
//
// A Footprint is derived from the record alone, without the kernel; DEL, CHECK, GC and
// CleanUp share this one description. The sweep goes by it, never by pattern: nothing of a
// neighbour's is looked at.
//
// A reservation of host-local belongs to the attachment that it names. An attachment is on
// record before its address is reserved, and until the release is on the disk, so that each
// reservation of the runtime's has a record, after a kill and after a power cut. All others
// belong to other programs, which may share the directory.
//
// A [Search] looks in the background for containers that nobody removes.
package leftovers
