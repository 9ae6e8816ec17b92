package cnitest

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

func (c *contract) remove() {
	path, _ := c.attach("c1")
	c.is("bad ID", c.Remove(c.ctx, "a/b", path), cni.ErrInvalidArgument)
	c.is("unknown network", c.Remove(c.ctx, "c1", path, cni.WithNetwork("none")), cni.ErrNotFound)
	c.wantRecorded("after refusals", "c1/eth0 pods attached", "c1/eth1 tiny attached")

	expect.NoError(c, c.Remove(c.ctx, "c1", path, onTiny))
	c.wantRecorded("after one network", "c1/eth0 pods attached")
	expect.NoError(c, c.Remove(c.ctx, "c1", path, onTiny), c.Remove(c.ctx, "c1", path))
	c.wantRecorded("after the other")
	expect.NoError(c, c.Remove(c.ctx, "c1", path), c.Remove(c.ctx, "never", path), c.Remove(c.ctx, "never", ""))

	path, _ = c.attach("c1")
	c.EndNetNS(path)
	expect.NoError(c, c.Remove(c.ctx, "c1", path))
	c.wantRecorded("after the end of the namespace")
	c.attach("c1")
	bare, err := c.New(cni.WithOwner(contractOwner), cni.WithMinNetworkCount(0))
	expect.NoError(c, err)
	expect.NoError(c, bare.Remove(c.ctx, "c1", ""))
	c.wantRecorded("after Remove by a Runtime without networks")
}

func (c *contract) removeFails() {
	path, _ := c.attach("c1")
	c.FailAt("DEL", "tiny", types.NewError(123, "no", ""))
	err := c.Remove(c.ctx, "c1", path)
	expect.Same(c, "container", c.left(err).ContainerID, "c1")
	if e := c.failure(err); e.Op != "DEL" || e.Network != "tiny" || e.Plugin != ContractPlugin || e.Code != 123 {
		c.Errorf("error %+v", *e)
	}
	all, err := c.Attachments()
	expect.NoError(c, err)
	if len(all) != 2 {
		c.Fatalf("on record: %+v", all)
	}
	i := slices.IndexFunc(all, func(a cni.Attachment) bool { return a.Network == "tiny" })
	if a := all[i]; a.State != cni.Failed || a.Failures != 1 || a.LastTry.IsZero() || !strings.Contains(a.LastError, "no") {
		c.Errorf("the one that failed: %+v", a)
	}
	if a := all[1-i]; a.State != cni.Detaching || a.Failures != 0 {
		c.Errorf("the other: %+v", a)
	}
	c.left(c.Remove(c.ctx, "c1", path))
	c.FailAt("DEL", "tiny", nil)
	expect.NoError(c, c.Remove(c.ctx, "c1", path))
	c.wantRecorded("after Remove")
}

func (c *contract) check() {
	path, _ := c.attach("c1")
	expect.NoError(c, c.Check(c.ctx, "c1", path), c.Check(c.ctx, "c1", path, onTiny))
	c.FailAt("CHECK", "tiny", types.NewError(123, "no", ""))
	if e := c.failure(c.Check(c.ctx, "c1", path)); e.Op != "CHECK" || e.Network != "tiny" || e.Plugin != ContractPlugin || e.Code != 123 {
		c.Errorf("error %+v", *e)
	}
	expect.NoError(c, c.Check(c.ctx, "c1", path, onPods))
	c.FailAt("CHECK", "tiny", nil)
	expect.NoError(c, c.Remove(c.ctx, "c1", path, onTiny), c.Check(c.ctx, "c1", path, onPods))
	c.is("a network that it is not attached to", c.Check(c.ctx, "c1", path, onTiny), cni.ErrNotAttached)
	c.is("an unknown network", c.Check(c.ctx, "c1", path, cni.WithNetwork("none")), cni.ErrNotFound)
	c.Break("c1")
	if e := c.failure(c.Check(c.ctx, "c1", path)); e.Op != "CHECK" || e.Network != "pods" {
		c.Errorf("error %+v", *e)
	}
	c.detach("c1")
}

func (c *contract) load() {
	empty, err := c.New(cni.WithOwner(contractOwner), cni.WithPluginConfDir("/nonexistent"), cni.WithStatusCache(0))
	expect.NoError(c, err)
	c.is("Status without networks", empty.Status(), cni.ErrCNINotInitialized)
	c.is("Ready without networks", empty.Ready(c.ctx), cni.ErrCNINotInitialized)
	_, err = empty.Setup(c.ctx, "c1", c.NetNS())
	c.is("Setup without networks", err, cni.ErrCNINotInitialized)
	c.is("Check without networks", empty.Check(c.ctx, "c1", c.NetNS()), cni.ErrCNINotInitialized)
	expect.NoError(c, empty.Remove(c.ctx, "c1", ""))
	c.is("Load of an empty directory", empty.Load(cni.WithDefaultConf), cni.ErrCNINotInitialized, cni.ErrLoad)

	expect.NoError(c, empty.Load(cni.WithLoNetwork, cni.WithConfListBytes([]byte(contractPods))))
	expect.NoError(c, empty.Status(), empty.StatusContext(c.ctx))
	config := empty.GetConfig()
	if len(config.Networks) != 2 || config.Networks[0].IFName != "lo" || config.Networks[1].IFName != "eth1" || config.Networks[1].Config.Name != "pods" {
		c.Errorf("configuration %s", c.asText(config))
	}
	c.is("a bad Load", empty.Load(cni.WithConfListBytes([]byte("{"))), cni.ErrInvalidConfig, cni.ErrLoad)
	expect.Same(c, "networks after a bad Load", len(empty.GetConfig().Networks), 2)
	path := c.NetNS()
	result, err := empty.Setup(c.ctx, "c1", path)
	expect.NoError(c, err)
	if lo := result.Interfaces["lo"]; lo == nil || len(lo.IPConfigs) != 2 || lo.Sandbox != path {
		c.Errorf("result %s", c.asText(result))
	}
	expect.NoError(c, empty.Remove(c.ctx, "c1", path))

	c.FailAt("STATUS", "pods", types.NewError(50, "not now", ""))
	if e := c.failure(empty.Status()); e.Op != "STATUS" || e.Network != "pods" || e.Code != 50 {
		c.Errorf("error %+v", *e)
	}
	c.failure(empty.Ready(c.ctx))
	if e := c.failure(empty.StatusOf(c.ctx, []byte(contractTiny), []byte(contractPods))); e.Op != "STATUS" || e.Network != "pods" || e.Code != 50 {
		c.Errorf("error %+v", *e)
	}
	expect.NoError(c, empty.StatusOf(c.ctx, []byte(contractTiny)), empty.StatusOf(c.ctx))
	c.is("StatusOf a bad configuration", empty.StatusOf(c.ctx, []byte("{")), cni.ErrInvalidConfig)
	c.FailAt("STATUS", "pods", nil)
	expect.NoError(c, empty.Status())
}

func (c *contract) notAttached() {
	path := c.NetNS()
	_, err := c.Lookup("c1")
	c.is("Lookup", err, cni.ErrNotAttached)
	_, err = c.Lookup("a/b")
	c.is("Lookup of a bad ID", err, cni.ErrInvalidArgument)
	c.is("Check", c.Check(c.ctx, "c1", path), cni.ErrNotAttached)
	c.is("Check without a path", c.Check(c.ctx, "c1", ""), cni.ErrNotAttached, cni.ErrInvalidNetNS)
	_, err = c.Repair(c.ctx, "c1", cni.RepairOptions{})
	c.is("Repair", err, cni.ErrNotAttached)
	_, err = c.Repair(c.ctx, "a/b", cni.RepairOptions{})
	c.is("Repair of a bad ID", err, cni.ErrInvalidArgument)
	c.is("Hold", c.Hold(c.ctx, cni.Hold{ContainerID: "c1"}), cni.ErrNotAttached)
	expect.Same(c, "verdict", c.state("c1"), cni.StateNotAttached)
	report, err := c.Health(c.ctx, cni.HealthOptions{})
	expect.NoError(c, err)
	expect.Same(c, "verdicts", len(report.Containers), 0)
	recovered, err := c.Recover(c.ctx)
	c.wantReport("Recover", recovered, err, want{})
	collected, err := c.GC(c.ctx, cni.GCOptions{KeepNone: true})
	c.wantReport("GC", collected, err, want{})
	found, err := c.CleanUp(c.ctx, cni.CleanUpTarget{ContainerID: "c1", Network: "pods", IfName: "eth0"})
	expect.NoError(c, err)
	expect.Same(c, "found by CleanUp", len(found), 0)
}

func (c *contract) attachments() {
	ports := []cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "udp", HostIP: "127.0.0.1"}}
	path, _ := c.attach("c1", onPods, cni.WithCapabilityPortMap(ports), cni.WithArgs("IgnoreUnknown", "1"),
		cni.WithLabels(map[string]string{"L": "v"}), cni.WithMetadata(map[string]string{"pod": "p"}))
	defer c.detach("c1")
	all, err := c.Attachments()
	expect.NoError(c, err)
	if len(all) != 1 || all[0].Since.IsZero() {
		c.Fatalf("attachments %+v", all)
	}
	c.attach("c2", onPods)
	defer c.detach("c2")
	of, err := c.AttachmentsOf("c1")
	expect.NoError(c, err)
	expect.Same(c, "attachments of one container", c.asText([]any{of}), c.asText([]any{all}))
	of, err = c.AttachmentsOf("never")
	if err != nil || len(of) != 0 {
		c.Errorf("a container that is not attached has %+v, %v", of, err)
	}
	_, err = c.AttachmentsOf("a/b")
	c.is("a bad ID", err, cni.ErrInvalidArgument)
	a := all[0]
	expect.Same(c, "attachment", c.asText([]any{a.ContainerID, a.Network, a.IfName, a.NetNS, a.Owner, a.State, a.Ports, a.Args, a.Metadata, a.Failures}),
		c.asText([]any{"c1", "pods", "eth0", path, contractOwner, cni.Attached, ports,
			map[string]string{"IgnoreUnknown": "1", "L": "v"}, map[string]string{"pod": "p"}, 0}))
	var addresses []string
	for _, addr := range a.Addresses {
		addresses = append(addresses, addr.Prefix.String())
	}
	expect.Same(c, "addresses", addresses, []string{"10.61.0.2/24", "fd61::2/64"})
}

func (c *contract) metadata() {
	c.attach("c1", cni.WithMetadata(map[string]string{"pod": "p", "pid": "0"}))
	set := func(rt Runtime, values map[string]string) error { return rt.SetMetadata(c.ctx, "c1", values) }
	expect.NoError(c, set(c, map[string]string{"pid": "7"}), set(c, nil))
	c.is("an empty key", set(c, map[string]string{"": "x"}), cni.ErrInvalidArgument)
	c.is("too much", set(c, map[string]string{"x": strings.Repeat("x", 5000)}), cni.ErrInvalidArgument)
	c.is("another owner", set(c.start(cni.WithOwner("other")), map[string]string{"x": "x"}), cni.ErrNotAttached)
	c.is("not attached", c.SetMetadata(c.ctx, "never", nil), cni.ErrNotAttached)
	c.is("a bad ID", c.SetMetadata(c.ctx, "a/b", nil), cni.ErrInvalidArgument)
	c.Runtime = c.start()
	all, err := c.Attachments()
	expect.NoError(c, err)
	for _, a := range all {
		expect.Same(c, "metadata", a.Metadata, map[string]string{"pod": "p", "pid": "7"})
	}
	c.detach("c1")
}

func (c *contract) addresses() {
	_, result := c.attach("c1")
	c.attach("c2", onPods)
	for _, addr := range []netip.Addr{result.IPv4().IP(), result.IPv6().IP(), netip.AddrFrom16(result.IPv4().IP().As16())} {
		found, err := c.LookupAddr(addr)
		expect.NoError(c, err)
		if len(found) != 1 || found[0].ContainerID != "c1" || found[0].IfName != "eth0" || found[0].State != cni.Attached || len(found[0].Addresses) != 2 {
			c.Errorf("attachments with %v: %+v", addr, found)
		}
	}
	_, err := c.LookupAddr(netip.MustParseAddr("10.61.0.250"))
	c.is("an address that nobody has", err, cni.ErrNotAttached)
	for _, addr := range []string{"127.0.0.1", "::", "ff02::1"} {
		_, err := c.LookupAddr(netip.MustParseAddr(addr))
		c.is(addr, err, cni.ErrInvalidArgument)
	}
	for _, note := range []bool{false, true} {
		now, err := c.Refresh(c.ctx, "c1", cni.RefreshOptions{Note: note})
		expect.NoError(c, err)
		expect.Same(c, "result of Refresh", c.asText(now), c.asText(result))
	}
	again, err := c.Lookup("c1")
	expect.NoError(c, err)
	expect.Same(c, "result of Lookup after Refresh", c.asText(again), c.asText(result))
	_, err = c.Refresh(c.ctx, "never", cni.RefreshOptions{})
	c.is("Refresh of what is not attached", err, cni.ErrNotAttached)
	c.detach("c1", "c2")
	_, err = c.LookupAddr(result.IPv4().IP())
	c.is("an address that was released", err, cni.ErrNotAttached)
}

func (c *contract) cleansUp() {
	path, _ := c.attach("c1")
	c.FailAt("DEL", "pods", errScripted)
	c.left(c.Remove(c.ctx, "c1", path))
	target := cni.CleanUpTarget{ContainerID: "c1", Network: "pods", IfName: "eth0", DryRun: true}
	found, err := c.CleanUp(c.ctx, target)
	expect.NoError(c, err)
	if len(found) == 0 {
		c.Error("a dry run finds nothing")
	}
	c.wantRecorded("after a dry run", "c1/eth0 pods failed", "c1/eth1 tiny detaching")
	target.DryRun = false
	found, err = c.CleanUp(c.ctx, target)
	expect.NoError(c, err)
	if len(found) == 0 {
		c.Error("CleanUp finds nothing")
	}
	c.wantRecorded("after CleanUp", "c1/eth1 tiny detaching")
	_, err = c.CleanUp(c.ctx, target)
	expect.NoError(c, err)
	_, err = c.CleanUp(c.ctx, cni.CleanUpTarget{ContainerID: "c1", Network: "pods"})
	c.is("no interface", err, cni.ErrInvalidArgument)
	expect.NoError(c, c.Remove(c.ctx, "c1", path))
	c.wantRecorded("after Remove")
}
