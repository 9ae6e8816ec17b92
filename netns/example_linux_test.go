package netns_test

import (
	"fmt"
	"log"
	"net"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

// A container's program is started in its network namespace, and stays there.
func ExampleDo() {
	path := "/run/netns/blue"
	ns, err := netns.Create(path)
	if err != nil {
		log.Fatal(err)
	}
	if err := ns.Close(); err != nil {
		log.Fatal(err)
	}
	program := exec.Command("readlink", "/proc/self/ns/net")
	var inside strings.Builder
	program.Stdout = &inside
	if err := netns.Do(path, program.Start); err != nil {
		log.Fatal(err)
	}
	if err := program.Wait(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(inside.String() == fmt.Sprintf("net:[%d]\n", ns.ID().Ino))
	if err := netns.Remove(path); err != nil {
		log.Fatal(err)
	}
	// Output: true
}

func ExampleHandle_Do() {
	ns, err := netns.New()
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	var server net.Listener
	err = ns.Do(func() (err error) {
		// The socket stays inside, whoever accepts its connections.
		if server, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
			return err
		}
		// A process that is started here is inside, and stays there.
		return exec.Command("ip", "link", "set", "lo", "up").Run()
	})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	_, err = net.Dial("tcp4", server.Addr().String())
	fmt.Println("reachable from outside:", err == nil)
	err = ns.Do(func() error {
		c, err := net.Dial("tcp4", server.Addr().String())
		if err == nil {
			err = c.Close()
		}
		return err
	})
	fmt.Println("reachable from inside:", err == nil)
	// Output:
	// reachable from outside: false
	// reachable from inside: true
}

// At its start, a program removes the namespaces that it made, without WithNewNetNS, before
// it crashed, and that are not attached. A process in one of them keeps it, without a path.
func ExampleList() {
	rt, err := cni.New(cni.WithLoNetwork)
	if err != nil {
		log.Fatal(err)
	}
	pinned, err := netns.List("/run/netns")
	if err != nil {
		log.Fatal(err)
	}
	attached, err := rt.Attachments()
	if err != nil {
		log.Fatal(err)
	}
	keep := make(map[string]bool)
	for _, a := range attached {
		if a.State == cni.Unknown {
			log.Fatal(a.LastError) // its namespace is not known
		}
		keep[a.NetNS] = true
	}
	for _, ns := range pinned {
		if strings.HasPrefix(filepath.Base(ns.Path), "app-") && !keep[ns.Path] {
			fmt.Println("remove", ns.Path, netns.Remove(ns.Path))
		}
	}
	// Output:
}
