// Shim is the CNI plugin of the thick example. A runtime executes it, and the daemon does
// the work. The daemon's socket is in the directory that the configuration names:
//
//	{"cniVersion": "1.1.0", "name": "node", "plugins": [
//	    {"type": "shim", "daemonSocketDir": "/run/thick", "capabilities": {"portMappings": true}}]}
package main

import "github.com/embedcni/cni/thick/shim"

func main() {
	shim.Main(shim.Options{Socket: "/run/thick/multus.sock", QueueDir: "/var/lib/thick/dels"})
}
