package netns_test

import (
	"fmt"
	"log"
	"net"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/embedcni/cni/netns"
)

// A container's program is started in its network namespace, and stays there.
func ExampleDo() {
	path := filepath.Join(netns.RunDir, "blue")
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

func ExampleShare() {
	// As `ip netns add blue`.
	if err := netns.Share(netns.RunDir); err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(netns.RunDir, "blue")
	ns, err := netns.Create(path)
	if err != nil {
		log.Fatal(err)
	}
	if err := ns.Close(); err != nil {
		log.Fatal(err)
	}
	out, err := exec.Command("ip", "netns", "list").Output()
	fmt.Print(string(out), err, "\n")
	if err := netns.Remove(path); err != nil {
		log.Fatal(err)
	}
	// Output:
	// blue
	// <nil>
}

func ExampleSweep() {
	// At the start of a program that crashed: it named all its namespaces "app-…".
	report, err := netns.Sweep(netns.RunDir, netns.SweepOptions{Prefix: "app-"})
	if err != nil {
		log.Fatal(err)
	}
	for path, why := range report.Kept {
		fmt.Println(path, "stays:", why)
	}
	fmt.Println(len(report.Removed), "removed")
	// Output: 0 removed
}
