package cnitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

// asText renders a value for comparison.
func (c *contract) asText(v any) string {
	c.Helper()
	data, err := json.Marshal(v)
	expect.NoError(c, err)
	return string(data)
}

func (c *contract) results() {
	path, result := c.attach("c1")
	defer c.detach("c1")
	var shape []string
	for _, n := range result.Networks {
		for _, i := range n.Interfaces {
			where := "host"
			if i.Sandbox != "" {
				where = i.Name
			}
			shape = append(shape, fmt.Sprintf("%s/%s: %s %d", n.Name, n.IfName, where, len(i.Addresses)))
			if i.Sandbox != "" && i.Sandbox != path || i.Network != n.Name || i.Mac == "" {
				c.Errorf("interface %+v of network %s, sandbox %s", *i, n.Name, path)
			}
		}
	}
	expect.Same(c, "interfaces", shape, []string{
		"pods/eth0: host 0", "pods/eth0: host 0", "pods/eth0: eth0 2",
		"tiny/eth1: host 0", "tiny/eth1: eth1 1",
	})
	expect.Same(c, "address", result.IPv4(), cni.Address{Prefix: netip.MustParsePrefix("10.61.0.2/24"), Gateway: netip.MustParseAddr("10.61.0.1")})
	expect.Same(c, "address", result.IPv6(), cni.Address{Prefix: netip.MustParsePrefix("fd61::2/64"), Gateway: netip.MustParseAddr("fd61::1")})
	expect.Same(c, "address", result.Networks[1].Interfaces[1].Addresses,
		[]cni.Address{{Prefix: netip.MustParsePrefix("10.62.0.3/29"), Gateway: netip.MustParseAddr("10.62.0.1")}})
	var routes []string
	for _, r := range result.Routes {
		routes = append(routes, r.Dst.String())
	}
	slices.Sort(routes)
	expect.Same(c, "routes", routes, []string{"0.0.0.0/0", "198.51.100.0/24", "::/0"})
	expect.Same(c, "DNS", result.DNS, []types.DNS{{Nameservers: []string{"10.61.0.1"}}, {}})
	if len(result.Interfaces["eth0"].IPConfigs) != 2 || len(result.Interfaces["eth1"].IPConfigs) != 1 || len(result.Raw()) != 2 {
		c.Errorf("result %s", c.asText(result))
	}
	again, err := c.Lookup("c1")
	expect.NoError(c, err)
	expect.Same(c, "result of Lookup", c.asText(again), c.asText(result))
	_, second := c.attach("c2")
	expect.Same(c, "address of the second", second.IPv4().Prefix.String(), "10.61.0.3/24")
	c.detach("c2")
	c.wantRecorded("after the second was removed", "c1/eth0 pods attached", "c1/eth1 tiny attached")
}

func (c *contract) options() {
	_, result := c.attach("c1",
		cni.WithNetwork("pods", cni.WithInterfaceName("net7"), cni.WithCapabilityIPs("10.61.0.77")),
		cni.WithArgs("IgnoreUnknown", "1"))
	expect.Same(c, "interface", result.Networks[0].IfName, "net7")
	expect.Same(c, "requested address", result.IPv4().Prefix.String(), "10.61.0.77/24")
	if result.Interfaces["net7"] == nil || result.Interfaces["eth0"] == nil || len(result.Interfaces["eth0"].IPConfigs) != 0 {
		c.Errorf("result %s", c.asText(result))
	}
	_, err := c.Setup(c.ctx, "c2", c.NetNS(), cni.WithNetwork("pods", cni.WithCapabilityIPs("10.61.0.77")))
	if e := c.failure(err); e.Op != "ADD" || e.Network != "pods" || e.Plugin != "bridge" || e.ContainerID != "c2" {
		c.Errorf("the address of another container: %+v", e)
	}
	c.detach("c1")
	serially, err := c.SetupSerially(c.ctx, "c3", c.NetNS(), onTiny, onPods)
	expect.NoError(c, err)
	expect.Same(c, "order", []string{serially.Networks[0].Name, serially.Networks[1].Name}, []string{"tiny", "pods"})
	expect.Same(c, "interface", serially.Networks[0].IfName, "eth1")
	c.detach("c3")
}

func (c *contract) refusals() {
	path := c.NetNS()
	port := func(p ...cni.PortMapping) cni.NamespaceOpts { return cni.WithCapabilityPortMap(p) }
	for what, bad := range map[string]struct {
		id, path string
		opts     []cni.NamespaceOpts
		kinds    []error
	}{
		"no ID":                      {"", path, nil, []error{cni.ErrInvalidArgument}},
		"bad ID":                     {"a/b", path, nil, []error{cni.ErrInvalidArgument}},
		"no path":                    {"c1", "", nil, []error{cni.ErrInvalidNetNS}},
		"unknown network":            {"c1", path, []cni.NamespaceOpts{cni.WithNetwork("none")}, []error{cni.ErrNotFound}},
		"interface name outside":     {"c1", path, []cni.NamespaceOpts{cni.WithInterfaceName("a")}, []error{cni.ErrInvalidArgument}},
		"one interface name twice":   {"c1", path, []cni.NamespaceOpts{onPods, cni.WithNetwork("tiny", cni.WithInterfaceName("eth0"))}, []error{cni.ErrInvalidArgument}},
		"bad argument":               {"c1", path, []cni.NamespaceOpts{cni.WithArgs("a", "b;c")}, []error{cni.ErrInvalidArgument}},
		"bad port":                   {"c1", path, []cni.NamespaceOpts{port(cni.PortMapping{HostPort: 0, ContainerPort: 80})}, []error{cni.ErrInvalidArgument}},
		"a port twice in one call":   {"c1", path, []cni.NamespaceOpts{port(cni.PortMapping{HostPort: 80, ContainerPort: 80}, cni.PortMapping{HostPort: 80, ContainerPort: 81})}, []error{cni.ErrInvalidArgument, cni.ErrPortInUse}},
		"metadata with an empty key": {"c1", path, []cni.NamespaceOpts{cni.WithMetadata(map[string]string{"": "x"})}, []error{cni.ErrInvalidArgument}},
	} {
		result, err := c.Setup(c.ctx, bad.id, bad.path, bad.opts...)
		c.is(what, err, bad.kinds...)
		if result != nil {
			c.Errorf("%s: a result beside the error", what)
		}
	}
	gone := c.NetNS()
	c.EndNetNS(gone)
	_, err := c.Setup(c.ctx, "c1", gone)
	c.is("a namespace that is gone", err, cni.ErrInvalidNetNS)
	c.wantRecorded("after refusals")
}

func (c *contract) twice() {
	path, _ := c.attach("c1", onPods)
	_, err := c.Setup(c.ctx, "c1", path, onPods)
	c.is("the same interface", err, cni.ErrAlreadyAttached)
	_, err = c.Setup(c.ctx, "c1", path)
	c.is("one interface more", err, cni.ErrAlreadyAttached)
	_, err = c.Setup(c.ctx, "c1", c.NetNS(), onTiny)
	c.is("another namespace", err, cni.ErrInvalidNetNS)
	_, err = c.Setup(c.ctx, "c2", path, onPods)
	c.is("the interface of another container", err, cni.ErrAlreadyAttached)
	c.wantRecorded("after refusals", "c1/eth0 pods attached")

	_, err = c.Setup(c.ctx, "c1", path, onTiny)
	expect.NoError(c, err)
	both, err := c.Lookup("c1")
	expect.NoError(c, err)
	expect.Same(c, "networks of both calls", len(both.Networks), 2)
	expect.NoError(c, c.Check(c.ctx, "c1", path))
	c.detach("c1")
	c.wantRecorded("after Remove")
}

func (c *contract) exhaustion() {
	c.attach("c1", onTiny)
	_, second := c.attach("c2", onTiny)
	expect.Same(c, "last address", second.IPv4().Prefix.String(), "10.62.0.4/29")
	_, err := c.Setup(c.ctx, "c3", c.NetNS(), onTiny)
	if e := c.failure(err); e.Op != "ADD" || e.Network != "tiny" || e.Plugin != "ptp" || e.IfName != "eth1" {
		c.Errorf("a full subnet: %+v", e)
	}
	c.wantRecorded("with a full subnet", "c1/eth1 tiny attached", "c2/eth1 tiny attached")
	c.detach("c1")
	_, third := c.attach("c3", onTiny)
	expect.Same(c, "address that was released", third.IPv4().Prefix.String(), "10.62.0.3/29")
	c.detach("c2", "c3")
}

// errScripted is the failure of a plugin in these tests.
var errScripted = errors.New("scripted")

func (c *contract) rollBack() {
	path := c.NetNS()
	c.FailAt("ADD", "tiny", types.NewError(123, "no tiny", "at all"))
	result, err := c.Setup(c.ctx, "c1", path)
	e := c.failure(err)
	if e.Op != "ADD" || e.Network != "tiny" || e.Plugin != ContractPlugin || e.ContainerID != "c1" || e.IfName != "eth1" || e.Code != 123 || e.Msg != "no tiny" || e.Details != "at all" {
		c.Errorf("error %+v", *e)
	}
	if result != nil || errors.As(err, new(*cni.LeftoverError)) {
		c.Errorf("result %v, error %v", result, err)
	}
	c.wantRecorded("after a failed Setup")
	_, err = c.Lookup("c1")
	c.is("Lookup after a failed Setup", err, cni.ErrNotAttached)
	c.FailAt("ADD", "tiny", nil)
	_, err = c.Setup(c.ctx, "c1", path)
	expect.NoError(c, err)
	c.detach("c1")
}

func (c *contract) noRollBack() {
	path := c.NetNS()
	c.FailAt("ADD", "pods", errScripted)
	c.FailAt("DEL", "pods", errScripted)
	_, err := c.Setup(c.ctx, "c1", path)
	c.failure(err)
	expect.Same(c, "container of the leftovers", c.left(err).ContainerID, "c1")
	c.is("the failure", err, errScripted)
	c.wantRecorded("after a roll back that failed", "c1/eth0 pods failed", "c1/eth1 tiny detaching")
	_, err = c.Lookup("c1")
	if err != nil {
		c.is("Lookup of what is left", err, cni.ErrNotAttached)
	}
	c.FailAt("ADD", "pods", nil)
	c.FailAt("DEL", "pods", nil)
	_, err = c.Setup(c.ctx, "c1", path)
	expect.NoError(c, err)
	c.wantRecorded("after another Setup", "c1/eth0 pods attached", "c1/eth1 tiny attached")
	c.detach("c1")
	c.wantRecorded("after Remove")
}

func (c *contract) cancelled() {
	ctx, cancel := context.WithCancel(c.ctx)
	cancel()
	path := c.NetNS()
	_, err := c.Setup(ctx, "c1", path)
	c.is("a context that has ended", err, context.Canceled)
	c.wantRecorded("after that")
	_, err = c.Setup(c.ctx, "c1", path)
	expect.NoError(c, err)
	expect.NoError(c, c.Remove(ctx, "c1", path))
	c.wantRecorded("after Remove with a context that has ended")
}

func (c *contract) parallel() {
	const containers, calls = 8, 4
	paths := make([]string, containers)
	for i := range paths {
		paths[i] = c.NetNS()
	}
	var mu sync.Mutex
	addresses, attached := map[string]bool{}, 0
	var wg sync.WaitGroup
	for i := range containers * calls {
		wg.Add(1)
		go func() {
			defer wg.Done()
			result, err := c.Setup(c.ctx, fmt.Sprint("c", i%containers), paths[i%containers], onPods)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				c.is("another call for the container", err, cni.ErrAlreadyAttached)
				return
			}
			attached++
			addresses[result.IPv4().Prefix.String()] = true
		}()
	}
	wg.Wait()
	if attached != containers || len(addresses) != containers {
		c.Errorf("%d calls have succeeded for %d containers, which have %d addresses", attached, containers, len(addresses))
	}
	for i := range containers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := c.Remove(c.ctx, fmt.Sprint("c", i), paths[i]); err != nil {
				c.Error(err)
			}
		}()
	}
	wg.Wait()
	c.wantRecorded("after all are removed")
}

// replaces: the leftovers of a container whose namespace is gone are removed for the
// next of that ID.
func (c *contract) replaces() {
	path, _ := c.attach("c1", onPods)
	c.EndNetNS(path)
	c.Runtime = c.start() // an earlier one may keep the namespace
	_, err := c.Setup(c.ctx, "c1", c.NetNS(), onPods)
	expect.NoError(c, err)
	c.wantRecorded("after the second Setup", "c1/eth0 pods attached")
	c.detach("c1")
}

func (c *contract) makesNetNS() {
	result, err := c.Setup(c.ctx, "c1", "", cni.WithNewNetNS())
	expect.NoError(c, err)
	path := result.NetNS
	if path == "" || result.Networks[1].Interfaces[1].Sandbox != path {
		c.Fatalf("result %s", c.asText(result))
	}
	again, err := c.Lookup("c1")
	expect.NoError(c, err, c.Check(c.ctx, "c1", path))
	expect.Same(c, "result of Lookup", c.asText(again), c.asText(result))
	_, err = c.Setup(c.ctx, "c1", "", cni.WithNewNetNS())
	c.is("attached already", err, cni.ErrAlreadyAttached)
	expect.NoError(c, c.Remove(c.ctx, "c1", "", onTiny))
	_, err = c.Setup(c.ctx, "c1", "", cni.WithNewNetNS(), onTiny)
	c.is("attached by another interface", err, cni.ErrAlreadyAttached)
	taken := c.NetNS()
	for _, there := range []string{path, taken} {
		_, err = c.Setup(c.ctx, "c2", there, cni.WithNewNetNS())
		c.is("a path that exists", err, cni.ErrInvalidNetNS, fs.ErrExist)
	}
	expect.NoError(c, c.Remove(c.ctx, "c1", ""))
	_, err = c.Setup(c.ctx, "c1", path)
	c.is("a namespace that was deleted", err, cni.ErrInvalidNetNS)

	fresh := taken + "-new"
	c.FailAt("ADD", "tiny", errScripted)
	_, err = c.Setup(c.ctx, "c1", fresh, cni.WithNewNetNS())
	c.is("a Setup that fails", err, errScripted)
	c.FailAt("ADD", "tiny", nil)
	result, err = c.Setup(c.ctx, "c1", fresh, cni.WithNewNetNS())
	expect.NoError(c, err)
	expect.Same(c, "path", result.NetNS, fresh)
	given, err := c.Setup(c.ctx, "c2", taken, onPods)
	expect.NoError(c, err)
	expect.Same(c, "path of a namespace of the caller's", given.NetNS, "")
	c.detach("c1", "c2")
	c.wantRecorded("after Remove")
}

func (c *contract) networkTwice() {
	named := func(name string) cni.NamespaceOpts { return cni.WithNetwork("pods", cni.WithInterfaceName(name)) }
	path, result := c.attach("c1", onPods, named("net7"))
	expect.Same(c, "networks", len(result.Networks), 2)
	expect.NoError(c, c.Remove(c.ctx, "c1", path, named("other")))
	c.wantRecorded("after Remove of another interface", "c1/eth0 pods attached", "c1/net7 pods attached")
	expect.NoError(c, c.Remove(c.ctx, "c1", path, named("net7")))
	c.wantRecorded("after Remove of one", "c1/eth0 pods attached")
	_, err := c.Setup(c.ctx, "c1", path, named("net7"))
	expect.NoError(c, err, c.Remove(c.ctx, "c1", path, onPods))
	c.wantRecorded("after Remove of the network")
	gateways, err := c.Gateways("pods")
	expect.NoError(c, err)
	expect.Same(c, "gateways", len(gateways), 2)
	_, err = c.Gateways("none")
	c.is("gateways of an unknown network", err, cni.ErrNotFound)
}
