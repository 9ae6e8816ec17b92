package flannel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/plugin"
)

const (
	v4   = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n"
	v6   = "FLANNEL_IPV6_NETWORK=fd00:10:244::/56\nFLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64\n"
	rest = "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
)

// node is a host's directory with flanneld's file, and a container.
type node struct {
	t          testing.TB
	dir, netns string
	// asked are the calls of delegates, as "VERB TYPE CONFIGURATION"; they fail with err.
	asked []string
	err   error
}

func newNode(t testing.TB, lease string) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir()}
	_, n.netns = plugintest.NetNS(t)
	n.lease(lease)
	return n
}

// lease writes flanneld's file; there is none if it is empty.
func (n *node) lease(text string) {
	n.t.Helper()
	path := filepath.Join(n.dir, "subnet.env")
	if text == "" {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			n.t.Fatal(err)
		}
		return
	}
	expect.NoError(n.t, os.WriteFile(path, []byte(text), 0o644))
}

// stdin returns a request configuration with these members.
func (n *node) stdin(members string) []byte {
	return []byte(fmt.Sprintf(`{"type": "flannel", "subnetFile": %q, "dataDir": %q, %s}`,
		filepath.Join(n.dir, "subnet.env"), filepath.Join(n.dir, "kept"), members))
}

func (n *node) env(verb string) []string {
	return []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=c1", "CNI_NETNS=" + n.netns, "CNI_IFNAME=eth0", "CNI_PATH=" + n.dir}
}

// ours runs the built-in plugin.
func (n *node) ours(verb, members string) error {
	call := chain.Call{Verb: verb, Plugin: "flannel", Env: n.env(verb), Stdin: n.stdin(members)}
	delegate := func(_ context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error) {
		n.asked = append(n.asked, verb+" "+typ+" "+string(config))
		address := net.IPNet{IP: net.IPv4(10, 244, 1, 2), Mask: net.CIDRMask(24, 32)}
		return &types100.Result{CNIVersion: types100.ImplementedSpecVersion, IPs: []*types100.IPConfig{{Address: address}}}, n.err
	}
	_, err := runner.InProcess(n.t.Context(), &Plugin{}, call, nil, delegate)
	return err
}

// theirs runs the reference plugin, whose delegates are not installed.
func (n *node) theirs(verb, members string) error {
	cmd := exec.CommandContext(n.t.Context(), refplugins.Flannel())
	cmd.Env, cmd.Stdin = n.env(verb), strings.NewReader(string(n.stdin(members)))
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (n *node) file() string { return filepath.Join(n.dir, "kept", "c1") }

// kept returns what is kept for the delegate as values, nil if nothing is, and forgets it.
func (n *node) kept() (config any) {
	n.t.Helper()
	data, err := os.ReadFile(n.file())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	expect.NoError(n.t, err, json.Unmarshal(data, &config), os.Remove(n.file()))
	return config
}

// same compares the delegate's configuration with the reference plugin's; both refuse the
// request or neither does.
func (n *node) same(members string) (config any) {
	n.t.Helper()
	err := n.theirs("ADD", members)
	theirs := n.kept()
	expect.That(n.t, err != nil, "theirs found a delegate")
	n.asked = nil
	err = n.ours("ADD", members)
	ours := n.kept()
	expect.That(n.t, (err == nil) == (ours != nil), "ours kept %v with %v", ours, err)
	expect.Same(n.t, "configuration for "+members, expect.JSON(n.t, marshal(n.t, ours)), expect.JSON(n.t, marshal(n.t, theirs)))
	if err == nil {
		typ := ours.(map[string]any)["type"]
		expect.Must(n.t, len(n.asked) == 1 && strings.HasPrefix(n.asked[0], fmt.Sprintf("ADD %v {", typ)), "asked %q", n.asked)
		_, config, _ := strings.Cut(n.asked[0], " {")
		expect.Same(n.t, "the delegate gets what is kept", expect.JSON(n.t, "{"+config), expect.JSON(n.t, marshal(n.t, ours)))
	}
	return ours
}

func marshal(t testing.TB, v any) string {
	t.Helper()
	return string(expect.Value(json.Marshal(v))(t))
}

// TestTheDelegatesConfigurationIsTheReferencePlugins for each lease and each configuration.
func TestTheDelegatesConfigurationIsTheReferencePlugins(t *testing.T) {
	const named = `"cniVersion": "0.4.0", "name": "net"`
	for what, lease := range map[string]string{
		"IPv4": v4 + rest, "IPv6": v6 + rest, "both": v4 + v6 + rest, "not masquerading": v4 + "FLANNEL_MTU=1500\nFLANNEL_IPMASQ=false\n",
		"in another order": "FLANNEL_IPMASQ=yes\n\n# a comment\nFLANNEL_MTU=1400\n" + v6 + "OTHER=1\n" + v4, "without its last line feed": v4 + strings.TrimSpace(rest),
		"with carriage returns": strings.ReplaceAll(v4+rest, "\n", "\r\n"), "twice": v4 + rest + strings.ReplaceAll(v4, "10.244", "10.99"),
		"missing": "", "empty": "\n", "no MTU": v4 + "FLANNEL_IPMASQ=true\n", "no masquerading": v4 + "FLANNEL_MTU=1\n", "no subnet": "FLANNEL_NETWORK=10.244.0.0/16\n" + rest,
		"no network": "FLANNEL_SUBNET=10.244.1.1/24\n" + rest, "a bad network": "FLANNEL_NETWORK=x\n" + rest, "a bad subnet": v4 + rest + "FLANNEL_SUBNET=10.244.1.1\n",
		"a bad MTU": v4 + rest + "FLANNEL_MTU=-1\n", "a huge MTU": v4 + rest + "FLANNEL_MTU=4294967296\n", "an empty network": v4 + rest + "FLANNEL_IPV6_NETWORK=\n",
	} {
		t.Run(what, func(t *testing.T) { newNode(t, lease).same(named) })
	}
	for _, members := range []string{
		`"name": "net"`, `"name": "net", "cniVersion": "0.3.1"`, `"name": "net", "cniVersion": "0.2.0"`,
		named + `, "delegate": null`, named + `, "delegate": {}`, named + `, "delegate": {"hairpinMode": true, "isDefaultGateway": true}`,
		named + `, "delegate": {"type": "bridge", "isGateway": false}`, named + `, "delegate": {"type": "ptp"}`, named + `, "delegate": {"type": "macvlan", "master": "eth0"}`,
		named + `, "delegate": {"mtu": 1300}`, named + `, "delegate": {"mtu": null, "ipMasq": null}`, named + `, "delegate": {"ipMasq": true}`, named + `, "delegate": {"ipMasq": false}`,
		named + `, "delegate": {"cniVersion": "1.0.0"}`, named + `, "delegate": {"runtimeConfig": {"mac": "x"}}`,
		named + `, "delegate": {"name": "other"}`, named + `, "delegate": {"ipam": {}}`, named + `, "delegate": {"type": 5}`, named + `, "delegate": {"type": null}`,
		named + `, "delegate": []`, named + `, "delegate": "bridge"`,
		named + `, "ipam": null`, named + `, "ipam": {}`, named + `, "ipam": {"type": "static"}`, named + `, "ipam": 5`,
		named + `, "ipam": {"dataDir": "/x", "subnet": "10.0.0.0/8", "ranges": 5}`, named + `, "ipam": {"routes": [{"dst": "0.0.0.0/0", "gw": "10.244.1.9", "x": 1}]}`,
		named + `, "ipam": {"routes": []}`, named + `, "ipam": {"routes": null}`, named + `, "ipam": {"routes": [{"dst": "x"}]}`, named + `, "ipam": {"routes": 5}`,
		named + `, "runtimeConfig": null`, named + `, "runtimeConfig": {}`, named + `, "runtimeConfig": {"mac": "02:00:00:00:00:01"}, "capabilities": {"mac": true}`,
		named + `, "runtimeConfig": 5`, named + `, "subnetFile": 5`, named + `, "subnetFile": ""`, named + `, "dataDir": 5`,
		named + `, "args": {"cni": {"ips": ["10.244.1.5"]}}, "dns": {"nameservers": ["1.1.1.1"]}, "ipMasq": true`, named + `, "Delegate": {"Type": "ptp", "MTU": 5}`,
	} {
		t.Run(members, func(t *testing.T) { newNode(t, v4+v6+rest).same(members) })
	}
}

// TestRandomConfigurations compares many more.
func TestRandomConfigurations(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	n := newNode(t, "")
	made := 0
	for range 150 {
		lease := pick(random, "FLANNEL_MTU=", "1450", "0", "1500", "65536", "x")
		lease += pick(random, "FLANNEL_IPMASQ=", "true", "false", "TRUE", "")
		lease += pick(random, "FLANNEL_NETWORK=", "10.244.0.0/16", "10.0.0.7/8", "10.244.0.0", "fd00::/16")
		lease += pick(random, "FLANNEL_SUBNET=", "10.244.1.1/24", "10.244.0.0/16", "10.244.1.1/33", "fd00::1/64")
		lease += pick(random, "FLANNEL_IPV6_NETWORK=", "fd00::/48", "fd00:1::1/56", "10.1.0.0/16")
		lease += pick(random, "FLANNEL_IPV6_SUBNET=", "fd00::1/64", "fd00:0:0:1::1/80", "::ffff:10.1.1.1/120")
		n.lease(lease + "\n")
		members := []string{`"name": "net"`}
		for _, of := range []struct {
			name   string
			values []string
		}{
			{"cniVersion", []string{`"0.3.0"`, `"0.3.1"`, `"0.4.0"`}},
			{"ipam", []string{object(random, "type", `"host-local"`, "routes", `[{"dst": "192.0.2.0/24"}, {"dst": "::/0", "gw": "fd00::1"}]`, "dataDir", `"/x"`, "x", `[1.5, "<&>"]`)}},
			{"delegate", []string{object(random, "type", `"ptp"`, "mtu", `1280`, "ipMasq", `true`, "isGateway", `false`, "bridge", `"br0"`, "vlanTrunk", `[{"id": 5}]`, "name", `"x"`)}},
			{"runtimeConfig", []string{object(random, "ips", `["10.244.1.9"]`, "mac", `null`)}},
		} {
			if i := random.IntN(len(of.values) + 1); i > 0 {
				members = append(members, fmt.Sprintf("%q: %s", of.name, of.values[i-1]))
			}
		}
		if n.same(strings.Join(members, ", ")) != nil {
			made++
		}
		if t.Failed() {
			t.Fatalf("with the lease\n%s", lease)
		}
	}
	expect.That(t, made >= 10, "only %d of the configurations are valid", made)
}

// pick returns a line with one of the values, the first most often, or none.
func pick(random *rand.Rand, key string, values ...string) string {
	switch i := random.IntN(3 * len(values)); {
	case i == 0:
		return ""
	case i < len(values):
		return key + values[i] + "\n"
	}
	return key + values[0] + "\n"
}

// object returns an object with some of the members, the last one seldom.
func object(random *rand.Rand, members ...string) string {
	var some []string
	for i := 0; i < len(members); i += 2 {
		last := i > 0 && i+2 == len(members)
		if random.IntN(2) == 0 && (!last || random.IntN(8) == 0) {
			some = append(some, fmt.Sprintf("%q: %s", members[i], members[i+1]))
		}
	}
	return "{" + strings.Join(some, ", ") + "}"
}

// TestNetworksOfALease: later reference plugins know several, each of which gets one route.
func TestNetworksOfALease(t *testing.T) {
	n := newNode(t, "FLANNEL_NETWORK=10.244.0.0/16,10.245.0.0/16,10.244.0.9/16\nFLANNEL_SUBNET=10.244.1.1/24\n"+
		"FLANNEL_IPV6_NETWORK=fd00:1::/32,fd00:2::/32\nFLANNEL_IPV6_SUBNET=fd00:1:0:1::1/64\n"+rest)
	expect.NoError(t, n.ours("ADD", `"cniVersion": "1.0.0", "name": "net"`))
	expect.Same(t, "kept", expect.JSON(t, marshal(t, n.kept())), expect.JSON(t, `{
		"cniVersion": "1.0.0", "name": "net", "type": "bridge", "isGateway": true, "ipMasq": false, "mtu": 1450,
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:1:0:1::/64"}]],
			"routes": [{"dst": "10.244.0.0/16"}, {"dst": "10.245.0.0/16"}, {"dst": "fd00:1::/32"}, {"dst": "fd00:2::/32"}]}}`))
}

// TestErrorsSayWhatIsWrong: the code, and the text without the directory.
func TestErrorsSayWhatIsWrong(t *testing.T) {
	const named = `"cniVersion": "1.1.0", "name": "net"`
	for _, tt := range []struct {
		verb, lease, members string
		code                 uint
		want                 string
	}{
		{"ADD", "", named, types.ErrTryAgainLater, "flanneld has not written its lease yet: open DIR/subnet.env: no such file or directory"},
		{"STATUS", "", named, 50, "flanneld has not written its lease yet: open DIR/subnet.env: no such file or directory"},
		{"STATUS", v4, named, 50, "DIR/subnet.env: it is missing FLANNEL_MTU, FLANNEL_IPMASQ"},
		{"ADD", rest, named, types.ErrInternal, "DIR/subnet.env: it is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET"},
		{"ADD", v4 + "FLANNEL_MTU\n", named, types.ErrInternal, `DIR/subnet.env: FLANNEL_MTU: strconv.ParseUint: parsing "": invalid syntax`},
		{"ADD", v4 + rest, named + `, "delegate": {"type": 5}`, types.ErrInvalidNetworkConfig, `"delegate": its "type" must be a string`},
		{"ADD", v4 + rest, named + `, "delegate": {"ipam": {}}`, types.ErrInvalidNetworkConfig, `"delegate" must not have "ipam": flannel sets it`},
		{"ADD", v4 + rest, named + `, "ipam": {"type": 5}`, types.ErrInvalidNetworkConfig, "json: cannot unmarshal number into Go struct field IPAM.ipam.type of type string"},
		{"STATUS", v4 + rest, named + `, "delegate": {"name": "x"}`, types.ErrInvalidNetworkConfig, `"delegate" must not have "name": flannel sets it`},
		{"DEL", "", named + `, "dataDir": []`, types.ErrDecodingFailure,
			`configuration of plugin "flannel": json: cannot unmarshal array into Go struct field FlannelConf.dataDir of type string`},
	} {
		n := newNode(t, tt.lease)
		err := n.ours(tt.verb, tt.members)
		said := strings.ReplaceAll(fmt.Sprint(err), n.dir, "DIR")
		expect.Same(t, tt.verb+" with "+tt.members, fmt.Sprint(plugintest.Code(err), " ", said), fmt.Sprint(tt.code, " ", tt.want))
		expect.Empty(t, "delegates asked", n.asked)
		expect.Same(t, "a file", expect.Exists(t, filepath.Join(n.dir, "kept")), false)
	}
}

// TestTheDelegateIsAsked for each verb but GC, with what its ADD got, and the result.
func TestTheDelegateIsAsked(t *testing.T) {
	const (
		named  = `"cniVersion": "1.1.0", "name": "net"`
		prev   = `"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.244.1.2/24"}]}`
		begins = `bridge {"cniVersion":"1.1.0",`
		lease  = `"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"isGateway":true,"mtu":1450,"name":"net",`
		ends   = `"type":"bridge"}`
	)
	n := newNode(t, v4+rest)
	expect.NoError(t, n.ours("STATUS", named), n.ours("ADD", named), n.ours("CHECK", named+", "+prev), n.ours("DEL", named+", "+prev), n.ours("DEL", named+", "+prev),
		n.ours("CHECK", named+", "+prev), n.ours("GC", named))
	expect.Same(t, "asked", n.asked, []string{
		"STATUS " + begins + lease + ends, "ADD " + begins + lease + ends, "CHECK " + begins + lease + prev + "," + ends, "DEL " + begins + lease + prev + "," + ends,
		"CHECK " + begins + lease + prev + "," + ends, // the file is gone, and the lease is the same
	})
}

// TestAFailedDelKeepsTheFile for the next one; so do files that it must not touch.
func TestAFailedDelKeepsTheFile(t *testing.T) {
	const named = `"cniVersion": "1.1.0", "name": "net"`
	n := newNode(t, v4+rest)
	n.err = plugin.Errorf(types.ErrTryAgainLater, "not now")
	expect.Says(t, "ADD", n.ours("ADD", named), `delegate "bridge": not now`)
	expect.Says(t, "DEL", n.ours("DEL", named), `delegate "bridge": not now`)
	expect.Same(t, "the file", expect.Exists(t, n.file()), true)
	n.err, n.asked = nil, nil
	expect.NoError(t, n.ours("DEL", `"cniVersion": "1.1.0", "name": "another"`))
	expect.Same(t, "the file of another network", expect.Exists(t, n.file()), true)
	expect.Empty(t, "asked by another network", n.asked)
	expect.NoError(t, n.ours("DEL", named))
	expect.Same(t, "the file", expect.Exists(t, n.file()), false)

	expect.NoError(t, os.WriteFile(n.file(), []byte(`{"name": "n`), 0o600))
	expect.Says(t, "DEL", n.ours("DEL", named), n.file()+": it has no configuration of a plugin: error parsing configuration: unexpected end of JSON input")
	expect.Same(t, "the torn file", expect.Exists(t, n.file()), true)
}

// TestEitherDeletesTheOthersFile: the reference plugin finds no delegate.
func TestEitherDeletesTheOthersFile(t *testing.T) {
	const named = `"cniVersion": "0.4.0", "name": "net"`
	n := newNode(t, v4+rest)
	script := filepath.Join(n.dir, "bridge")
	expect.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\ncat >>"+script+".calls\necho >>"+script+".calls\necho '{\"cniVersion\": \"0.4.0\"}'\n"), 0o755))
	expect.NoError(t, n.ours("ADD", named))
	info := expect.Value(os.Stat(n.file()))(t)
	dir := expect.Value(os.Stat(filepath.Dir(n.file())))(t)
	ours := expect.Value(os.ReadFile(n.file()))(t)
	expect.NoError(t, n.theirs("DEL", named))
	expect.Same(t, "our file", expect.Exists(t, n.file()), false)
	expect.Same(t, "their delegate got", string(expect.Value(os.ReadFile(script+".calls"))(t)), string(ours)+"\n")

	expect.NoError(t, os.Remove(filepath.Dir(n.file())), n.theirs("ADD", named))
	expect.Same(t, "content", string(expect.Value(os.ReadFile(n.file()))(t)), string(ours))
	expect.Same(t, "mode", expect.Value(os.Stat(n.file()))(t).Mode(), info.Mode())
	expect.Same(t, "mode of the directory", expect.Value(os.Stat(filepath.Dir(n.file())))(t).Mode(), dir.Mode())
	n.asked = nil
	expect.NoError(t, n.ours("DEL", named))
	expect.Same(t, "asked", n.asked, []string{"DEL bridge " + string(ours)})
	expect.Same(t, "their file", expect.Exists(t, n.file()), false)
}

// TestAnotherLeaseIsReported: CHECK names both subnets, and what to do. What says nothing
// about the address changes nothing.
func TestAnotherLeaseIsReported(t *testing.T) {
	const named = `"cniVersion": "1.1.0", "name": "net"`
	check := named + `, "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.244.1.2/24"}, {"address": "fd00:10:244:1::2/64"}, {"address": "192.0.2.1/24"}]}`
	n := newNode(t, v4+v6+rest)
	expect.NoError(t, n.ours("ADD", named))
	for _, same := range []string{v4 + v6 + rest, v4 + v6 + "FLANNEL_MTU=1\nFLANNEL_IPMASQ=false\n", strings.ReplaceAll(v4, "1.1/24", "0.1/16") + v6 + rest, ""} {
		n.lease(same)
		expect.NoError(t, n.ours("CHECK", check))
	}
	for lease, now := range map[string]string{
		strings.ReplaceAll(v4, "1.1/24", "7.1/24") + v6 + rest: "the address 10.244.1.2 is in the subnet 10.244.1.0/24, which was this host's, and FILE names 10.244.7.0/24 and fd00:10:244:1::/64 now",
		v4 + rest: "the address fd00:10:244:1::2 is in the subnet fd00:10:244:1::/64, which was this host's, and FILE names 10.244.1.0/24 now",
	} {
		n.lease(lease)
		expect.Says(t, "CHECK", n.ours("CHECK", check), strings.ReplaceAll(now, "FILE", filepath.Join(n.dir, "subnet.env"))+
			", so that other hosts send its packets elsewhere: Remove and Setup attach the container again")
	}
	n.lease("x\n")
	expect.Says(t, "CHECK", n.ours("CHECK", check), filepath.Join(n.dir, "subnet.env")+
		": it is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ")
}

// TestADirectoryThatCannotBeMade fails the ADD before the delegate runs.
func TestADirectoryThatCannotBeMade(t *testing.T) {
	n := newNode(t, v4+rest)
	expect.NoError(t, os.WriteFile(filepath.Join(n.dir, "kept"), nil, 0o600))
	err := n.ours("ADD", `"name": "net"`)
	expect.Says(t, "ADD", err, "keep the configuration for the DEL: mkdir "+filepath.Join(n.dir, "kept")+": not a directory")
	expect.Empty(t, "asked", n.asked)
}
