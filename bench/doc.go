// Bench measures the cost of attaching and detaching a container. It compares
// this library, with plugins on disk and in process, with go-cni and the
// reference plugins, with netavark if it is installed, and with the floor: the
// same objects of the kernel and nothing else.
//
//	make bench
//	make bench BENCH_QUICK=1
//	cd bench && go run . -only nat -rounds 50
//
// All contenders do the same work in the same run and take turns, so that other
// load on the machine affects them equally. Each contender is a process with a
// network namespace of its own, which serves as its host. Everything happens in
// a sandbox that vanishes at the end, so the machine itself is never changed.
//
// Bench writes into the directory -out: results.json with the measurements,
// importers.json with what programs link, results.md with tables, and results.txt,
// the measurements in the format of Go's benchmarks, for benchstat. With -docs it
// writes the README's table, docs/cost.md and docs/cost.svg too. All but the first
// two are made from these alone, and -from-results makes them again:
//
//	cd bench && go run . -from-results -docs ..
package main
