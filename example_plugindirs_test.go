package cni_test

import (
	"fmt"
	"log"

	"github.com/embedcni/cni"
)

// A daemon in a container, into which the root of the host is mounted, runs the host's
// plugins as if it ran on the host.
func ExampleWithPluginRoot() {
	rt, err := cni.New(
		cni.WithStateDir("/var/lib/example"), // the host's, mounted at the same path
		cni.WithPluginRoot("/hostroot"),
		cni.WithPluginDir([]string{"/opt/cni/bin"}), // in /hostroot
	)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rt.GetConfig().PluginDirs)

	_, err = cni.New(cni.WithPluginRoot("hostroot"))
	fmt.Println(err)
	// Output:
	// [/opt/cni/bin]
	// plugin root "hostroot" is not an absolute path: invalid argument
}

// A daemon that serves the CNI calls of others gives precedence to a client's directories.
func ExampleWithPluginDirOrder() {
	rt, err := cni.New(cni.WithPluginDir([]string{"/usr/lib/cni", "/opt/cni/bin"}),
		cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "podnet", "plugins": [{"type": "bridge"}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	clients := []string{"/opt/cni/bin", "/home/user/bin"} // the latter is none of the daemon's
	plan, err := rt.Plan("web", "/run/netns/web", cni.WithPluginDirOrder(clients...))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(plan.Attachments))
	// Output: 1
}
