// Command ours is this library's shim with the socket of Multus' daemon, as small as the
// programs around package shim are.
package main

import "github.com/embedcni/cni/thick/shim"

func main() {
	shim.Main(shim.Options{Socket: "/run/multus/multus.sock", QueueDir: "/var/lib/embedcni-ours/queue"})
}
