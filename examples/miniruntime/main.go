// Miniruntime runs programs in network namespaces of their own, attached to a bridge of
// the host:
//
//	miniruntime run [-p PORT]... ID PROGRAM [ARGUMENT]...
//	miniruntime list
//	miniruntime remove ID
//
// It needs root, and no CNI plugins. A program whose miniruntime was killed keeps its
// network until "remove".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

const network = `{"cniVersion": "1.0.0", "name": "mini", "plugins": [
	{"type": "bridge", "bridge": "mini0", "isDefaultGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.63.0.0/16"}]]}},
	{"type": "portmap", "capabilities": {"portMappings": true}}]}`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		log.Fatal("miniruntime: ", err)
	}
}

func command(ctx context.Context, args []string) error {
	rt, err := cni.New(cni.WithOwner("miniruntime"), cni.WithConfListBytes([]byte(network)))
	if err != nil {
		return err
	}
	report, err := rt.Recover(ctx) // it removes what a crash or a reboot has left
	if err := errors.Join(err, report.Err()); err != nil {
		return err
	}
	switch {
	case len(args) > 0 && args[0] == "run":
		return run(ctx, rt, args[1:])
	case len(args) == 2 && args[0] == "remove":
		return rt.Remove(ctx, args[1], "")
	}
	health, err := rt.Health(ctx, cni.HealthOptions{})
	fmt.Println(health)
	return err
}

func run(ctx context.Context, rt *cni.Runtime, args []string) (err error) {
	var ports []cni.Port
	flags := flag.NewFlagSet("run", flag.ExitOnError)
	flags.Func("p", "forward `PORT`, such as 8080:80, or 80 for any port of the host", func(text string) error {
		more, err := cni.ParsePorts(text)
		ports = append(ports, more...)
		return err
	})
	flags.Parse(args) // it exits on an error
	if flags.NArg() < 2 {
		return errors.New("run needs an ID and a program")
	}
	id := flags.Arg(0)
	result, err := rt.Setup(ctx, id, "", cni.WithNewNetNS(), cni.WithPorts(ports...))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Remove(ctx, id, "")) }() // after an interrupt too
	fmt.Println(id, result.IPv4().IP(), result.Requested)
	program := exec.CommandContext(ctx, flags.Arg(1), flags.Args()[2:]...)
	program.Stdin, program.Stdout, program.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := netns.Do(result.NetNS, program.Start); err != nil {
		return err
	}
	return program.Wait()
}
