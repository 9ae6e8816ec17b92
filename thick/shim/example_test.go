package shim_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/embedcni/cni/thick/shim"
)

// A plugin's program is one call of Main. Here Run stands in for it, with the environment
// and the standard input that a runtime gives a plugin.
func ExampleRun() {
	code := shim.Run(context.Background(), shim.Options{
		Socket:   "/run/example/multus.sock",
		QueueDir: "/var/lib/example/dels",
	}, shim.Process{
		Env:    []string{"CNI_COMMAND=VERSION"},
		Stdin:  strings.NewReader(`{"cniVersion": "1.1.0"}`),
		Stdout: os.Stdout,
		Stderr: os.Stderr,
	})
	fmt.Println("exit code", code)
	// Output:
	// {"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}
	// exit code 0
}

// The whole program of a plugin.
func ExampleMain() {
	shim.Main(shim.Options{Socket: "/run/example/multus.sock", QueueDir: "/var/lib/example/dels"})
}
