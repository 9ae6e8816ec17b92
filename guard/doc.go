// Package guard repairs what others break in containers' networks: a firewall reload or a
// flushed table, an interface that is set down or taken from its bridge, a bridge that is
// deleted, a route to a container.
//
//	go func() {
//		err := guard.Run(ctx, rt, guard.Options{Report: func(e guard.Event) { log.Print(e) }})
//		…
//	}()
//
// Nothing is guarded unless [Run] is called; it ends with its context. The Runtime needs
// the built-in plugins, for executables' containers too: cni.WithBuiltinPlugins, or
// cni.WithBuiltinFallback. They know what to compare and to put back.
//
//	announcements of the kernel ─► a loss by others? ─► quiet for 100 ms ─► rt.Health, all
//	                                                                          │ differences
//	        rest: 4 times as long as the look took ◄─── rt.RepairAll ◄────────┘
//
// # What wakes it
//
// While nothing is lost, nothing runs. Additions wake nobody, nor do changes of the packet
// filter by this library, of any process: the kernel names the socket that made them. Any
// other announcement does: an interface that goes, is set down, renamed or leaves its
// bridge, a port mode, a VLAN, an address, a queue or a route that is deleted, rules that
// another program deletes or replaces. So a Remove is followed by a look. The guard does
// not predict whose container may have lost something. It looks at all of them as soon as
// the announcements pause for 100 ms, or after 300 ms if they do not.
//
// It then rests four times as long as the look took, so that looking takes a fifth of one
// processor at most, whatever others do. 100 containers are looked at in about 50 ms, 1,000
// in half a second: a host with thousands of containers, on which interfaces come and go
// all the time, is looked at every few seconds.
//
// # What it leaves
//
// An administrator wins. What is held ([Hold.Begin]) is left and reported as [Held],
// and a part that is undone three times within a minute is left and reported as
// [Contested]. A guard removes and overwrites nothing: it reports a part that differs, or
// that it cannot add, as [Left].
package guard
