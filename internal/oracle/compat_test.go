package oracle

//lint:file-ignore SA1019 the deprecated names are compared because importers use them

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	gocni "github.com/containerd/go-cni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestCompat_01_SevenMethods: the interface has exactly go-cni's methods, so
// that importers' fakes stay complete. See also TestAPIHasAllOfGoCNI.
func TestCompat_01_SevenMethods(t *testing.T) {
	methods := func(i reflect.Type) (names []string) {
		for n := range i.NumMethod() {
			names = append(names, i.Method(n).Name)
		}
		return names
	}
	want := []string{"Check", "GetConfig", "Load", "Remove", "Setup", "SetupSerially", "Status"}
	for _, i := range []reflect.Type{reflect.TypeFor[cni.CNI](), reflect.TypeFor[gocni.CNI]()} {
		expect.Same(t, fmt.Sprint(i), methods(i), want)
	}
}

// TestCompat_02_LoadersAreOptionValues: three are passed without a call. The
// names and aliases are types of their own.
func TestCompat_02_LoadersAreOptionValues(t *testing.T) {
	opts := []cni.Opt{cni.WithLoNetwork, cni.WithDefaultConf, cni.WithAllConf}
	opts = append(opts, cni.WithConfListBytes([]byte(`{}`)))
	expect.Same(t, "options", len(opts), 4)
	type constants [5]any
	got := constants{cni.DefaultNetDir, cni.DefaultCNIDir, cni.DefaultMaxConfNum, cni.DefaultPrefix, cni.CNIPluginName}
	want := constants{gocni.DefaultNetDir, gocni.DefaultCNIDir, gocni.DefaultMaxConfNum, gocni.DefaultPrefix, gocni.CNIPluginName}
	expect.Same(t, "constants", got, want)
	expect.That(t, reflect.TypeFor[cni.CNIOpt]() == reflect.TypeFor[cni.Opt]() && reflect.TypeFor[cni.CNIResult]() == reflect.TypeFor[cni.Result](),
		"the aliases are other types")
}

// sameJSON compares JSON that importers store, byte for byte.
func sameJSON(t *testing.T, name string, got, want any) {
	t.Helper()
	g := expect.Value(json.Marshal(got))(t)
	expect.Same(t, name+": JSON", string(g), string(expect.Value(json.Marshal(want))(t)))
}

// TestCompat_03_JSONOfOptions: nerdctl stores port mappings, and others the
// rest.
func TestCompat_03_JSONOfOptions(t *testing.T) {
	sameJSON(t, "port mappings",
		[]cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp", HostIP: "::1"}, {}},
		[]gocni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp", HostIP: "::1"}, {}})
	sameJSON(t, "ranges",
		cni.IPRanges{Subnet: "10.0.0.0/8", RangeStart: "10.0.0.2", RangeEnd: "10.0.0.9", Gateway: "10.0.0.1"},
		gocni.IPRanges{Subnet: "10.0.0.0/8", RangeStart: "10.0.0.2", RangeEnd: "10.0.0.9", Gateway: "10.0.0.1"})
	sameJSON(t, "bandwidth", cni.BandWidth{IngressRate: 1, IngressBurst: 2, EgressRate: 3},
		gocni.BandWidth{IngressRate: 1, IngressBurst: 2, EgressRate: 3})
	sameJSON(t, "DNS", cni.DNS{Servers: []string{"1.1.1.1"}, Options: []string{}}, gocni.DNS{Servers: []string{"1.1.1.1"}, Options: []string{}})
	const persisted = `{"HostPort":8080,"ContainerPort":80,"Protocol":"udp","HostIP":"10.0.0.1"}`
	var m cni.PortMapping
	expect.NoError(t, json.Unmarshal([]byte(persisted), &m))
	expect.Same(t, "persisted mapping", m, cni.PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "udp", HostIP: "10.0.0.1"})
}

func cidr(s string) net.IPNet {
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	n.IP = ip
	return *n
}

// compatResults are results of plugins on which both packages agree.
var compatResults = map[string][]*types100.Result{
	"none":  {},
	"empty": {{}},
	"usual": {{
		CNIVersion: "1.0.0",
		Interfaces: []*types100.Interface{{Name: "cni0", Mac: "m0"}, {Name: "veth1", Mac: "m1"}, {Name: "eth0", Mac: "m2", Sandbox: "/ns", Mtu: 1500, PciID: "p", SocketPath: "s"}},
		IPs:        []*types100.IPConfig{{Interface: types100.Int(2), Address: cidr("10.1.2.3/24"), Gateway: net.IPv4(10, 1, 2, 1)}, {Interface: types100.Int(2), Address: cidr("2001:db8::3/64")}},
		Routes:     []*types.Route{{Dst: cidr("0.0.0.0/0"), GW: net.IPv4(10, 1, 2, 1), MTU: 1400}},
		DNS:        types.DNS{Nameservers: []string{"1.1.1.1"}, Domain: "d", Search: []string{"s"}, Options: []string{"o"}},
	}},
	"no interfaces": {{CNIVersion: "0.2.0", IPs: []*types100.IPConfig{{Address: cidr("10.1.2.3/24")}}}},
	"two networks": {
		{Interfaces: []*types100.Interface{{Name: "lo", Sandbox: "/ns"}}, IPs: []*types100.IPConfig{{Interface: types100.Int(0), Address: cidr("127.0.0.1/8")}}},
		{Interfaces: []*types100.Interface{{Name: "eth1", Sandbox: "/ns"}}, IPs: []*types100.IPConfig{{Interface: types100.Int(0), Address: cidr("10.1.2.3/24")}}, DNS: types.DNS{Domain: "two"}},
	},
}

// TestCompat_03_JSONOfResult: containerd stores it. Our additions follow the
// existing fields, and only if they are not empty.
func TestCompat_03_JSONOfResult(t *testing.T) {
	theirs := expect.Value(gocni.New())(t)
	ours := expect.Value(cni.New())(t)
	converter := theirs.(interface {
		GetCNIResultFromResults([]*types100.Result) (*gocni.Result, error)
	})
	for name, results := range compatResults {
		want := expect.Value(converter.GetCNIResultFromResults(results))(t)
		got, err := ours.GetCNIResultFromResults(results)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var persisted gocni.Result
		expect.NoError(t, json.Unmarshal(expect.Value(json.Marshal(got))(t), &persisted)) // go-cni can read it
		sameJSON(t, name+", read by go-cni", persisted, want)
		got.Networks = nil
		sameJSON(t, name, got, want)
	}
}

// bothPackages has both packages with the same configuration.
type bothPackages struct {
	theirs gocni.CNI
	ours   *cni.Runtime
}

// loadBoth runs the steps in both: lo, conf, conffile, index7, list, listfile,
// default, all. Each network has a unique name.
func loadBoth(t testing.TB, steps ...string) bothPackages {
	t.Helper()
	dir := testhost.ConfDir(t, map[string]string{"10-a.conflist": testhost.ListOf("dir-a"), "20-b.conf": testhost.ConfOf("dir-b"), "30-c.json": testhost.ConfOf("dir-c")})
	their, our := []gocni.Opt{gocni.WithPluginConfDir(dir)}, []cni.Opt{cni.WithPluginConfDir(dir)}
	for i, step := range steps {
		name := fmt.Sprintf("net%d", i)
		files := testhost.ConfDir(t, map[string]string{"conf": testhost.ConfOf(name), "list": testhost.ListOf(name)})
		conf, list := filepath.Join(files, "conf"), filepath.Join(files, "list")
		switch step {
		case "lo":
			their, our = append(their, gocni.WithLoNetwork), append(our, cni.WithLoNetwork)
		case "conf":
			their, our = append(their, gocni.WithConf([]byte(testhost.ConfOf(name)))), append(our, cni.WithConf([]byte(testhost.ConfOf(name))))
		case "conffile":
			their, our = append(their, gocni.WithConfFile(conf)), append(our, cni.WithConfFile(conf))
		case "index7":
			their, our = append(their, gocni.WithConfIndex([]byte(testhost.ConfOf(name)), 7)), append(our, cni.WithConfIndex([]byte(testhost.ConfOf(name)), 7))
		case "list":
			their, our = append(their, gocni.WithConfListBytes([]byte(testhost.ListOf(name)))), append(our, cni.WithConfListBytes([]byte(testhost.ListOf(name))))
		case "listfile":
			their, our = append(their, gocni.WithConfListFile(list)), append(our, cni.WithConfListFile(list))
		case "default":
			their, our = append(their, gocni.WithDefaultConf), append(our, cni.WithDefaultConf)
		case "all":
			their, our = append(their, gocni.WithAllConf), append(our, cni.WithAllConf)
		case "max2":
			their, our = append(their, gocni.WithPluginMaxConfNum(2)), append(our, cni.WithPluginMaxConfNum(2))
		case "prefix":
			their, our = append(their, gocni.WithInterfacePrefix("net")), append(our, cni.WithInterfacePrefix("net"))
		default:
			t.Fatalf("step %q", step)
		}
	}
	theirs := expect.Value(gocni.New(their...))(t)
	return bothPackages{theirs, expect.Value(cni.New(our...))(t)}
}

// TestCompat_04_InterfaceNamesFollowLoadOrder, counting loopback, except for a
// loaded directory.
func TestCompat_04_InterfaceNamesFollowLoadOrder(t *testing.T) {
	for steps, want := range map[string]string{
		"lo":                  "lo",
		"lo list":             "lo eth1",
		"list lo list":        "eth0 lo eth2",
		"lo default":          "lo eth0",
		"list default":        "eth0 eth0",
		"lo list all":         "lo eth1 eth0 eth1 eth2",
		"max2 default":        "eth0 eth1",
		"conf":                "eth0",
		"lo conf":             "lo eth0",
		"list list conf":      "eth0 eth1 eth0",
		"conf conffile list":  "eth0 eth0 eth2",
		"lo index7 listfile":  "lo eth7 eth2",
		"all listfile":        "eth0 eth1 eth2 eth3",
		"prefix lo list conf": "lo net1 net0",
	} {
		b := loadBoth(t, strings.Fields(steps)...)
		var their, our []string
		for _, n := range b.theirs.GetConfig().Networks {
			their = append(their, n.IFName)
		}
		for _, n := range b.ours.GetConfig().Networks {
			our = append(our, n.IFName)
		}
		got := strings.Join(our, " ")
		expect.That(t, got == want && strings.Join(their, " ") == want, "%s: ours %v, go-cni's %v, want %s", steps, our, their, want)
	}
}

// jsonValue returns the value of JSON, which ignores spaces and the order of
// keys.
func jsonValue(t *testing.T, source string) any {
	t.Helper()
	var v any
	err := json.Unmarshal([]byte(source), &v)
	expect.Must(t, err == nil, "%v: %s", err, source)
	return v
}

// TestCompat_03_JSONOfConfigResult: crictl shows it. Our plugins' sources are
// unchanged, and go-cni's are encoded anew by libcni, so they are compared by
// value. Everything else is compared byte for byte, except for the kinds of
// plugins, which only we have.
func TestCompat_03_JSONOfConfigResult(t *testing.T) {
	b := loadBoth(t, "list", "listfile", "conf", "index7", "all")
	got, want := b.ours.GetConfig(), b.theirs.GetConfig()
	expect.Must(t, len(got.Networks) == len(want.Networks), "%d networks, want %d", len(got.Networks), len(want.Networks))
	equal := func(got, want *string) {
		t.Helper()
		expect.Same(t, "source", jsonValue(t, *got), jsonValue(t, *want))
		*got, *want = "", ""
	}
	for i, n := range got.Networks {
		w := want.Networks[i]
		equal(&n.Config.Source, &w.Config.Source)
		for j, p := range n.Config.Plugins {
			equal(&p.Source, &w.Config.Plugins[j].Source)
			p.Kind, p.Path, p.IPAMKind, p.Reason = "", "", "", ""
		}
	}
	sameJSON(t, "configuration", got, want)
}

// TestCompat_06_LoadReplacesEverything, including the options of New.
func TestCompat_06_LoadReplacesEverything(t *testing.T) {
	b := loadBoth(t, "lo", "list")
	expect.NoError(t, errors.Join(b.ours.Load(cni.WithConf([]byte(testhost.ConfOf("new")))), b.theirs.Load(gocni.WithConf([]byte(testhost.ConfOf("new"))))))
	n := b.ours.GetConfig().Networks
	expect.That(t, len(n) == 1 && n[0].Config.Name == "new", "networks %+v, want new alone", n)
	sameJSON(t, "number of networks", len(b.ours.GetConfig().Networks), len(b.theirs.GetConfig().Networks))
	expect.NoError(t, errors.Join(b.ours.Load(), b.theirs.Load()))
	for _, err := range []error{b.ours.Status(), b.theirs.Status()} {
		expect.That(t, err != nil && err.Error() == cni.ErrCNINotInitialized.Error(), "after a Load of nothing: %v", err)
	}
}

// TestCompat_07_NothingNeedsToExist: plugins and directories may be installed
// later. Only a loader that finds nothing reports a missing configuration.
func TestCompat_07_NothingNeedsToExist(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	theirs := expect.Value(gocni.New(gocni.WithPluginConfDir(gone), gocni.WithPluginDir([]string{gone}), gocni.WithConfListBytes([]byte(testhost.ListOf("net")))))(t)
	ours := expect.Value(cni.New(cni.WithPluginConfDir(gone), cni.WithPluginDir([]string{gone}), cni.WithConfListBytes([]byte(testhost.ListOf("net")))))(t)
	expect.NoError(t, ours.Status(), theirs.Status())
	expect.NoError(t, ours.Load(cni.WithLoNetwork), theirs.Load(gocni.WithLoNetwork))
	_, ourErr := cni.New(cni.WithPluginConfDir(gone), cni.WithDefaultConf)
	_, theirErr := gocni.New(gocni.WithPluginConfDir(gone), gocni.WithDefaultConf)
	expect.That(t, cni.IsCNINotInitialized(ourErr) && gocni.IsCNINotInitialized(theirErr) && ourErr.Error() == theirErr.Error(),
		"no configuration: %v, go-cni %v", ourErr, theirErr)
}
