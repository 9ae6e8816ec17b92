// Bench measures what it costs to attach and to detach a container: with this
// library, its plugins on disk and in process; with go-cni and the reference
// plugins; with netavark, if it is installed; and with the floor, which is as
// little as the kernel asks for.
//
//	make bench
//	make bench BENCH_QUICK=1
//	cd bench && go run . -only nat -rounds 50
//
// All contenders do the same work in the same run, in turns, so that what
// else the machine does disturbs them alike. Each is a process of its own in a
// network namespace of its own, which is its host; all of it happens in a
// sandbox that vanishes, so the machine is never touched.
//
// What is written, into -out: results.json, what was measured; results.md,
// tables; cost.svg, the cost of an ADD against attached containers. The last
// two are made of the first alone, as is the README's section.
package main
