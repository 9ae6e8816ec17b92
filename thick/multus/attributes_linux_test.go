package multus

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/thick/kube/kubelet"
)

// passing is a network of the pod's annotation, whose parameters are passed on to plugins.
type passing struct {
	config     string
	resource   string // of the network
	attributes string
	differs    map[string]difference // by "ADD" or "DEL" and the field
}

// passedOn returns how a daemon's plugins are called for each interface of the pod: their
// environment and their configuration, field by field.
func passedOn(t *testing.T, version, log string) map[string]observed {
	t.Helper()
	for _, request := range []string{"add.request", "del.request"} {
		if answer := exchange(t, readData(t, version, request)); status(t, answer) != http.StatusOK {
			t.Fatalf("%s", answer)
		}
	}
	seen, calls := map[string]observed{}, map[string]int{}
	for _, call := range expect.Value(scripted.Calls(log))(t) {
		name := call.IfName
		if seen[name] == nil {
			seen[name] = observed{}
		}
		seen[name].call(t, fmt.Sprintf("%s %d: ", call.Verb, calls[name]), call)
		calls[name]++
	}
	return seen
}

// call adds the fields of a plugin's call.
func (o observed) call(t *testing.T, at string, call scripted.Call) {
	t.Helper()
	for _, variable := range call.Env {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "CNI_") && name != "CNI_ARGS" && name != "CNI_PATH" {
			o[at+name] = value
		}
	}
	for _, pair := range strings.Split(call.Args, ";") {
		name, value, _ := strings.Cut(pair, "=")
		if value == "" {
			continue // as Multus sends K8S_POD_INFRA_CONTAINER_ID if it has none
		}
		if earlier, has := o[at+"argument "+name]; has && earlier != value {
			t.Errorf("argument %s twice: %s", name, call.Args)
		}
		o[at+"argument "+name] = fmt.Sprintf("%q", value)
	}
	var config object
	exactly(t, []byte(call.Exact), &config)
	for key, value := range config {
		o[at+key] = rendered(t, value)
	}
}

const (
	declares   = `"capabilities": {"ips": true, "mac": true, "portMappings": true, "bandwidth": true}`
	attributes = `"ips": ["10.9.0.77/24", "fd00::77/64"], "mac": "02:00:00:00:00:77", "cni-args": {"a": {"b": [1, "x"]}}`
	limits     = `"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "udp", "hostIP": "192.0.2.1"}],
		"bandwidth": {"ingressRate": 1, "ingressBurst": 2, "egressRate": 3, "egressBurst": 4}`
)

// Differences of calls.
var (
	capabilities = difference{`{"bandwidth":true,"ips":true,"mac":true,"portMappings":true}`, "", "plugins do not get it (CNI specification 1.1.0, section 4)"}
	ips          = difference{`"10.9.0.77/24,fd00::77/64"`, "", once}
	mac          = difference{`"02:00:00:00:00:77"`, "", once}
	ignore       = difference{`"true"`, `"1"`, "the runtime's own value is passed on"}
)

// asDeclared is of a default network that the pod has chosen.
var asDeclared = difference{"", `{"ips":["10.9.0.77/24"],"mac":"02:00:00:00:00:77"}`, "Multus gives a default network capabilities of the runtime alone"}

const (
	once  = "a plugin that gets it as a capability does not get it in CNI_ARGS too"
	asADD = "DEL gets the parameters of ADD (CNI specification 1.1.0, section 3)"
)

// passings are the networks whose calls are compared, by the name of network and interface.
var passings = map[string]passing{
	"plain": {config: `"type": "scripted", "own": {"x": [1, null]}`},
	"capabilities": {config: `"type": "scripted", ` + declares, attributes: attributes + ", " + limits, differs: map[string]difference{
		"ADD 0: argument IP": ips, "ADD 0: argument MAC": mac, "ADD 0: capabilities": capabilities, "DEL 1: capabilities": capabilities,
		"DEL 1: runtimeConfig": {
			`{"ips":["10.9.0.77/24","fd00::77/64"],"mac":"02:00:00:00:00:77"}`,
			`{"bandwidth":{"egressBurst":4,"egressRate":3,"ingressBurst":2,"ingressRate":1},"ips":["10.9.0.77/24","fd00::77/64"],"mac":"02:00:00:00:00:77",` +
				`"portMappings":[{"containerPort":80,"hostIP":"192.0.2.1","hostPort":8080,"protocol":"udp"}]}`, asADD,
		},
	}},
	"guid":   {config: `"type": "scripted", "capabilities": {"infinibandGUID": true}`, attributes: `"infiniband-guid": "02:00:00:00:00:00:00:01"`, differs: undeclared(`{"infinibandGUID":true}`)},
	"claim":  {config: `"type": "scripted"`, attributes: `"ipam-claim-reference": "claim"`},
	"device": {config: `"type": "scripted", ` + ofDevices, attributes: `"deviceID": "0000:05:00.0"`, differs: undeclared(devicesDeclared)},
	"vf-a":   {config: `"type": "scripted", ` + ofDevices, resource: "vendor.com/vf", differs: undeclared(devicesDeclared)},
	"vf-b":   {config: `"plugins": [{"type": "scripted"}, {"type": "scripted"}]`, resource: "vendor.com/vf", attributes: `"deviceID": "0000:05:00.0"`},
	"vf-c":   {config: `"type": "scripted"`, resource: "vendor.com/vf"}, // for which no device is left
	"none": {config: `"type": "scripted"`, attributes: attributes, differs: map[string]difference{
		"DEL 1: argument IP": {"", ips.theirs, asADD}, "DEL 1: argument MAC": {"", mac.theirs, asADD},
	}},
	"own-args": {
		config:     `"type": "scripted", "args": {"cni": {"a": 1, "c": 2}, "x": 3}`,
		attributes: `"cni-args": {"a": 5, "b": 4}`,
	},
	"list": {config: `"plugins": [{"type": "scripted", ` + declares + `}, {"type": "scripted", "own": 1}]`, attributes: attributes, differs: map[string]difference{
		"ADD 0: argument IP": ips, "ADD 0: argument MAC": mac, "ADD 0: capabilities": capabilities,
		"ADD 1: argument IP": ips, "ADD 1: argument MAC": mac, "DEL 3: capabilities": capabilities,
	}},
}

// ofDevices declares what the standard's networks with devices do.
const (
	ofDevices       = `"capabilities": {"deviceID": true, "CNIDeviceInfoFile": true}`
	devicesDeclared = `{"CNIDeviceInfoFile":true,"deviceID":true}`
)

// undeclared has the difference of a network whose one plugin declares capabilities.
func undeclared(declared string) map[string]difference {
	d := difference{declared, "", capabilities.reason}
	return map[string]difference{"ADD 0: capabilities": d, "DEL 1: capabilities": d}
}

// informed adds what the network status has of the devices.
func informed(t *testing.T, seen map[string]observed, status string) {
	t.Helper()
	var interfaces []object
	exactly(t, []byte(status), &interfaces)
	found := map[string]string{} // the scripted plugin gives all interfaces one name
	for _, one := range interfaces {
		if info, has := one["device-info"]; has {
			found[fmt.Sprint(one["name"])] = rendered(t, info)
		}
	}
	for name := range seen {
		if info := found[podNamespace+"/"+name]; info != "" {
			seen[name]["device-info"] = info
		}
	}
}

// TestInterfacesArePassedOnAsByMultus compares the calls of plugins that Multus' daemon and
// this library's make for the same annotation, but for known differences.
func TestInterfacesArePassedOnAsByMultus(t *testing.T) {
	v := version(t, os.Getenv(daemonVar))
	newPod(t)
	c := newCluster(t)
	giveDevices(t, "vendor.com/vf", "0000:03:02.1", "0000:03:02.0")
	var annotation []string
	for name, p := range passings {
		config := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, %s}`, name, p.config)
		c.addNetwork(podNamespace, name, config, p.resource)
		one := fmt.Sprintf(`"name": %q, "interface": %q`, name, name)
		if p.attributes != "" {
			one += ", " + p.attributes
		}
		annotation = append(annotation, "{"+one+"}")
	}
	slices.Sort(annotation)
	annotated := "[" + strings.Join(annotation, ", ") + "]"
	theirs, ours := byBoth(t, v, c, object{"k8s.v1.cni.cncf.io/networks": annotated})
	for name, want := range map[string]string{"vf-a": `"0000:03:02.0"`, "vf-b": `"0000:03:02.1"`, "vf-c": ""} {
		expect.Same(t, "device of "+name, theirs[name]["ADD 0: deviceID"], want)
		expect.That(t, strings.Contains(theirs[name]["device-info"], want), "device-info of %s is %q", name, theirs[name]["device-info"])
	}
	for name, p := range passings {
		t.Run(name, func(t *testing.T) { comparePassed(t, theirs[name], ours[name], p.differs) })
	}
}

// byBoth returns what plugins get from Multus' daemon and from this library's for a pod with
// annotations.
func byBoth(t *testing.T, version string, c *cluster, annotations object) (theirs, ours map[string]observed) {
	t.Helper()
	t.Run("Multus", func(t *testing.T) {
		c.addPod(annotations)
		d := startDaemon(t, c, "", nil)
		d.script(t, nil)
		theirs = passedOn(t, version, d.path("calls"))
		informed(t, theirs, c.networkStatus(t))
	})
	t.Run("ours", func(t *testing.T) {
		dir := t.TempDir()
		primary, log := filepath.Join(dir, "10-primary.conflist"), filepath.Join(dir, "calls")
		expect.NoError(t, os.WriteFile(primary, []byte(rendered(t, primaryNetwork)), 0o600), os.Symlink(refplugins.Scripted(), filepath.Join(dir, "scripted")),
			scripted.Script{Log: log}.Save(filepath.Join(dir, "scripted"+scripted.Beside)))
		c.addPod(annotations) // without the status, which Multus has added
		o := c.options()
		o.Devices = kubelet.Devices{}
		startOurs(t, o, primary, dir)
		ours = passedOn(t, version, log)
		informed(t, ours, c.networkStatus(t))
	})
	return theirs, ours
}

// comparePassed compares the calls for an interface.
func comparePassed(t *testing.T, theirs, ours observed, differs map[string]difference) {
	t.Helper()
	all := map[string]difference{}
	maps.Copy(all, differs)
	for key := range ours {
		if strings.HasSuffix(key, "argument IgnoreUnknown") {
			all[key] = ignore
		}
	}
	compare(t, theirs, ours, all)
}

// TestDefaultNetworksAreThoseOfMultus compares the calls for a pod that names another default
// network.
func TestDefaultNetworksAreThoseOfMultus(t *testing.T) {
	v := version(t, os.Getenv(daemonVar))
	newPod(t)
	giveDevices(t, "vendor.com/vf", "0000:03:02.0", "0000:03:02.1")
	config := `{"cniVersion": "1.1.0", "name": "infra", "type": "scripted", ` + declares + `}`
	declared := map[string]difference{"ADD 0: capabilities": capabilities, "DEL 1: capabilities": capabilities}
	for name, tt := range map[string]struct {
		value   string
		ifName  string
		differs map[string]difference
	}{
		"a name":      {"infra", "eth0", declared},
		"a namespace": {"default/infra", "eth0", declared},
		"an element": {`[{"name": "infra", "interface": "mgmt", "cni-args": {"a": 1}, "ips": ["10.9.0.77/24"], "mac": "02:00:00:00:00:77"}]`, "mgmt", map[string]difference{
			"ADD 0: capabilities": capabilities, "DEL 1: capabilities": capabilities,
			"ADD 0: argument IP": {`"10.9.0.77/24"`, "", once}, "ADD 0: argument MAC": mac,
			"ADD 0: runtimeConfig": asDeclared, "DEL 1: runtimeConfig": asDeclared,
		}},
		"a device": {"vf", "eth0", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			for _, namespace := range []string{"kube-system", podNamespace} {
				c.addNetwork(namespace, "infra", config, "")
				c.addNetwork(namespace, "vf", `{"cniVersion": "1.1.0", "name": "vf", "type": "scripted"}`, "vendor.com/vf")
			}
			theirs, ours := byBoth(t, v, c, object{"v1.multus-cni.io/default-network": tt.value, "k8s.v1.cni.cncf.io/networks": "vf@net7"})
			expect.Same(t, "interfaces", slices.Sorted(maps.Keys(ours)), slices.Sorted(slices.Values([]string{tt.ifName, "net7"})))
			comparePassed(t, theirs[tt.ifName], ours[tt.ifName], tt.differs)
			device := difference{`"0000:03:02.0"`, `"0000:03:02.1"`, "Multus gives the default network's device to another network, too"}
			differs := map[string]difference{}
			if name == "a device" {
				for _, key := range []string{"ADD 0: deviceID", "ADD 0: pciBusID", "DEL 1: deviceID", "DEL 1: pciBusID"} {
					differs[key] = device
				}
			}
			comparePassed(t, theirs["net7"], ours["net7"], differs)
		})
	}
}
