package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/conflist"
)

// FuzzArgs: accepted arguments can be read back from CNI_ARGS unchanged, with
// no others beside them.
func FuzzArgs(f *testing.F) {
	for _, seed := range [][4]string{
		{"IgnoreUnknown", "1", "K8S_POD_NAME", "pod.ns-1"}, {"LABEL", "x;IP=10.0.0.9", "", ""}, {"a", "", "b", "ü \t<>"},
		{"a=b", "1", "c", "2"}, {"a", "1\n", "b", "\x00"}, {"a", "1", "a", "2"}, {"\xff", "\xfe", "A", "a"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		given := map[string]string{k1: v1, k2: v2}
		sorted, err := sortedArgs(given)
		if err != nil {
			expect.Is(t, err, ErrInvalidArgument)
			return
		}
		var pairs, keys []string
		for _, kv := range sorted { // as libcni joins them
			pairs, keys = append(pairs, kv[0]+"="+kv[1]), append(keys, kv[0])
		}
		got := map[string]string{}
		for pair := range strings.SplitSeq(strings.Join(pairs, ";"), ";") { // as plugins split them
			kv := strings.Split(pair, "=")
			expect.Must(t, len(kv) == 2 && kv[0] != "", "plugins read the pair %q", pair)
			got[kv[0]] = kv[1]
		}
		expect.That(t, maps.Equal(got, given) && slices.IsSorted(keys), "%q became %q", given, pairs)
	})
}

// FuzzPortMappings: accepted mappings are in range, of a known protocol and for
// an address. No two claim one port. They are encoded with CONVENTIONS.md's
// keys.
func FuzzPortMappings(f *testing.F) {
	f.Add(int32(8080), int32(80), "tcp", "", int32(8080), "TCP", "10.0.0.1")
	f.Add(int32(1), int32(65535), "", "::", int32(1), "udp", "::ffff:10.0.0.1")
	f.Add(int32(-1), int32(65536), "sctp", "fe80::1%eth0", int32(0), "icmp", "not-an-ip")
	f.Add(int32(7), int32(7), "tcp", "::ffff:0.0.0.0", int32(7), "tcp", "10.0.0.1")
	f.Fuzz(func(t *testing.T, host, container int32, protocol, ip string, host2 int32, protocol2, ip2 string) {
		given := []PortMapping{{host, container, protocol, ip}, {host2, container, protocol2, ip2}}
		ports, err := engine.ValidMappings(wireMappings(given))
		if err != nil {
			expect.That(t, errors.Is(err, ErrInvalidArgument) && ports == nil, "%v, %v", ports, err)
			return
		}
		data, err := json.Marshal(ports)
		expect.NoError(t, err)
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		var read []struct {
			HostPort      int32  `json:"hostPort"`
			ContainerPort int32  `json:"containerPort"`
			Protocol      string `json:"protocol"`
			HostIP        string `json:"hostIP"`
		}
		err = dec.Decode(&read)
		expect.Must(t, err == nil && len(read) == 2, "%v: %s", err, data)
		for i, p := range read {
			expect.That(t, p.HostPort >= 1 && p.HostPort <= 65535 && p.ContainerPort >= 1 && p.ContainerPort <= 65535 && p.HostPort == given[i].HostPort,
				"%+v became %+v", given[i], p)
			expect.That(t, slices.Contains([]string{"tcp", "udp", "sctp"}, p.Protocol), "protocol %q", p.Protocol)
			if p.HostIP != "" {
				addr, err := netip.ParseAddr(p.HostIP)
				expect.That(t, err == nil && addr.Zone() == "", "address %q", p.HostIP)
			}
		}
		if a, b := read[0], read[1]; a.HostPort == b.HostPort && a.Protocol == b.Protocol && (a.HostIP == b.HostIP || a.HostIP == "" || b.HostIP == "") {
			t.Errorf("one host port twice: %+v", read)
		}
	})
}

// FuzzResult takes a plugin's result all the way through the check of its shape
// and libcni's conversion and cache into a Result. Nothing panics. An accepted
// result has valid indices, loses no address, and reaches the DEL. A refused
// one fails with ErrInvalidResult or libcni's error.
func FuzzResult(f *testing.F) {
	for _, seed := range []string{
		bridgeResult, loopbackResult, `{}`, `null`, `[]`, ``, `{"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/24", "routes": [{"dst": "0.0.0.0/0"}]}}`,
		`{"cniVersion": "0.1.0", "ip4": {}, "ip6": {"ip": "::1/64"}}`, `{"cniVersion": "9.0.0"}`, `{"cniVersion": 1}`,
		`{"cniVersion": "0.4.0", "ips": [{"version": "4", "interface": 0, "address": "::ffff:10.0.0.1/64"}], "interfaces": [{"name": "a"}]}`,
		`{"interfaces": [null]}`, `{"ips": [null]}`, `{"routes": [null, {}]}`, `{"interfaces": [{}], "ips": [{"interface": 1, "address": "10.0.0.2/24"}]}`,
		`{"ips": [{"interface": -1, "address": "10.0.0.2/24"}]}`, `{"ips": [{"address": "10.0.0.2/24", "gateway": "x"}]}`,
		`{"interfaces": [{"name": "eth0"}, {"name": "eth0", "sandbox": "/ns"}], "ips": [{"interface": 0, "address": "10.0.0.2/24"}, {"address": "10.0.0.3/24"}]}`,
	} {
		for i := range fuzzVersions {
			f.Add([]byte(seed), uint8(i))
		}
	}
	cache := f.TempDir() // shared: the DEL at the end of each leaves it empty
	f.Fuzz(func(t *testing.T, out []byte, version uint8) {
		fuzzResult(t, cache, out, fuzzVersions[int(version)%len(fuzzVersions)])
	})
}

var fuzzVersions = []string{"1.1.0", "1.0.0", "0.4.0", "0.3.1", "0.2.0", "0.1.0", ""}

func fuzzResult(t *testing.T, cache string, out []byte, version string) {
	list, err := conflist.Parse([]byte(`{"cniVersion": "` + version + `", "name": "net", "plugins": [{"type": "x"}]}`))
	expect.NoError(t, err)
	var prevResult json.RawMessage
	c := &chain.Chain{List: list, CacheDir: cache, Run: func(_ context.Context, call chain.Call) (chain.Output, error) {
		if call.Verb == "ADD" {
			return chain.Output{Stdout: out}, nil
		}
		var request struct{ PrevResult json.RawMessage }
		err := json.Unmarshal(call.Stdin, &request)
		prevResult = request.PrevResult
		return chain.Output{}, err
	}}
	a := &chain.Attachment{RuntimeConf: libcni.RuntimeConf{ContainerID: "c", NetNS: "/ns", IfName: "eth0"}}
	result, partial, err := c.Add(context.Background(), a, nil)
	if err != nil {
		expect.That(t, !strings.Contains(err.Error(), "panic"), "%q: %v", out, err)
	} else {
		r, err := newResult([]engine.Source{{Network: "net", IfName: "eth0", Result: result}}, "eth0")
		expect.Must(t, err == nil, "%q: accepted, and then refused: %v", out, err)
		wantNothingLost(t, out, r)
	}
	delErr := c.Del(context.Background(), a, partial)
	expect.That(t, delErr == nil, "%q (ADD: %v): DEL: %v", out, err, delErr)
	if err == nil && prevResult == nil && version >= "0.4.0" {
		t.Errorf("%q: DEL has no result", out)
	}
}

func wantNothingLost(t *testing.T, out []byte, r *Result) {
	t.Helper()
	plugin, network := r.Raw()[0], r.Networks[0]
	var want, got []netip.Prefix
	for _, ip := range plugin.IPs {
		if ip.Interface != nil && (*ip.Interface < 0 || *ip.Interface >= len(plugin.Interfaces)) {
			t.Errorf("%q: index %d of %d is accepted", out, *ip.Interface, len(plugin.Interfaces))
		}
		want = append(want, engine.NewAddress(ip.Address, nil).Prefix)
	}
	for _, i := range network.Interfaces {
		for _, address := range i.Addresses {
			expect.That(t, address.IsValid(), "%q: an address of %s is not valid", out, i.Name)
			got = append(got, address.Prefix)
		}
	}
	slices.SortFunc(want, comparePrefix)
	slices.SortFunc(got, comparePrefix)
	expect.Same(t, string(out), got, want)
	expect.That(t, len(network.Interfaces) >= len(plugin.Interfaces) && len(r.Routes) == len(plugin.Routes) && r.Interfaces["eth0"] != nil,
		"%q: %d interfaces became %d, %d routes %d", out, len(plugin.Interfaces), len(network.Interfaces), len(plugin.Routes), len(r.Routes))
	data, err := json.Marshal(r)
	expect.Must(t, err == nil, "%q: %v", out, err)
	var back Result
	err = json.Unmarshal(data, &back)
	expect.That(t, err == nil, "%q: cannot be read back: %v: %s", out, err, data)
}

func comparePrefix(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) }
