package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/reconcile"
)

// conflist is flannel's own: its plugin reads /run/flannel/subnet.env and delegates to bridge.
// forceAddress is for leases that change: the bridge gets the new gateway's address.
//
//go:embed network.conflist
var conflist []byte

// subnetFile is where flanneld writes the host's subnets.
const subnetFile = "/run/flannel/subnet.env"

// Agent is the runtime of one host. Its exported methods are called from the room.
type Agent struct {
	number int
	rt     *cni.Runtime

	// attaching is held for reading while a container is attached, and for writing while the
	// host starts and by Empty, after which no container is attached.
	attaching sync.RWMutex
	closed    bool // guarded by attaching

	mu         sync.Mutex
	containers map[string]*container
	flows      map[int]*flow
	flanneld   *service
}

// container is a task of the host: a namespace, and in some a server.
type container struct {
	Spec
	server server
}

// Spec says what a container is.
type Spec struct {
	ID    string
	Ports []cni.PortMapping // a server listens on the first one's port in the container
}

// netNS is where the runtime keeps the container's namespace.
func (s Spec) netNS() string { return filepath.Join("/run/netns", s.ID) }

func (s Spec) options() []cni.NamespaceOpts {
	if len(s.Ports) == 0 {
		return nil
	}
	return []cni.NamespaceOpts{cni.WithCapabilityPortMap(s.Ports)}
}

func newAgent(number int) *Agent {
	return &Agent{number: number, containers: map[string]*container{}, flows: map[int]*flow{}}
}

// errEmptied: the room no longer waits for an answer.
var errEmptied = errors.New("the host is being emptied")

// Booted is what a start has found.
type Booted struct {
	Recovered []string // the containers of before, which are gone
	Audit     []string // before flanneld runs
}

// Boot brings the network up, and has the runtime remove what a dead one has left.
func (a *Agent) Boot(_ int, reply *Booted) (err error) {
	a.attaching.Lock()
	defer a.attaching.Unlock()
	if a.closed {
		return errEmptied
	}
	if err := bringUp("eth0", a.number); err != nil {
		return err
	}
	a.rt, err = cni.New(cni.WithBuiltinPlugins(), cni.WithPluginDir(nil), cni.WithOwner("overlay"), cni.WithConfListBytes(conflist))
	if err != nil {
		return err
	}
	report, err := a.rt.Recover(context.Background())
	if err != nil {
		return err
	}
	if len(report.Adopted)+len(report.Failed)+len(report.Skipped) > 0 {
		return fmt.Errorf("recovery: %v", report)
	}
	reply.Recovered = report.Removed
	slices.Sort(reply.Recovered)
	reply.Audit, err = a.audit()
	return err
}

// audit lists the objects on the host, without flannel's tunnels, routes to other hosts and rules.
func (a *Agent) audit() ([]string, error) {
	lines, err := cnitest.Audit(context.Background(), cnitest.Options{})
	return slices.DeleteFunc(lines, func(line string) bool {
		what, _, _ := strings.Cut(line, " ")
		switch what {
		case "link", "addr", "neigh", "qdisc", "nft":
			return strings.Contains(line, "flannel")
		case "route":
			_, via, _ := strings.Cut(line, " via ")
			gateway, _, _ := strings.Cut(via, " ")
			ip, err := netip.ParseAddr(gateway)
			return strings.Contains(line, " dev flannel") || err == nil && onWire(ip)
		}
		return false
	}), err
}

// Lease is what flanneld has for the host.
type Lease struct {
	IPv4, IPv6 netip.Prefix
	MTU        int
}

// StartFlanneld starts flanneld, and returns the lease when flanneld has it.
func (a *Agent) StartFlanneld(etcd string, reply *Lease) error {
	s, err := startService(context.Background(), flanneld, "--etcd-endpoints="+etcd, "--iface=eth0", "--ip-masq")
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.flanneld = s
	a.mu.Unlock()
	data, err := os.ReadFile(subnetFile)
	if err == nil {
		*reply, err = parseLease(data)
	}
	return err
}

// parseLease parses flanneld's file:
//
//	FLANNEL_NETWORK=10.244.0.0/16
//	FLANNEL_SUBNET=10.244.83.1/24
//	FLANNEL_IPV6_NETWORK=fd00:10:244::/48
//	FLANNEL_IPV6_SUBNET=fd00:10:244:5::1/64
//	FLANNEL_MTU=1450
//	FLANNEL_IPMASQ=true
func parseLease(data []byte) (l Lease, err error) {
	values := map[string]string{}
	for line := range bytes.Lines(data) {
		key, value, _ := strings.Cut(strings.TrimSpace(string(line)), "=")
		values[key] = value
	}
	var errs [3]error
	l.IPv4, errs[0] = netip.ParsePrefix(values["FLANNEL_SUBNET"])
	l.IPv6, errs[1] = netip.ParsePrefix(values["FLANNEL_IPV6_SUBNET"])
	l.MTU, errs[2] = strconv.Atoi(values["FLANNEL_MTU"])
	if err := errors.Join(errs[:]...); err != nil {
		return l, fmt.Errorf("%s: %w in %q", subnetFile, err, data)
	}
	l.IPv4, l.IPv6 = l.IPv4.Masked(), l.IPv6.Masked()
	return l, nil
}

func (a *Agent) service() *service {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.flanneld
}

// StopFlanneld stops flanneld as a service manager does.
func (a *Agent) StopFlanneld(_ int, _ *int) error {
	if s := a.service(); s != nil {
		s.stop(unix.SIGTERM)
	}
	return nil
}

// FlanneldEnds waits until flanneld ends because its lease is gone, and returns how it says so.
func (a *Agent) FlanneldEnds(_ int, reply *string) error {
	s := a.service()
	select {
	case <-s.ended:
	case <-time.After(patience):
		return fmt.Errorf("flanneld runs on; its log:\n%s", &s.log)
	}
	for line := range strings.Lines(s.log.String()) {
		// E1127 21:30:00.000000       1 local_manager.go:379] Lease has been revoked. …
		if _, text, ok := strings.Cut(line, "] "); ok && strings.HasPrefix(text, "Lease has been revoked") {
			*reply = strings.TrimSpace(text)
			return nil
		}
	}
	return fmt.Errorf("flanneld has ended: %v; its log:\n%s", s.cmd.ProcessState, &s.log)
}

// Attached is a container's place.
type Attached struct {
	ID         string
	IPv4, IPv6 netip.Addr
	Took       time.Duration // of the Setup
}

// Attach makes a container's namespace and attaches it.
func (a *Agent) Attach(spec Spec, reply *Attached) (err error) {
	a.attaching.RLock()
	defer a.attaching.RUnlock()
	if a.closed {
		return errEmptied
	}
	ns, err := netns.Create(spec.netNS())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	begin := time.Now()
	result, err := a.rt.Setup(context.Background(), spec.ID, spec.netNS(), spec.options()...)
	took := time.Since(begin)
	if err != nil {
		return errors.Join(err, netns.Remove(spec.netNS()))
	}
	c := &container{Spec: spec}
	if len(spec.Ports) > 0 {
		if c.server, err = serve(spec.netNS(), int(spec.Ports[0].ContainerPort), spec.ID); err != nil {
			return errors.Join(err, a.rt.Remove(context.Background(), spec.ID, spec.netNS()), netns.Remove(spec.netNS()))
		}
	}
	a.mu.Lock()
	a.containers[spec.ID] = c
	a.mu.Unlock()
	*reply = Attached{ID: spec.ID, IPv4: result.IPv4().IP(), IPv6: result.IPv6().IP(), Took: took}
	return nil
}

// Detach removes a container. It returns how long Remove took.
func (a *Agent) Detach(id string, reply *time.Duration) error {
	a.mu.Lock()
	c := a.containers[id]
	delete(a.containers, id)
	a.mu.Unlock()
	if c == nil {
		return fmt.Errorf("there is no container %s", id)
	}
	closed := c.server.close()
	begin := time.Now()
	err := a.rt.Remove(context.Background(), id, c.netNS())
	*reply = time.Since(begin)
	return errors.Join(closed, err, netns.Remove(c.netNS()))
}

// Empty detaches all containers, and returns the audit.
func (a *Agent) Empty(_ int, reply *[]string) error {
	a.attaching.Lock()
	a.closed = true
	a.attaching.Unlock()
	if a.rt == nil { // it has not started
		return nil
	}
	a.mu.Lock()
	ids := slices.Sorted(maps.Keys(a.containers))
	a.mu.Unlock()
	var errs []error
	for _, id := range ids {
		errs = append(errs, a.Detach(id, new(time.Duration)))
	}
	// What is on record besides would be left.
	all, err := a.rt.Attachments()
	errs = append(errs, err)
	for _, one := range all {
		errs = append(errs, fmt.Errorf("container %s is still on record", one.ContainerID))
	}
	if *reply, err = a.audit(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Moved is a container that Reconcile has attached again.
type Moved struct {
	Attached
	Why  string // the verdict of before
	Lost []netip.Addr
}

// Reconcile has package reconcile compare the host's containers with the kernel and flannel's
// lease, and replace those that are not as they should be.
func (a *Agent) Reconcile(_ int, reply *[]Moved) error {
	var expected []reconcile.Expected
	a.mu.Lock()
	for _, id := range slices.Sorted(maps.Keys(a.containers)) {
		c := a.containers[id]
		expected = append(expected, reconcile.Expected{ContainerID: id, NetNS: c.netNS(), Options: c.options()})
	}
	a.mu.Unlock()
	result, err := reconcile.Run(context.Background(), a.rt, expected, reconcile.Options{
		Decide: func(cni.Health) reconcile.Decision { return reconcile.Replace },
	})
	if err != nil {
		return err
	}
	for _, c := range result.Containers {
		if c.Result == nil {
			continue
		}
		*reply = append(*reply, Moved{
			Attached: Attached{ID: c.Health.ContainerID, IPv4: c.Result.IPv4().IP(), IPv6: c.Result.IPv6().IP()},
			Why:      c.Health.String(), Lost: c.Lost,
		})
	}
	return result.Err()
}

// Sent returns how many packets an interface has sent, 0 if there is none.
func (a *Agent) Sent(name string, reply *uint64) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err == nil {
		*reply = link.Attrs().Statistics.TxPackets
	}
	return err
}

// ForgetRoutes deletes the routes of flannel's host-gw. flanneld for VXLAN replaces those of IPv4
// alone: the kernel refuses an IPv6 gateway behind a tunnel (EINVAL) to which another route leads.
func (a *Agent) ForgetRoutes(_ int, _ *int) error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(nil, family)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if gateway, ok := netip.AddrFromSlice(r.Gw); ok && onWire(gateway.Unmap()) {
				if err := netlink.RouteDel(&r); err != nil {
					return fmt.Errorf("delete %v: %w", r, err)
				}
			}
		}
	}
	return nil
}
