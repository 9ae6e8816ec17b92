package multinet_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/multinet"
)

func TestBothFormsAreRead(t *testing.T) {
	prefix := netip.MustParsePrefix
	for name, c := range map[string]struct {
		value string
		want  []multinet.Selection
	}{
		"nothing":     {" \n", nil},
		"one":         {"storage", []multinet.Selection{{Namespace: "pods", Name: "storage"}}},
		"namespace":   {"ns/storage", []multinet.Selection{{Namespace: "ns", Name: "storage"}}},
		"with blanks": {" ns / a @ net7 , b", []multinet.Selection{{Namespace: "ns", Name: "a", Interface: "net7"}, {Namespace: "pods", Name: "b"}}},
		"interface":   {"a@Eth.7", []multinet.Selection{{Namespace: "pods", Name: "a", Interface: "Eth.7"}}},
		"twice":       {"a,a@net7", []multinet.Selection{{Namespace: "pods", Name: "a"}, {Namespace: "pods", Name: "a", Interface: "net7"}}},
		"empty list":  {"[]", nil},
		"JSON":        {`[{"name": "a.b", "unknown": 1}]`, []multinet.Selection{{Namespace: "pods", Name: "a.b", Unknown: []string{"unknown"}}}},
		"all keys": {`[{"name": "a", "namespace": "ns", "interface": "net7", "ips": ["10.1.0.5/24", "fd00::5"],
			"mac": "02:00:00:00:00:01", "infiniband-guid": "00:00:00:00:00:00:00:01", "cni-args": {"k": {"x": 18446744073709551615}},
			"portMappings": [{"hostPort": 8080, "containerPort": 80}, {"hostPort": 53, "containerPort": 53, "protocol": "UDP", "hostIP": "192.0.2.1"}],
			"bandwidth": {"ingressRate": 1, "ingressBurst": 2, "egressRate": 3, "egressBurst": 4}, "default-route": ["10.1.0.1", "fd00::1"],
			"deviceID": "0000:03:00.0"}, {"name": "b", "default-route": [], "ipam-claim-reference": "claim"}]`, []multinet.Selection{{
			Namespace: "ns", Name: "a", Interface: "net7", IPs: []netip.Prefix{prefix("10.1.0.5/24"), prefix("fd00::5/128")}, HasLength: []bool{true, false},
			MAC: "02:00:00:00:00:01", InfinibandGUID: "00:00:00:00:00:00:00:01", CNIArgs: map[string]json.RawMessage{"k": json.RawMessage(`{"x": 18446744073709551615}`)},
			PortMappings: []multinet.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
				{HostPort: 53, ContainerPort: 53, Protocol: "udp", HostIP: netip.MustParseAddr("192.0.2.1")}},
			Bandwidth:    &multinet.Bandwidth{IngressRate: 1, IngressBurst: 2, EgressRate: 3, EgressBurst: 4},
			DefaultRoute: []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00::1")}, DeviceID: "0000:03:00.0",
		}, {Namespace: "pods", Name: "b", DefaultRoute: []netip.Addr{}, IPAMClaim: "claim"}}},
		"before Multus 3.2": {`[{"name": "a", "interfaceRequest": "net7"}]`, []multinet.Selection{{Namespace: "pods", Name: "a", Interface: "net7"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := expect.Value(multinet.Parse(c.value, "pods"))(t)
			expect.Same(t, "selections", got, c.want)
		})
	}
}

func TestWhatIsNoAnnotationIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		value string
		index int
		key   string
		kind  error
	}{
		"no name":               {"a,,b", 1, "", nil},
		"trailing comma":        {"a,", 1, "", nil},
		"no name before @":      {"@net1", 0, "", nil},
		"no interface after @":  {"a@", 0, "", nil},
		"two @":                 {"a@b@c", 0, "", nil},
		"two slashes":           {"a/b/c", 0, "", nil},
		"empty namespace":       {"/a", 0, "", nil},
		"path":                  {"../a", 0, "", nil},
		"capitals":              {"A", 0, "", nil},
		"long label":            {strings.Repeat("a", 64), 0, "", nil},
		"interface too long":    {"a@abcdefghijklmnop", 0, "", nil},
		"interface %d":          {"a@net%d", 0, "", nil},
		"interface twice":       {"a@net1,b@net1", 1, "interface", multinet.ErrInterfaceTwice},
		"no JSON":               {`[{"name": "a"`, -1, "", nil},
		"an object":             {`{"name": "a"}`, -1, "", nil},
		"null in the list":      {`[null]`, 0, "", nil},
		"a string in the list":  {`["a"]`, 0, "", nil},
		"JSON without a name":   {`[{"namespace": "a"}]`, 0, "name", nil},
		"name is a path":        {`[{"name": "../a"}]`, 0, "name", nil},
		"namespace with a dot":  {`[{"name": "a", "namespace": "a.b"}]`, 0, "namespace", nil},
		"a number as a name":    {`[{"name": 1}]`, 0, "name", nil},
		"bad interface":         {`[{"name": "a", "interface": "a/b"}]`, 0, "interface", nil},
		"bad address":           {`[{"name": "b"}, {"name": "a", "ips": ["10.1.0"]}]`, 1, "ips", nil},
		"bad prefix":            {`[{"name": "a", "ips": ["10.1.0.1/33"]}]`, 0, "ips", nil},
		"zone":                  {`[{"name": "a", "ips": ["fe80::1%eth0"]}]`, 0, "ips", nil},
		"addresses and a claim": {`[{"name": "a", "ips": ["10.1.0.1"], "ipam-claim-reference": "c"}]`, 0, "ips", multinet.ErrTwoSources},
		"bad mac":               {`[{"name": "a", "mac": "02:00"}]`, 0, "mac", nil},
		"mac of eight bytes":    {`[{"name": "a", "mac": "00:00:00:00:00:00:00:01"}]`, 0, "mac", nil},
		"guid of six bytes":     {`[{"name": "a", "infiniband-guid": "02:00:00:00:00:01"}]`, 0, "infiniband-guid", nil},
		"port 0":                {`[{"name": "a", "portMappings": [{"hostPort": 0, "containerPort": 1}]}]`, 0, "portMappings", nil},
		"port 65536":            {`[{"name": "a", "portMappings": [{"hostPort": 1, "containerPort": 65536}]}]`, 0, "portMappings", nil},
		"port null":             {`[{"name": "a", "portMappings": [null]}]`, 0, "portMappings", nil},
		"protocol":              {`[{"name": "a", "portMappings": [{"hostPort": 1, "containerPort": 1, "protocol": "icmp"}]}]`, 0, "portMappings", nil},
		"host address":          {`[{"name": "a", "portMappings": [{"hostPort": 1, "containerPort": 1, "hostIP": "x"}]}]`, 0, "portMappings", nil},
		"negative bandwidth":    {`[{"name": "a", "bandwidth": {"egressRate": -1}}]`, 0, "bandwidth", nil},
		"gateway":               {`[{"name": "a", "default-route": ["x"]}]`, 0, "default-route", nil},
		"unspecified gateway":   {`[{"name": "a", "default-route": ["0.0.0.0"]}]`, 0, "default-route", nil},
		"two gateways":          {`[{"name": "a", "default-route": ["10.0.0.1"]}, {"name": "b", "default-route": ["10.0.0.2"]}]`, 1, "default-route", multinet.ErrDefaultRouteTwice},
		"arguments in a list":   {`[{"name": "a", "cni-args": []}]`, 0, "cni-args", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := multinet.Parse(c.value, "pods")
			var e *multinet.Error
			if !errors.As(err, &e) || got != nil {
				t.Fatalf("%v, %v; want an Error", got, err)
			}
			if e.Index != c.index || e.Key != c.key || c.kind != nil && !errors.Is(err, c.kind) {
				t.Errorf("%+v, want index %d, key %q, %v", *e, c.index, c.key, c.kind)
			}
		})
	}
}

// decoded is a result of plugins.
func decoded(t *testing.T, text string) *types100.Result {
	t.Helper()
	var r types100.Result
	expect.NoError(t, json.Unmarshal([]byte(text), &r))
	return &r
}

// TestStatuses compares the values with those of Multus v4.3.0. Package thick/multus and
// ExampleStatuses compare the layout.
func TestStatuses(t *testing.T) {
	bridge := decoded(t, `{"cniVersion": "1.1.0", "interfaces": [{"name": "cni0", "mac": "02:00:00:00:00:01"}, {"name": "veth1"},
		{"name": "eth0", "mac": "02:00:00:00:00:02", "mtu": 1450, "sandbox": "/run/netns/c1"}],
		"ips": [{"interface": 2, "address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"interface": 2, "address": "fd00::5/64"}],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00::1"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.9"}],
		"dns": {"nameservers": ["10.1.0.1"], "search": ["example"]}}`)
	two := decoded(t, `{"cniVersion": "1.1.0", "interfaces": [{"name": "a", "sandbox": "x"}, {"name": "host"}, {"name": "b", "sandbox": "x"}],
		"ips": [{"address": "10.2.0.1/24"}, {"interface": 1, "address": "10.2.0.2/24"}, {"interface": 2, "address": "10.2.0.3/24", "gateway": "10.2.0.9"}]}`)
	old := decoded(t, `{"cniVersion": "1.0.0", "ips": [{"address": "10.3.0.1/24"}]}`)
	all := multinet.Statuses("ns/two", two, false)
	all = append(all, multinet.Statuses("old", old, false)...)
	all = append(all, multinet.Statuses("cluster", bridge, true)...)
	expect.Same(t, "status", expect.JSON(t, multinet.StatusValue(all)), expect.JSON(t, `[
		{"name": "cluster", "interface": "eth0", "ips": ["10.1.0.5", "fd00::5"], "mac": "02:00:00:00:00:02", "mtu": 1450, "default": true,
		 "dns": {"nameservers": ["10.1.0.1"], "search": ["example"]}, "gateway": ["10.1.0.1", "fd00::1"]},
		{"name": "ns/two", "interface": "a", "dns": {}}, {"name": "ns/two", "interface": "b", "ips": ["10.2.0.1", "10.2.0.3"], "dns": {}},
		{"name": "old", "ips": ["10.3.0.1"], "dns": {}}]`))
	defaults := multinet.Statuses("two", two, true)
	if defaults[0].Default || !defaults[1].Default {
		t.Errorf("default: %+v", defaults)
	}
	if got := multinet.Statuses("none", nil, true); len(got) != 1 || !got[0].Default {
		t.Errorf("without a result: %+v", got)
	}
	expect.Same(t, "no status", multinet.StatusValue(nil), "[]")
}

// FuzzParse: parsing does not panic; and what it accepts is well-formed, and can be written
// as names that give the same networks.
func FuzzParse(f *testing.F) {
	for _, value := range []string{"a", "ns/a@b,c", `[{"name": "a", "ips": ["10.0.0.1/8", "::1"], "default-route": []}]`,
		`[{"name":"a","portMappings":[{"hostPort":1,"containerPort":2}],"cni-args":{"a":[1]}}]`, "[null]", " ,", "a@%d", `"`} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		all, err := multinet.Parse(value, "pods")
		if err != nil {
			if !errors.As(err, new(*multinet.Error)) || all != nil {
				t.Fatalf("%v, %v", all, err)
			}
			return
		}
		var names []string
		for _, s := range all {
			if s.Name == "" || s.Namespace == "" || len(s.Interface) > 15 || len(s.IPs) != len(s.AddressList()) {
				t.Fatalf("%q: %+v", value, s)
			}
			if !strings.Contains(s.Name, ".") && !strings.ContainsAny(s.Interface, "@,{[\"") { // else only the long form has it
				names = append(names, s.String())
			}
		}
		again, err := multinet.Parse(strings.Join(names, ","), "others")
		if err != nil || len(again) != len(names) {
			t.Fatalf("%q: %q: %v", value, names, err)
		}
		for i, s := range again {
			if s.String() != names[i] {
				t.Fatalf("%q: %q became %q", value, names[i], s)
			}
		}
	})
}

func ExampleParse() {
	all, err := multinet.Parse(`[{"name": "storage", "interface": "net7", "ips": ["10.1.0.5/24"]}, {"name": "backup"}]`, "shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range all {
		fmt.Println(s, s.AddressList())
	}
	_, err = multinet.Parse("storage@net1,backup@net1", "shop")
	fmt.Println(errors.Is(err, multinet.ErrInterfaceTwice), err)
	// Output:
	// shop/storage@net7 [10.1.0.5/24]
	// shop/backup []
	// true annotation k8s.v1.cni.cncf.io/networks: network 1: interface: "net1": another network wants that interface
}

func ExampleStatuses() {
	result := &types100.Result{Interfaces: []*types100.Interface{{Name: "net1", Sandbox: "/run/netns/c1"}}}
	fmt.Println(multinet.StatusValue(multinet.Statuses("shop/storage", result, false)))
	// Output:
	// [{
	//     "name": "shop/storage",
	//     "interface": "net1",
	//     "dns": {}
	// }]
}

func ExampleParseDefault() {
	s, err := multinet.ParseDefault(`[{"name": "infra", "ips": ["10.1.0.5/24"]}]`, "kube-system")
	fmt.Println(s, s.AddressList(), err)
	_, err = multinet.ParseDefault("infra, storage", "kube-system")
	fmt.Println(err)
	// Output:
	// kube-system/infra [10.1.0.5/24] <nil>
	// annotation v1.multus-cni.io/default-network: 2 networks, and a pod has one default network
}
