// Embedcni-shim is the CNI plugin in front of the daemon embedcnid. A runtime executes it, and
// the daemon does the work:
//
//	{"cniVersion": "1.0.0", "name": "node", "plugins": [
//	    {"type": "embedcni-shim", "capabilities": {"portMappings": true}}]}
//
// A daemon whose socket is in another directory is named by the field daemonSocketDir. Build it
// without the C library (CGO_ENABLED=0): it is started for every call.
package main

import (
	"fmt"
	"os"

	"github.com/embedcni/cni/thick/shim"
)

const usage = `usage: embedcni-shim is a CNI plugin. Copy it to the plugin directory of a runtime, name its type
in a network configuration, and start the daemon embedcnid:

	{"type": "embedcni-shim", "daemonSocketDir": "/run/embedcni"}
`

func main() {
	if os.Getenv("CNI_COMMAND") == "" { // no runtime has started it
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	shim.Main(shim.Options{Socket: "/run/embedcni/multus.sock", QueueDir: "/var/lib/embedcni/dels"})
}
