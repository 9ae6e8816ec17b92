// Package views opens the views of the kernel by which containers are compared with
// their records: the kernel itself, for one container, or one dump of each host's
// namespace, for all containers whose plugins ran there.
//
// A [Namespace] is read once, and then answers from memory: its interfaces with their bridge
// ports, its addresses and its routes. Questions about a thousand attachments cost the
// kernel one look at the host, and one at each container. A look only suspects: the
// namespace may change while it is read, and afterwards.
//
//	rtnetlink ─► Namespace ─► compare.Net
package views
