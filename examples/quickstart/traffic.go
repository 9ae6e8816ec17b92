package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

const (
	port     = 80   // of web's and the host's servers
	hostPort = 8080 // of the host, forwarded to web's
	// patience limits every wait for the network. On one machine an answer takes
	// microseconds.
	patience = 5 * time.Second
)

// proveTraffic starts servers in web and on the host, asks them by every way
// that the networks provide, and prints a line for each.
func proveTraffic(ctx context.Context, out io.Writer, web, client *cni.Result) error {
	const host = "" // the namespace of this process
	for at, name := range map[string]string{web.NetNS: "web", host: "host"} {
		server, err := serve(ctx, at, name)
		if err != nil {
			return err
		}
		defer server.Close() // it has no more to say
	}
	asked := 0
	var errs []error
	prove := func(what, network, from, want string, to netip.Addr, port uint16) {
		if !to.IsValid() || to.IsLoopback() {
			return
		}
		asked++
		address, mark, begin := netip.AddrPortFrom(to, port), "✓", time.Now()
		err := ask(ctx, from, address.String(), want)
		if err != nil {
			mark, errs = "✗", append(errs, fmt.Errorf("%s by %s: %w", what, network, err))
		}
		fmt.Fprintf(out, "%s  %-15s  %-12s  %-22s  %s\n", mark, what, network, address, milliseconds(begin))
	}
	fmt.Fprintln(out)
	for _, n := range web.Networks {
		for _, i := range n.Interfaces {
			for _, a := range i.Addresses {
				prove("client → web", n.Name, client.NetNS, "web", a.IP(), port)
				prove("host → web", n.Name, host, "web", a.IP(), port)
				prove("client → host", n.Name, client.NetNS, "host", a.Gateway, port) // the host's address on the network
			}
		}
	}
	if !slices.Contains(web.Ignored, "portMappings") { // a network forwards ports
		prove("host port → web", "", host, "web", web.IPv4().Gateway, hostPort)
		prove("host port → web", "", host, "web", web.IPv6().Gateway, hostPort)
	}
	fmt.Fprintln(out)
	if asked == 0 {
		return errors.New("no network gave the containers an address, so there is no traffic to prove")
	}
	return errors.Join(errs...)
}

// in calls f in a network namespace. A socket belongs for life to the namespace
// that it was opened in, so only the opening must happen inside.
func in(path string, f func() error) error {
	if path == "" {
		return f()
	}
	return netns.Do(path, f)
}

// serve starts a server that tells everybody its name. It ends with its listener.
func serve(ctx context.Context, at, name string) (l net.Listener, err error) {
	if err := in(at, func() error {
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
		return err
	}); err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			conn.SetDeadline(time.Now().Add(patience))
			io.WriteString(conn, name) // a failed write is a wrong answer at the client
			conn.Close()
		}
	}()
	return l, nil
}

// ask returns an error unless the wanted server answers at the address.
func ask(ctx context.Context, from, address, want string) (err error) {
	var conn net.Conn
	if err := in(from, func() error {
		conn, err = (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", address)
		return err
	}); err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	got, err := io.ReadAll(conn)
	if err == nil && string(got) != want {
		err = fmt.Errorf("%q answers at %s, not %s", got, address, want)
	}
	return err
}
