package cni_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
)

var stress = flag.Int("stress", 0, "how many containers to attach at once in the crowd tests; 0: as few as fit in CI")

// crowd is how many containers come at once, and how often.
func crowd() (containers, rounds int) {
	if *stress > 0 {
		return *stress, 4
	}
	return 30, 2
}

// crowdList is a network of everything whose plugins race on a cold host.
func (h *realHost) crowdList() []byte {
	c := realCase{plugins: []string{
		bridgeConf(`"ipMasq": true, ` + hostLocal(v4Range)),
		`{"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"}`,
		`{"type": "portmap", "backend": "iptables", "snat": true, "capabilities": {"portMappings": true}}`,
	}}
	return c.conf("podnet", "1.0.0", h.path("ipam"))
}

// The specification leaves it to plugins to bear company, and the reference
// plugins do not on a host where nothing of theirs exists yet (FAULTS F16, M9).
func TestRealCrowdOnColdHost(t *testing.T) {
	containers, rounds := crowd()
	for _, runtimes := range []int{1, 2} {
		for round := range rounds {
			t.Run(fmt.Sprintf("%d runtimes/round %d", runtimes, round), func(t *testing.T) {
				h := newRealHost(t)
				// Locks between processes belong to open files, so that two
				// Runtimes here are to each other what two processes are.
				var rts []*cni.Runtime
				for range runtimes {
					rts = append(rts, h.real(cni.WithHostNetNS(h.path("netns", "host")), cni.WithConfListBytes(h.crowdList())))
				}
				h.attachCrowd(rts, containers)
			})
		}
	}
}

func (h *realHost) attachCrowd(rts []*cni.Runtime, containers int) {
	h.t.Helper()
	paths := make([]string, containers)
	for i := range paths {
		paths[i] = h.container(fmt.Sprintf("c%d", i))
	}
	before := h.audit()
	addresses := make([]string, containers)
	start := time.Now()
	err := inParallel(containers, func(i int) error {
		result, err := rts[i%len(rts)].Setup(context.Background(), fmt.Sprintf("c%d", i), paths[i],
			cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: int32(10000 + i), ContainerPort: 80, Protocol: "tcp"}}))
		if err == nil {
			addresses[i] = result.IPv4().Prefix.String()
		}
		return err
	})
	attachTook := time.Since(start)
	if err != nil {
		h.t.Error(err)
	}
	h.wantNoneTwice(before, addresses)
	start = time.Now()
	if err := inParallel(containers, func(i int) error {
		return rts[i%len(rts)].Remove(context.Background(), fmt.Sprintf("c%d", i), paths[i])
	}); err != nil {
		h.t.Error(err)
	}
	h.t.Logf("%d containers at once: attached in %v, detached in %v", containers, attachTook, time.Since(start))
	h.wantClean(before)
}

func inParallel(n int, fn func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = fn(i)
		}()
	}
	wg.Wait()
	return errors.Join(errs...)
}

// wantNoneTwice looks for what a race leaves: an address that two containers
// have, a rule that is there twice.
func (h *realHost) wantNoneTwice(before audit.Lines, addresses []string) {
	h.t.Helper()
	made, _ := audit.Diff(before, h.audit())
	rules := made.Without(func(l string) bool { return !strings.HasPrefix(l, "ip") && !strings.HasPrefix(l, "nft") })
	if len(rules) < 3*len(addresses) {
		h.t.Errorf("only %d rules for %d containers", len(rules), len(addresses))
	}
	for _, lines := range [][]string{rules, addresses} {
		seen := map[string]bool{}
		for _, l := range lines {
			if seen[l] {
				h.t.Errorf("twice: %s", l)
			}
			seen[l] = true
		}
	}
}

// Networks of one container are attached at the same time, and their results
// are in the order of the networks all the same.
func TestRealNetworksInParallelKeepTheirOrder(t *testing.T) {
	h := newRealHost(t)
	bridge := realCase{plugins: []string{bridgeConf(`"ipMasq": true, ` + hostLocal(v4Range))}}
	ptp := realCase{plugins: []string{ptpConf(hostLocal(`[{"subnet": "10.78.0.0/24"}]`))},
		routes: []string{"10.78.0.1/32", "10.78.0.0/24 via 10.78.0.1"}}
	r := h.real(cni.WithConfListBytes(bridge.conf("first", "1.0.0", h.path("ipam"))),
		cni.WithConfListBytes(ptp.conf("second", "1.0.0", h.path("ipam"))))
	for i := range 5 {
		id := fmt.Sprintf("c%d", i)
		path := h.container(id)
		before := h.audit()
		result, err := r.Setup(context.Background(), id, path)
		if err != nil {
			t.Fatal(err)
		}
		h.wantAsSaid(result, path, &ptp)
		var got []string
		for _, n := range result.Networks {
			for _, i := range n.Interfaces {
				if i.Sandbox != "" {
					got = append(got, fmt.Sprint(n.Name, " ", i.Name, " ", i.Addresses[0].Prefix.Masked()))
				}
			}
		}
		if want := []string{"first eth0 10.77.0.0/24", "second eth1 10.78.0.0/24"}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("result %q, want %q", got, want)
		}
		if err := r.Check(context.Background(), id, path); err != nil {
			t.Error(err)
		}
		h.detach(r, id)
		h.wantClean(before)
	}
}
