package cni_test

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/embedcni/cni"
)

// The parameters of a call, as the plugins that declare these capabilities get them. Plan shows
// them, and Setup takes the same options.
func ExampleWithCapability() {
	rt, err := cni.New(cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "cloud", "capabilities":
		{"bandwidth": true, "cgroupPath": true, "deviceID": true, "dns": true, "ipRanges": true, "mac": true}}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	plan, err := rt.Plan("web-1", "/run/netns/web-1",
		cni.WithCapability("deviceID", "0000:04:00.5"),
		cni.WithCapabilityBandWidth(cni.BandWidth{IngressRate: 8e6, IngressBurst: 8e5}),
		cni.WithCapabilityCgroupPath("/kubepods/web-1"),
		cni.WithCapabilityDNS(cni.DNS{Servers: []string{"10.88.0.1"}}),
		cni.WithCapabilityIPRanges([]cni.IPRanges{{Subnet: "10.88.0.0/24"}}),
		cni.WithCapabilityMAC("02:00:5e:10:00:01"))
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"bandwidth", "cgroupPath", "deviceID", "ipRanges", "mac"} {
		fmt.Printf("%s %s\n", name, plan.Attachments[0].Capabilities[name])
	}
	// Output:
	// bandwidth {"ingressRate":8000000,"ingressBurst":800000}
	// cgroupPath "/kubepods/web-1"
	// deviceID "0000:04:00.5"
	// ipRanges [[{"subnet":"10.88.0.0/24"}]]
	// mac "02:00:5e:10:00:01"
}

// A container with an address of each family: a set of ranges for each.
func ExampleWithCapabilityIPRangeSets() {
	rt, err := cni.New(cni.WithConfListBytes([]byte(
		`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "capabilities": {"ipRanges": true}}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	plan, err := rt.Plan("web-1", "/run/netns/web-1", cni.WithCapabilityIPRangeSets([][]cni.IPRanges{
		{{Subnet: "10.88.0.0/24"}, {Subnet: "10.89.0.0/24"}}, // one address of these two
		{{Subnet: "fd00:88::/64"}},
	}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", plan.Attachments[0].Capabilities["ipRanges"])
	// Output: [[{"subnet":"10.88.0.0/24"},{"subnet":"10.89.0.0/24"}],[{"subnet":"fd00:88::/64"}]]
}

// Arguments are CNI_ARGS, and their successor in the configuration. Labels are arguments too.
func ExampleWithArgs() {
	rt, err := cni.New(cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	plan, err := rt.Plan("web-1", "/run/netns/web-1",
		cni.WithArgs("TIER", "front"),
		cni.WithArgs("IgnoreUnknown", "1"), // of plugins that do not know TIER
		cni.WithConfigArgs("labels", map[string]string{"app": "web"}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v %s\n", plan.Attachments[0].Args, plan.Attachments[0].ConfigArgs["labels"])
	// Output: map[IgnoreUnknown:1 TIER:front] {"app":"web"}
}

// A program that is itself a plugin in a list attaches further networks.
func ExampleWithPrevResult() {
	rt, err := cni.New()
	if err != nil {
		log.Fatal(err)
	}
	conf := []byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "tuning"}]}`)
	before := []byte(`{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/web-1"}]}`)
	plan, err := rt.Plan("web-1", "/run/netns/web-1", cni.WithNetworkConfig(conf, cni.WithPrevResult(before)))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(plan.Attachments[0].Network, len(plan.Attachments[0].PrevResult) > 0)
	// Output: pods true
}

// Networks from files and bytes, in the order of the options. A configuration of a single
// plugin is a list of one.
func ExampleWithConfFile() {
	dir, err := os.MkdirTemp("", "net.d")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	list, single := filepath.Join(dir, "10-pods.conflist"), filepath.Join(dir, "20-san.conf")
	err = errors.Join(
		os.WriteFile(list, []byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}`), 0o644),
		os.WriteFile(single, []byte(`{"cniVersion": "1.0.0", "name": "san", "type": "macvlan"}`), 0o644))
	if err != nil {
		log.Fatal(err)
	}
	rt, err := cni.New(cni.WithInterfacePrefix("net"),
		cni.WithConfFile(single), // always the first interface, as in go-cni
		cni.WithConfListFile(list),
		cni.WithConfIndex([]byte(`{"cniVersion": "1.0.0", "name": "ops", "type": "ptp"}`), 7))
	if err != nil {
		log.Fatal(err)
	}
	for _, n := range rt.GetConfig().Networks {
		fmt.Println(n.Config.Name, n.IFName)
	}
	err = rt.Load(cni.WithConf([]byte(`{"cniVersion": "1.0.0", "name": "ops", "type": "ptp"}`))) // alone
	fmt.Println(len(rt.GetConfig().Networks), err)
	// Output:
	// san net0
	// pods net1
	// ops net7
	// 1 <nil>
}

// The first files of a directory, by name: WithDefaultConf loads as many as there may be
// networks, and WithAllConf loads all.
func ExampleWithPluginMaxConfNum() {
	dir, err := os.MkdirTemp("", "net.d")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"a", "b", "c"} {
		conf := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": "bridge"}]}`, name)
		if err := os.WriteFile(filepath.Join(dir, name+".conflist"), conf, 0o644); err != nil {
			log.Fatal(err)
		}
	}
	rt, err := cni.New(cni.WithPluginConfDir(dir), cni.WithPluginMaxConfNum(2), cni.WithDefaultConf)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(rt.GetConfig().Networks))
	// Output: 2
}

// A program that would rather fail than be surprised: a port that a process has, or a
// parameter without a plugin that takes it, is an error. Plugins get two more variables.
func ExampleWithStrictCapabilities() {
	rt, err := cni.New(cni.WithStrictCapabilities(), cni.WithStrictPorts(), cni.WithPluginEnv("CLOUD_*"),
		cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	_, err = rt.Plan("web-1", "/run/netns/web-1", cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80}}))
	fmt.Println(errors.Is(err, cni.ErrInvalidArgument))
	// Output: true
}

// On a developer's machine: plugins and files that others may write, no work in the
// background, records that end with the test, and a log of each plugin's call.
func ExampleWithLogger() {
	dir, err := os.MkdirTemp("", "cni")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	_, err = cni.New(cni.WithInsecureFiles(), cni.WithoutReaping(),
		cni.WithStateDir(dir), cni.WithRecordDir(filepath.Join(dir, "records")),
		cni.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	fmt.Println(err)
	// Output: <nil>
}

// The kinds of errors that go-cni distinguishes. The sentinels of this package say more.
func ExampleIsNotFound() {
	rt, err := cni.New(cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	_, err = rt.Plan("web-1", "/run/netns/web-1", cni.WithNetwork("storage"))
	fmt.Println(cni.IsNotFound(err), cni.IsInvalidResult(err))
	fmt.Println(cni.IsReadFailure(rt.Load(cni.WithConfListFile("/nonexistent.conflist"))))
	// Output:
	// true false
	// true
}
