// Provider runs replicas of a function, which is a program that answers HTTP on port 8080,
// and routes requests to them:
//
//	provider [-listen 127.0.0.1:8080] [-replicas 3] PROGRAM [ARGUMENT]...
//
// The program can be `busybox httpd -f -p 8080 -h /srv`, for example. It needs root, and no
// CNI plugins.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

const network = `{"cniVersion": "1.0.0", "name": "functions", "plugins": [
	{"type": "bridge", "bridge": "functions0", "isDefaultGateway": true, "ipMasq": true,
	 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.62.0.0/16"}]]}}, {"type": "firewall"}]}`

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "serve at `ADDRESS`")
	replicas := flag.Int("replicas", 1, "run `NUMBER` replicas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := provide(ctx, *listen, *replicas, flag.Args()); err != nil {
		log.Fatal("provider: ", err)
	}
}

func provide(ctx context.Context, listen string, replicas int, program []string) (err error) {
	if replicas < 1 || len(program) == 0 {
		return errors.New("nothing to run: it needs a program, and at least one replica")
	}
	rt, err := cni.New(cni.WithOwner("provider"), cni.WithConfListBytes([]byte(network)))
	if err != nil {
		return err
	}
	removeAll := func() error { // also those that a killed provider has left
		report, err := rt.GC(context.WithoutCancel(ctx), cni.GCOptions{KeepNone: true})
		return errors.Join(err, report.Err())
	}
	if err := removeAll(); err != nil {
		return err
	}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		running.Wait() // a replica ends before its network does
		err = errors.Join(err, removeAll())
	}()
	for i := range replicas {
		result, err := rt.Setup(ctx, fmt.Sprint("replica-", i), "", cni.WithNewNetNS())
		if err != nil {
			return err
		}
		replica := exec.CommandContext(ctx, program[0], program[1:]...)
		replica.Env = append(os.Environ(), "PROVIDER="+result.IPv4().Gateway.String()) // where to find the provider
		if err := netns.Do(result.NetNS, replica.Start); err != nil {
			return err
		}
		running.Add(1)
		go func() {
			defer running.Done()
			log.Printf("replica-%d has ended: %v", i, replica.Wait())
		}()
	}
	var calls atomic.Uint64
	server := &http.Server{Addr: listen, Handler: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		result, err := rt.Lookup(fmt.Sprint("replica-", calls.Add(1)%uint64(replicas)))
		if err != nil {
			log.Print(err)
			return // the proxy answers 502
		}
		r.Out.URL.Scheme, r.Out.URL.Host = "http", result.IPv4().IP().String()+":8080"
	}}}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
