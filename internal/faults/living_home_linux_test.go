package faults_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// answerWait limits the wait for an answer.
const answerWait = 5 * time.Second

// home is a running container: its namespace, a server inside with a connection
// to it, and a photograph of everything that the container has.
type home struct {
	l        *living
	id, path string
	ns       *netns.Handle
	address  string // empty: not checked
	port     int32  // host port, 0: none
	server   net.Listener
	flow     net.Conn // from the host, open during the container's life

	host   audit.Lines // the host's lines about the container
	inside []string
	lost   []string        // since the photograph
	left   bool            // the case has removed it
	also   func() []string // additional lines; nil: none
}

// attach sets up containers, each with a port of the host, and photographs
// them.
func (l *living) attach(ids ...string) {
	l.t.Helper()
	l.attachBy(l.set, ids...)
}

func (l *living) attachBy(s settings, ids ...string) {
	l.t.Helper()
	for _, id := range ids {
		before := l.audit()
		port := int32(10000 + len(l.homes))
		result := expect.Value(l.setup(s, id, ports(port)...))(l.t)
		home := l.settle(id, l.netns(id), result)
		home.port = port
		home.host = l.about(before)
		home.photograph()
	}
}

// settle returns the home of an attached container. With a result it starts a
// server and traffic.
func (l *living) settle(id, path string, result *cni.Result) *home {
	l.t.Helper()
	if result == nil {
		return l.settleAt(id, path, "")
	}
	return l.settleAt(id, path, addressOf(result, "eth0"))
}

// addressOf returns an interface's address.
func addressOf(result *cni.Result, ifName string) string {
	return result.Interfaces[ifName].IPConfigs[0].IP.String()
}

func (l *living) settleAt(id, path, address string) *home {
	l.t.Helper()
	ns := expect.Value(netns.Open(path))(l.t)
	h := &home{l: l, id: id, path: path, ns: ns}
	l.t.Cleanup(h.close)
	l.homes = append(l.homes, h)
	if h.address = address; address != "" {
		h.serve()
	}
	h.photograph()
	return h
}

// about returns the host's lines that are new since before. Of a record only
// the file counts, not its content.
func (l *living) about(before audit.Lines) audit.Lines {
	l.t.Helper()
	added, _ := audit.Diff(before, l.audit())
	added = added.Without(func(line string) bool { return l.moves && audit.IsRule(line) })
	for i, line := range added {
		if strings.Contains(line, "/attachments/") {
			added[i], _, _ = strings.Cut(line, " sha256:")
		}
	}
	return added
}

// photographAll updates the photographs after changes that are part of the
// fault.
func (l *living) photographAll() {
	l.t.Helper()
	now := l.about(nil)
	for _, h := range l.homes {
		h.host = h.host.Without(func(line string) bool { return !slices.Contains(now, line) })
		h.photograph()
	}
}

func (h *home) photograph() {
	h.l.t.Helper()
	h.inside = h.see()
}

// look compares the container with its photograph.
func (h *home) look() {
	h.l.t.Helper()
	if len(h.lost) > 0 {
		return // count each once
	}
	_, h.lost = audit.Diff(h.inside, h.see())
	_, gone := audit.Diff(h.host, h.l.about(nil))
	h.lost = append(h.lost, gone...)
	expect.That(h.l.t, len(h.lost) == 0, "%s (%s): container %s has lost\n%s", h.l.t.Name(), h.l.kind, h.id, strings.Join(h.lost, "\n"))
}

// see lists the container's contents and its working connections.
func (h *home) see() (lines []string) {
	h.l.t.Helper()
	expect.NoError(h.l.t, h.ns.Do(func() (err error) {
		lines, err = linksHere()
		return err
	}))
	if ns, err := netns.Open(h.path); err == nil {
		if ns.ID() == h.ns.ID() {
			lines = append(lines, "path "+h.path)
		}
		expect.NoError(h.l.t, ns.Close())
	}
	for way, works := range map[string]func() error{
		"connection": func() error { return echo(h.flow) },
		"address":    func() error { return dial("tcp4", net.JoinHostPort(h.address, "80")) },
		"port":       func() error { return dial("tcp4", fmt.Sprintf("%s:%d", h.gateway(), h.port)) },
	} {
		if h.address == "" || way == "port" && h.port == 0 {
			continue
		}
		if err := works(); err == nil {
			lines = append(lines, "reached by "+way)
		} else {
			h.l.t.Logf("container %s is not reached by its %s: %v", h.id, way, err)
		}
	}
	if h.also != nil {
		lines = append(lines, h.also()...)
		slices.Sort(lines)
	}
	return lines
}

// gateway returns the host's address in the container's network.
func (h *home) gateway() string {
	ip := net.ParseIP(h.address).To4()
	return net.IPv4(ip[0], ip[1], 0, 1).String()
}

// linksHere renders the interfaces, addresses and routes of the thread's
// namespace.
func linksHere() (lines []string, err error) {
	links, err := audit.Dump(netlink.LinkList)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, link := range links {
		a := link.Attrs()
		names[a.Index] = a.Name
		lines = append(lines, fmt.Sprintf("%d: %s %s %s mtu %d up %v", a.Index, a.Name, link.Type(), a.HardwareAddr, a.MTU, a.Flags&net.FlagUp != 0))
		addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil {
			return nil, err
		}
		for _, address := range addresses {
			lines = append(lines, fmt.Sprintf("%s has %s", a.Name, address.IPNet))
		}
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	for _, r := range routes {
		lines = append(lines, fmt.Sprintf("route %v via %v dev %s", r.Dst, r.Gw, names[r.LinkIndex]))
	}
	slices.Sort(lines)
	return lines, err
}

// serve starts a server in the container, and connects to it.
func (h *home) serve() {
	t := h.l.t
	t.Helper()
	expect.NoError(t, h.ns.Do(func() (err error) {
		h.server, err = net.Listen("tcp4", "0.0.0.0:80")
		return err
	}))
	go answer(h.server)
	flow, err := net.DialTimeout("tcp4", net.JoinHostPort(h.address, "80"), answerWait)
	if err == nil {
		err = echo(flow)
	}
	if err != nil {
		t.Fatalf("container %s: %v", h.id, err)
	}
	h.flow = flow
}

// answer runs a server.
func answer(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			_, _ = io.Copy(c, c) // until the other end closes
			_ = c.Close()
		}()
	}
}

// dial sends a server one message and checks the answer.
func dial(network, address string) error {
	c, err := net.DialTimeout(network, address, answerWait)
	if err != nil {
		return err
	}
	return errors.Join(echo(c), c.Close())
}

func echo(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(answerWait)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "ping"); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 4))
	return err
}

// close ends everything that keeps the container alive. It may be called
// repeatedly.
func (h *home) close() {
	if h.flow != nil {
		_ = h.flow.Close() // the other end may be gone
		_ = h.server.Close()
		h.flow = nil
	}
	_ = h.ns.Close()
}

// containers returns the names of the host's namespaces.
func (h *host) containers() (names []string) {
	h.t.Helper()
	for _, path := range expect.Value(filepath.Glob(h.netns("*")))(h.t) {
		names = append(names, filepath.Base(path))
	}
	return names
}

// recordFile returns the path of the container's record.
func (h *host) recordFile(id string) string {
	return h.path("state", "embedcni", "attachments", record.Name(record.ID(id))+".json")
}

// inhabit runs a process in the container.
func (h *home) inhabit() {
	h.l.t.Helper()
	cmd := exec.Command("sleep", "600")
	expect.NoError(h.l.t, h.ns.Do(cmd.Start))
	h.l.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it cannot have ended
		_ = cmd.Wait()         // it was killed
	})
}
