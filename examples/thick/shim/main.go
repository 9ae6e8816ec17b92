// Shim is the CNI plugin of the thick example. A runtime executes it, and the daemon does
// the work. The daemon's socket is in the directory that the configuration names:
//
//	{"cniVersion": "1.1.0", "name": "node", "plugins": [
//	    {"type": "shim", "daemonSocketDir": "/run/thick", "capabilities": {"portMappings": true}}]}
package main

import (
	"fmt"
	"os"

	"github.com/embedcni/cni/thick/shim"
)

const usage = `usage: shim is a CNI plugin. Copy it to the plugin directory of a runtime, name its type in a
network configuration, and start the daemon:

	{"type": "shim", "daemonSocketDir": "/run/thick"}
`

func main() {
	if os.Getenv("CNI_COMMAND") == "" { // no runtime has started it
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	shim.Main(shim.Options{Socket: "/run/thick/multus.sock", QueueDir: "/var/lib/thick/dels"})
}
