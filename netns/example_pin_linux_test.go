package netns_test

import (
	"fmt"
	"log"
	"os/exec"

	"github.com/embedcni/cni/netns"
)

// The namespace of a process stays after its end, under a name. It is removed only if nobody
// has put another one there meanwhile.
func ExamplePin() {
	ns, err := netns.New()
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	task := exec.Command("sleep", "infinity")
	if err := ns.Do(task.Start); err != nil {
		log.Fatal(err)
	}
	defer task.Wait()
	defer task.Process.Kill()

	its, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", task.Process.Pid))
	if err != nil {
		log.Fatal(err)
	}
	defer its.Close()
	if err := netns.Pin(its, "/run/netns/task"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(netns.RemoveIf("/run/netns/task", ns.ID()))
	// Output: true <nil>
}

// In which namespace a function runs: the thread's is the process's, but inside Do.
func ExampleCurrent() {
	ns, err := netns.New()
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	process, err := netns.ProcessID()
	if err != nil {
		log.Fatal(err)
	}
	outside, err := netns.Current()
	if err != nil {
		log.Fatal(err)
	}
	defer outside.Close()
	err = ns.Do(func() error {
		inside, err := netns.CurrentID()
		fmt.Println(inside == ns.ID(), inside == process)
		return err
	})
	fmt.Println(outside.ID() == process, err)
	// Output:
	// true false
	// true <nil>
}
