package multus

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
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
)

// passing is an interface net1 whose parameters are passed on to a plugin: by /delegate with
// attributes, or as a network of the pod's annotation.
type passing struct {
	config     string
	attributes string
	annotated  bool
	differs    map[string]difference // by "ADD" or "DEL" and the field
}

// requests returns the requests that attach and detach the interface.
func (p passing) requests(t *testing.T, version string) [][]byte {
	t.Helper()
	if p.annotated {
		return [][]byte{readData(t, version, "add.request"), readData(t, version, "del.request")}
	}
	var all [][]byte
	for _, verb := range []string{"ADD", "DEL"} {
		body := object{
			"env": map[string]string{
				"CNI_COMMAND": verb, "CNI_CONTAINERID": containerID, "CNI_NETNS": podNetNS, "CNI_IFNAME": "net1",
				"CNI_ARGS": fmt.Sprintf("K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s", podNamespace, podName, podUID),
			},
			"config": base64.StdEncoding.EncodeToString([]byte(p.config)),
		}
		if p.attributes != "" {
			body["interfaceAttributes"] = json.RawMessage(p.attributes)
		}
		all = append(all, bytes.Replace(newCall(rendered(t, body)), []byte("/cni"), []byte("/delegate"), 1))
	}
	return all
}

// record returns how a daemon's plugin is called for the interface: its environment and its
// configuration, field by field.
func (p passing) record(t *testing.T, version, log string) observed {
	t.Helper()
	before := len(expect.Value(scripted.Calls(log))(t))
	for _, request := range p.requests(t, version) {
		if answer := exchange(t, request); status(t, answer) != http.StatusOK {
			t.Fatalf("%s", answer)
		}
	}
	seen := observed{}
	calls := slices.DeleteFunc(expect.Value(scripted.Calls(log))(t)[before:], func(c scripted.Call) bool { return c.IfName != "net1" })
	if len(calls) < 2 {
		t.Fatalf("%d calls of plugins", len(calls))
	}
	for i, call := range calls {
		at := fmt.Sprintf("%s %d: ", call.Verb, i)
		for _, variable := range call.Env {
			if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "CNI_") && name != "CNI_ARGS" && name != "CNI_PATH" {
				seen[at+name] = value
			}
		}
		for _, pair := range strings.Split(call.Args, ";") {
			name, value, _ := strings.Cut(pair, "=")
			if value == "" {
				continue // as Multus sends K8S_POD_INFRA_CONTAINER_ID if it has none
			}
			if earlier, has := seen[at+"argument "+name]; has && earlier != value {
				t.Errorf("argument %s twice: %s", name, call.Args)
			}
			seen[at+"argument "+name] = fmt.Sprintf("%q", value)
		}
		var config object
		exactly(t, []byte(call.Exact), &config)
		for key, value := range config {
			seen[at+key] = rendered(t, value)
		}
	}
	return seen
}

const (
	declares   = `"capabilities": {"ips": true, "mac": true, "portMappings": true, "bandwidth": true}`
	attributes = `{"ips": ["10.9.0.77/24", "fd00::77/64"], "mac": "02:00:00:00:00:77", "cni-args": {"a": {"b": [1, "x"]}}}`
	annotated  = `[{"name": "hot", "ips": ["10.9.0.77/24"], "mac": "02:00:00:00:00:77", "cni-args": {"a": {"b": [1, "x"]}},
		"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "udp", "hostIP": "192.0.2.1"}],
		"bandwidth": {"ingressRate": 1, "ingressBurst": 2, "egressRate": 3, "egressBurst": 4}}]`
)

// Differences of calls.
var (
	capabilities = difference{`{"bandwidth":true,"ips":true,"mac":true,"portMappings":true}`, "", "plugins do not get it (CNI specification 1.1.0, section 4)"}
	ips          = difference{`"10.9.0.77/24,fd00::77/64"`, "", once}
	mac          = difference{`"02:00:00:00:00:77"`, "", once}
	cniArgs      = difference{"", `{"cni":{"a":{"b":[1,"x"]}}}`, asADD}
	runtimeConf  = difference{"", `{"ips":["10.9.0.77/24","fd00::77/64"],"mac":"02:00:00:00:00:77"}`, asADD}
	ignore       = difference{`"true"`, `"1"`, "the runtime's own value is passed on"}
)

const (
	once  = "a plugin that gets it as a capability does not get it in CNI_ARGS too"
	asADD = "DEL gets the parameters of ADD (CNI specification 1.1.0, section 3)"
)

// passings are the interfaces whose calls are compared.
var passings = map[string]passing{
	"no attributes": {config: `{"cniVersion": "1.1.0", "name": "hot", "type": "scripted", "own": {"x": [1, null]}}`},
	"capabilities": {config: hotNetwork, attributes: attributes, differs: map[string]difference{
		"ADD 0: argument IP": ips, "ADD 0: argument MAC": mac, "ADD 0: capabilities": capabilities,
		"DEL 1: capabilities": capabilities, "DEL 1: args": cniArgs, "DEL 1: runtimeConfig": runtimeConf,
	}},
	"no capabilities": {config: `{"cniVersion": "1.1.0", "name": "hot", "type": "scripted"}`, attributes: attributes, differs: map[string]difference{
		"DEL 1: args": cniArgs, "DEL 1: argument IP": {"", ips.theirs, asADD}, "DEL 1: argument MAC": {"", mac.theirs, asADD},
	}},
	"arguments of its own": {
		config:     `{"cniVersion": "1.1.0", "name": "hot", "type": "scripted", "args": {"cni": {"a": 1, "c": 2}, "x": 3}}`,
		attributes: `{"cni-args": {"a": 5, "b": 4}}`,
		differs: map[string]difference{
			"DEL 1: args": {`{"cni":{"a":1,"c":2},"x":3}`, `{"cni":{"a":5,"b":4,"c":2},"x":3}`, asADD},
		},
	},
	"a list": {
		config:     `{"cniVersion": "1.1.0", "name": "hot", "plugins": [{"type": "scripted", ` + declares + `}, {"type": "scripted", "own": 1}]}`,
		attributes: attributes,
		differs: map[string]difference{
			"ADD 0: argument IP": ips, "ADD 0: argument MAC": mac, "ADD 0: capabilities": capabilities,
			"ADD 1: argument IP": ips, "ADD 1: argument MAC": mac,
			"DEL 2: args": cniArgs, "DEL 3: args": cniArgs, "DEL 3: capabilities": capabilities, "DEL 3: runtimeConfig": runtimeConf,
		},
	},
	"of the pod's annotation": {config: hotNetwork, annotated: true, differs: map[string]difference{
		"ADD 0: argument IP": {`"10.9.0.77/24"`, "", once}, "ADD 0: argument MAC": mac, "ADD 0: capabilities": capabilities,
		"ADD 0: argument IgnoreUnknown": ignore, "DEL 1: argument IgnoreUnknown": ignore, "DEL 1: capabilities": capabilities,
		"DEL 1: runtimeConfig": {
			`{"ips":["10.9.0.77/24"],"mac":"02:00:00:00:00:77"}`,
			`{"bandwidth":{"egressBurst":4,"egressRate":3,"ingressBurst":2,"ingressRate":1},"ips":["10.9.0.77/24"],"mac":"02:00:00:00:00:77",` +
				`"portMappings":[{"containerPort":80,"hostIP":"192.0.2.1","hostPort":8080,"protocol":"udp"}]}`, asADD,
		},
	}},
}

// daemonFields are of the configuration of Multus' daemon, which merges it into that of a
// single plugin that comes by /delegate.
var daemonFields = []string{
	"binDir", "clusterNetwork", "cniConfigDir", "cniDir", "confDir", "daemonSocketDir", "logLevel", "logToStderr",
	"multusAutoconfigDir", "multusConfigFile", "socketDir",
}

const hotNetwork = `{"cniVersion": "1.1.0", "name": "hot", "type": "scripted", ` + declares + `}`

// TestInterfacesArePassedOnAsByMultus compares the calls of a plugin that Multus' daemon and
// this library's make for the same requests, but for known differences.
func TestInterfacesArePassedOnAsByMultus(t *testing.T) {
	v := version(t, os.Getenv(daemonVar))
	newPod(t)
	c := newCluster(t)
	c.addPod(podNamespace, podName, podUID, annotated)
	c.addNetwork(podNamespace, "hot", hotNetwork)
	theirs, ours := map[string]observed{}, map[string]observed{}
	t.Run("Multus", func(t *testing.T) {
		d := startDaemon(t, c, "", nil)
		d.script(t, nil)
		for name, p := range passings {
			theirs[name] = p.record(t, v, d.path("calls"))
			maps.DeleteFunc(theirs[name], func(key, _ string) bool {
				_, field, _ := strings.Cut(key, ": ")
				return slices.Contains(daemonFields, field)
			})
		}
	})
	t.Run("ours", func(t *testing.T) {
		dir := t.TempDir()
		primary, log := filepath.Join(dir, "10-primary.conflist"), filepath.Join(dir, "calls")
		expect.NoError(t, os.WriteFile(primary, []byte(rendered(t, primaryNetwork)), 0o600), os.Symlink(refplugins.Scripted(), filepath.Join(dir, "scripted")),
			scripted.Script{Log: log}.Save(filepath.Join(dir, "scripted"+scripted.Beside)))
		// The annotation as it was before Multus added the status.
		c.addPod(podNamespace, podName, podUID, annotated)
		startOurs(t, c.options(), primary, dir)
		for name, p := range passings {
			ours[name] = p.record(t, v, log)
		}
	})
	for name, p := range passings {
		t.Run(name, func(t *testing.T) { compare(t, theirs[name], ours[name], p.differs) })
	}
}
