package behaviour_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

var stress = flag.Int("stress", 0, "how many containers to attach at once in the crowd tests; 0: as few as fit in CI")

// crowd returns the number of concurrent containers and the number of rounds.
func crowd() (containers, rounds int) {
	if *stress > 0 {
		return *stress, 4
	}
	return 12, 1 // M9 measures more of them
}

// crowdList is a network of everything whose plugins race on a cold host.
func (h *realHost) crowdList() []byte {
	c := testhost.Case{Plugins: []string{
		testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range)),
		`{"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"}`,
		`{"type": "portmap", "backend": "iptables", "snat": true, "capabilities": {"portMappings": true}}`,
	}}
	return c.Conf("podnet", "1.0.0", h.Path("ipam"))
}

// crowdCall is a process's task with its part of the crowd.
type crowdCall struct {
	Verb      string // ADD or DEL
	StateDir  string
	PluginDir string
	HostNetNS string
	Conf      []byte
	Members   []crowdMember
}

type crowdMember struct {
	ID, Path string
	Port     int32
}

// run attaches or detaches all containers concurrently and returns the
// addresses.
func (c crowdCall) run() ([]string, error) {
	r, err := cni.New(cni.WithStateDir(c.StateDir), cni.WithPluginDir([]string{c.PluginDir}),
		cni.WithHostNetNS(c.HostNetNS), cni.WithConfListBytes(c.Conf))
	if err != nil {
		return nil, err
	}
	addresses := make([]string, len(c.Members))
	err = testhost.InParallel(len(c.Members), func(i int) error {
		m := c.Members[i]
		if c.Verb == "DEL" {
			return r.Remove(context.Background(), m.ID, m.Path)
		}
		var opts []cni.NamespaceOpts
		if m.Port != 0 {
			opts = append(opts, cni.WithCapabilityPortMap(
				[]cni.PortMapping{{HostPort: m.Port, ContainerPort: 80, Protocol: "tcp"}}))
		}
		result, err := r.Setup(context.Background(), m.ID, m.Path, opts...)
		if err == nil {
			addresses[i] = result.IPv4().Prefix.String()
		}
		return err
	})
	return addresses, err
}

// crowdProcess marks a process that reads its call from its input.
const crowdProcess = "EMBEDCNI_TEST_CROWD"

// crowdMain is the main function of such a process. It returns the exit code.
func crowdMain() int {
	var c crowdCall
	err := json.NewDecoder(os.Stdin).Decode(&c)
	if err == nil {
		var addresses []string
		if addresses, err = c.run(); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(addresses)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// elsewhere runs the calls in another process.
func (c crowdCall) elsewhere() (addresses []string, err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), crowdProcess+"=1")
	cmd.Stdin = bytes.NewReader(in)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.String())
	}
	return addresses, json.Unmarshal(out, &addresses)
}

// TestFault_F16_RealCrowdOnColdHost: the reference plugins look before they
// create. A dozen of them, concurrently on a host without their objects, create
// those twice (F16, M9).
func TestFault_F16_RealCrowdOnColdHost(t *testing.T) {
	containers, rounds := crowd()
	for _, processes := range []int{1, 2} {
		for round := range rounds {
			t.Run(fmt.Sprintf("processes %d/round %d", processes, round), func(t *testing.T) {
				newRealHost(t).attachCrowd(processes, containers)
			})
		}
	}
}

// TestRealCrowdBehindOneWithoutPorts: shared objects may have to wait for the
// first container that needs them. Portmap makes its chains for the first
// container with a port.
func TestRealCrowdBehindOneWithoutPorts(t *testing.T) {
	h := newRealHost(t)
	ahead := []crowdCall{{Members: []crowdMember{{ID: "ahead", Path: h.Container("ahead")}}}}
	before := h.Audit()
	h.inCrowd("ADD", ahead)
	containers, _ := crowd()
	h.attachCrowd(1, containers)
	h.inCrowd("DEL", ahead)
	h.WantClean(before)
}

func (h *realHost) attachCrowd(processes, containers int) {
	h.T.Helper()
	calls := make([]crowdCall, processes)
	for i := range containers {
		id := fmt.Sprintf("c%d", i)
		c := &calls[i%processes]
		c.Members = append(c.Members, crowdMember{id, h.Container(id), int32(10000 + i)})
	}
	before := h.Audit()
	addresses, took := h.inCrowd("ADD", calls)
	h.wantNoneTwice(before, addresses)
	if len(addresses) != containers {
		h.T.Errorf("%d addresses for %d containers", len(addresses), containers)
	}
	_, detachTook := h.inCrowd("DEL", calls)
	h.T.Logf("%d containers at once: attached in %v, detached in %v", containers, took, detachTook)
	h.WantClean(before)
}

// inCrowd runs all calls concurrently: one in this process, several in
// processes of their own.
func (h *realHost) inCrowd(verb string, calls []crowdCall) (addresses []string, took time.Duration) {
	h.T.Helper()
	results := make([][]string, len(calls))
	plugins, conf := testhost.ReferencePlugins(h.T), h.crowdList()
	for i := range calls {
		calls[i].Verb, calls[i].StateDir, calls[i].PluginDir = verb, h.Path("state"), plugins
		calls[i].HostNetNS, calls[i].Conf = h.Path("netns", "host"), conf
	}
	start := time.Now()
	err := testhost.InParallel(len(calls), func(i int) (err error) {
		if len(calls) == 1 {
			results[i], err = calls[i].run()
		} else {
			results[i], err = calls[i].elsewhere()
		}
		return err
	})
	if err != nil {
		h.T.Error(err)
	}
	return slices.Concat(results...), time.Since(start)
}

// wantNoneTwice searches for signs of a race: an address of two containers, or
// a duplicate rule.
func (h *realHost) wantNoneTwice(before audit.Lines, addresses []string) {
	h.T.Helper()
	made, _ := audit.Diff(before, h.Audit())
	rules := made.Without(func(l string) bool { return !strings.HasPrefix(l, "ip") && !strings.HasPrefix(l, "nft") })
	if len(rules) < 3*len(addresses) {
		h.T.Errorf("only %d rules for %d containers", len(rules), len(addresses))
	}
	for _, lines := range [][]string{rules, addresses} {
		seen := map[string]bool{}
		for _, l := range lines {
			if seen[l] {
				h.T.Errorf("twice: %s", l)
			}
			seen[l] = true
		}
	}
}

// TestRealNetworksInParallelKeepTheirOrder: a container's networks are attached
// concurrently, and the results are still in the networks' order.
func TestRealNetworksInParallelKeepTheirOrder(t *testing.T) {
	h := newRealHost(t)
	bridge := testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range))}}
	ptp := testhost.Case{Plugins: []string{testhost.PtpConf(testhost.HostLocal(`[{"subnet": "10.78.0.0/24"}]`))},
		Routes: []string{"10.78.0.1/32", "10.78.0.0/24 via 10.78.0.1"}}
	r := h.Real(cni.WithConfListBytes(bridge.Conf("first", "1.0.0", h.Path("ipam"))),
		cni.WithConfListBytes(ptp.Conf("second", "1.0.0", h.Path("ipam"))))
	for i := range 5 {
		id := fmt.Sprintf("c%d", i)
		path := h.Container(id)
		before := h.Audit()
		result, err := r.Setup(context.Background(), id, path)
		expect.NoError(t, err)
		h.WantAsSaid(result, path, &ptp)
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
		h.WantClean(before)
	}
}
