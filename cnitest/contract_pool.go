package cnitest

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

// contractPool is a network whose first plugin can run ahead of time.
const contractPool = `{"cniVersion": "1.1.0", "name": "pool", "plugins": [
	{"type": "ptp", "capabilities": {"ips": true}, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.64.0.0/24"}]]}},
	{"type": "` + ContractPlugin + `"}]}`

// newPool makes a pool of the Runtime.
func (c *contract) newPool(size int) (Pool, error) {
	c.Helper()
	switch rt := c.Runtime.(type) {
	case newsPool:
		return rt.NewPool(cni.PoolOptions{Size: size})
	case newsFakePool:
		return rt.NewPool(cni.PoolOptions{Size: size})
	case newsAnyPool:
		return rt.NewPool(cni.PoolOptions{Size: size})
	}
	c.Fatalf("%T has no NewPool", c.Runtime)
	return nil, nil
}

// pool makes a pool of one container, for the networks pods and pool, and waits for it.
func (c *contract) pool() Pool {
	c.Helper()
	c.Runtime = c.startWith(contractPods, contractPool)
	pool, err := c.newPool(1)
	expect.NoError(c, err)
	c.untilReady(pool)
	return pool
}

func (c *contract) untilReady(pool Pool) {
	c.Helper()
	expect.Eventually(c, "a container that is ready", func() bool { return pool.Ready() == 1 })
}

// ready returns the container that a pool has made and nobody uses.
func (c *contract) ready() cni.Attachment {
	c.Helper()
	all, err := c.Attachments()
	expect.NoError(c, err)
	i := slices.IndexFunc(all, func(a cni.Attachment) bool { return a.State == cni.Ready })
	if i < 0 {
		c.Fatalf("none is ready of %+v", all)
	}
	return all[i]
}

func (c *contract) pools() {
	_, err := c.newPool(0)
	c.is("a pool of none", err, cni.ErrInvalidArgument)
	pool := c.pool()
	w := c.ready()
	if w.Network != "pool" || w.IfName != "eth1" || len(w.Addresses) != 1 || !strings.HasPrefix(w.ContainerID, "warm-") {
		c.Errorf("ready is %+v", w)
	}
	// It is nobody's yet, and stays.
	report, err := c.startWith(contractPods, contractPool).Recover(c.ctx)
	c.wantReport("Recover", report, err, want{})
	report, err = c.GC(c.ctx, cni.GCOptions{KeepNone: true})
	c.wantReport("GC", report, err, want{})
	health, err := c.Health(c.ctx, cni.HealthOptions{})
	expect.NoError(c, err)
	expect.Same(c, "verdicts", len(health.Containers), 0)

	path, result, err := pool.Setup(c.ctx, "c1")
	expect.NoError(c, err)
	if path != w.NetNS || result.NetNS != path || len(result.Networks) != 2 || result.Networks[1].Interfaces[1].Addresses[0] != w.Addresses[0] {
		c.Errorf("path %s, result %s, and ready was %+v", path, c.asText(result), w)
	}
	again, err := c.Lookup("c1")
	expect.NoError(c, err, c.Check(c.ctx, "c1", path))
	expect.Same(c, "result of Lookup", c.asText(again), c.asText(result))
	_, _, err = pool.Setup(c.ctx, "c1")
	c.is("attached already", err, cni.ErrAlreadyAttached)
	c.untilReady(pool)

	expect.NoError(c, pool.Close(), pool.Close())
	_, _, err = pool.Setup(c.ctx, "c2")
	c.is("a pool that is closed", err, cni.ErrPoolClosed, os.ErrClosed)
	c.wantRecorded("after Close", "c1/eth0 pods attached", "c1/eth1 pool attached")
	c.detach("c1")
	_, err = c.Setup(c.ctx, "c1", path)
	c.is("a namespace that was deleted", err, cni.ErrInvalidNetNS)
}

// poolReplaces: containers that nobody can use, and Setups that can use none.
func (c *contract) poolReplaces() {
	pool := c.pool()
	dead := c.ready()
	c.EndNetNS(dead.NetNS)
	path, _, err := pool.Setup(c.ctx, "c1")
	expect.NoError(c, err)
	if path == dead.NetNS {
		c.Error("the container is in a namespace that has ended")
	}
	c.untilReady(pool)

	_, one, err := pool.Setup(c.ctx, "c2", onPods) // it is attached to pool too
	expect.NoError(c, err)
	expect.Same(c, "networks", []int{len(one.Networks), pool.Ready()}, []int{1, 1})
	_, asked, err := pool.Setup(c.ctx, "c5", cni.WithNetwork("pods"), cni.WithNetwork("pool", cni.WithCapabilityIPs("10.64.0.77")))
	expect.NoError(c, err)
	expect.Same(c, "address, and containers ready", fmt.Sprint(asked.Networks[1].Interfaces[1].Addresses[0].IP(), pool.Ready()), "10.64.0.77 1")
	c.detach("c5")
	port := cni.WithPorts(cni.Port{Label: "http", ContainerPort: 80})
	_, ported, err := pool.Setup(c.ctx, "c3", port)
	expect.NoError(c, err)
	if p, ok := ported.Port("http"); !ok || p.HostPort == 0 {
		c.Errorf("ports %v", ported.Requested)
	}
	c.FailAt("ADD", "pool", errScripted)
	c.untilReady(pool)
	path, result, err := pool.Setup(c.ctx, "c4")
	c.is("a Setup that fails", err, errScripted)
	if path != "" || result != nil {
		c.Errorf("path %q, result %v beside the error", path, result)
	}
	c.FailAt("ADD", "pool", nil)

	expect.NoError(c, c.Load(cni.WithConfListBytes([]byte(contractPods))))
	_, one, err = pool.Setup(c.ctx, "c4")
	expect.NoError(c, err)
	expect.Same(c, "networks after another Load", len(one.Networks), 1)
	expect.NoError(c, pool.Close())
	c.wantRecorded("after Close", "c1/eth0 pods attached", "c1/eth1 pool attached", "c2/eth0 pods attached",
		"c3/eth0 pods attached", "c3/eth1 pool attached", "c4/eth0 pods attached")
	c.detach("c1", "c2", "c3", "c4")
}
