package multus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/multinet"
)

// annotation is a value of the annotation that names a pod's networks. Multus and this
// library parse it the same unless one of the other fields says otherwise.
type annotation struct {
	value string
	// refusedBy is the parser that alone refuses the value.
	refusedBy string
	// differs has the keys whose values differ, and how this library has them.
	differs object
	reason  string // of a difference
}

// oneNetwork is an annotation of one network in the long form.
func oneNetwork(keys string) string { return `[{"name": "a", ` + keys + `}]` }

const (
	wellFormed = "no such object or interface can exist, and Multus fails later"
	typed      = "the value is parsed here, and written in its canonical form"
)

// annotations are values that parsers may take for different things.
var annotations = map[string]annotation{
	"one":                    {value: "a"},
	"several":                {value: "a,b,a"},
	"namespace":              {value: "ns/a"},
	"interface":              {value: "ns/a@net7, b@lan0"},
	"blanks":                 {value: " ns / a @ net7 ,\tb\n"},
	"dots in an interface":   {value: "a@eth0.7"},
	"an empty list":          {value: "[]"},
	"long form":              {value: `[{"name": "a"}, {"name": "b", "namespace": "ns"}]`},
	"unknown keys":           {value: oneNetwork(`"x": {"y": 1}`)},
	"keys in capitals":       {value: `[{"NAME": "a", "Interface": "net7"}]`},
	"a key twice":            {value: oneNetwork(`"name": "b"`)},
	"null for a key":         {value: oneNetwork(`"ips": null, "mac": null, "cni-args": null, "bandwidth": null, "portMappings": null`)},
	"interfaceRequest":       {value: oneNetwork(`"interfaceRequest": "net7"`)},
	"both interface keys":    {value: oneNetwork(`"interfaceRequest": "net7", "interface": "net8"`)},
	"addresses":              {value: oneNetwork(`"ips": ["10.1.0.5/24", "10.1.0.6", "fd00::5/64", "fd00::6"]`)},
	"a mapped address":       {value: oneNetwork(`"ips": ["::ffff:10.1.0.1/120"]`)},
	"no addresses":           {value: oneNetwork(`"ips": []`)},
	"MAC":                    {value: oneNetwork(`"mac": "02:00:00:00:00:0A"`)},
	"MAC with hyphens":       {value: oneNetwork(`"mac": "02-00-00-00-00-0a"`)},
	"GUID":                   {value: oneNetwork(`"infiniband-guid": "02:00:00:00:00:00:00:01"`)},
	"ports":                  {value: oneNetwork(`"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}]`)},
	"bandwidth":              {value: oneNetwork(`"bandwidth": {"ingressRate": 1, "ingressBurst": 2, "egressRate": 3, "egressBurst": 4}`)},
	"arguments":              {value: oneNetwork(`"cni-args": {"a": {"b": [1, "x", null]}, "c": ""}`)},
	"no arguments":           {value: oneNetwork(`"cni-args": {}`)},
	"device":                 {value: oneNetwork(`"deviceID": "0000:03:00.0"`)},
	"default route":          {value: oneNetwork(`"default-route": ["10.1.0.1", "fd00::1"]`)},
	"default route of its":   {value: oneNetwork(`"default-route": []`)},
	"a mapped default route": {value: oneNetwork(`"default-route": ["::ffff:10.1.0.1"]`)},

	"two slashes":              {value: "a/b/c", refusedBy: "both"},
	"two @":                    {value: "a@b@c", refusedBy: "both"},
	"capitals":                 {value: "A", refusedBy: "both"},
	"a path":                   {value: "../a", refusedBy: "both"},
	"a name with a dot":        {value: "a.b", refusedBy: "both"}, // the long form allows it
	"an interface with blanks": {value: "a@a b", refusedBy: "both"},
	"a long interface":         {value: "a@abcdefghijklmnop", refusedBy: "both"},
	"no JSON":                  {value: `[{"name": "a"`, refusedBy: "both"},
	"an object":                {value: `{"name": "a"}`, refusedBy: "both"},
	"a quoted name":            {value: `"a"`, refusedBy: "both"},
	"strings in the long form": {value: `["a"]`, refusedBy: "both"},
	"null in the long form":    {value: `[null]`, refusedBy: "both"}, // Multus panics
	"a number for a name":      {value: `[{"name": 1}]`, refusedBy: "both"},
	"an address that is none":  {value: oneNetwork(`"ips": ["10.1.0"]`), refusedBy: "both"},
	"a zone":                   {value: oneNetwork(`"ips": ["fe80::1%eth0"]`), refusedBy: "both"},
	"a long prefix":            {value: oneNetwork(`"ips": ["10.1.0.1/33"]`), refusedBy: "both"},
	"an address in a string":   {value: oneNetwork(`"ips": "10.1.0.1"`), refusedBy: "both"},
	"a short MAC":              {value: oneNetwork(`"mac": "02:00"`), refusedBy: "both"},
	"a gateway that is none":   {value: oneNetwork(`"default-route": ["x"]`), refusedBy: "both"},
	"a gateway in a string":    {value: oneNetwork(`"default-route": "10.1.0.1"`), refusedBy: "both"},
	"arguments in a list":      {value: oneNetwork(`"cni-args": []`), refusedBy: "both"},
	"a port in a string":       {value: oneNetwork(`"portMappings": [{"hostPort": "80", "containerPort": 80}]`), refusedBy: "both"},
	"fractions of bits":        {value: oneNetwork(`"bandwidth": {"ingressRate": 1.5}`), refusedBy: "both"},

	"blank":                     {value: " ", differs: object{"networks": 0}, reason: "it names no network; Multus makes it a network without a name"},
	"nothing between commas":    {value: "a,,b", refusedBy: "ours", reason: wellFormed},
	"a comma at the end":        {value: "a,", refusedBy: "ours", reason: wellFormed},
	"nothing before @":          {value: "@net1", refusedBy: "ours", reason: wellFormed},
	"nothing before a slash":    {value: "/a", refusedBy: "ours", reason: "an empty namespace is a mistake; Multus takes the pod's"},
	"nothing behind @":          {value: "a@", refusedBy: "ours", reason: "an empty interface is a mistake; Multus chooses one"},
	"a name of 64 letters":      {value: strings.Repeat("a", 64), refusedBy: "ours", reason: wellFormed},
	"an interface with %d":      {value: "a@net%d", refusedBy: "ours", reason: "the kernel replaces %d by a number"},
	"an interface with a colon": {value: "a@a:b", refusedBy: "ours", reason: wellFormed},
	"one interface twice":       {value: "a@net7,b@net7", refusedBy: "ours", reason: "the second could not be attached"},
	"no name":                   {value: `[{"namespace": "ns"}]`, refusedBy: "ours", reason: wellFormed},
	"a path in the long form":   {value: `[{"name": "../a"}]`, refusedBy: "ours", reason: "Multus checks names of the short form alone"},
	"a slash in an interface":   {value: oneNetwork(`"interface": "a/b"`), refusedBy: "ours", reason: "Multus checks interfaces of the short form alone"},
	"an address with capitals":  {value: oneNetwork(`"ips": ["FD00:0::5/64"]`), differs: object{"ips": []string{"fd00::5/64"}}, reason: typed},
	"MAC of eight bytes":        {value: oneNetwork(`"mac": "02:00:00:00:00:00:00:01"`), refusedBy: "ours", reason: "an interface has six bytes, a GUID has eight"},
	"GUID of six bytes":         {value: oneNetwork(`"infiniband-guid": "02:00:00:00:00:01"`), refusedBy: "ours", reason: "an interface has six bytes, a GUID has eight"},
	"port without a protocol": {value: oneNetwork(`"portMappings": [{"hostPort": 80, "containerPort": 80}]`), reason: typed,
		differs: object{"portMappings": []object{{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}}}},
	"protocol in capitals": {value: oneNetwork(`"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "UDP"}]`), reason: typed,
		differs: object{"portMappings": []object{{"hostPort": 80, "containerPort": 80, "protocol": "udp"}}}},
	"port 0":                    {value: oneNetwork(`"portMappings": [{"hostPort": 0, "containerPort": 1}]`), refusedBy: "ours", reason: "a port is of 1 to 65535; the plugin would fail"},
	"port 65536":                {value: oneNetwork(`"portMappings": [{"hostPort": 65536, "containerPort": 1}]`), refusedBy: "ours", reason: "a port is of 1 to 65535; the plugin would fail"},
	"another protocol":          {value: oneNetwork(`"portMappings": [{"hostPort": 1, "containerPort": 1, "protocol": "icmp"}]`), refusedBy: "ours", reason: "no plugin forwards it"},
	"host address that is none": {value: oneNetwork(`"portMappings": [{"hostPort": 1, "containerPort": 1, "hostIP": "x"}]`), refusedBy: "ours", reason: "the plugin would fail"},
	"null for a port":           {value: oneNetwork(`"portMappings": [null]`), refusedBy: "ours", reason: "Multus sends the plugin a null"},
	"a negative limit":          {value: oneNetwork(`"bandwidth": {"egressRate": -1}`), refusedBy: "ours", reason: "the plugin would fail"},
	"two gateways":              {value: oneNetwork(`"default-route": ["10.1.0.1", "10.1.0.2"]`), refusedBy: "ours", reason: "Multus refuses it after the parser: it has no routes with several hops"},
	"no gateway":                {value: oneNetwork(`"default-route": ["0.0.0.0"]`), refusedBy: "ours", reason: "it is no gateway; Multus logs the kernel's refusal and goes on without a default route"},
	"a claim and addresses":     {value: oneNetwork(`"ips": ["10.1.0.1"], "ipam-claim-reference": "c"`), refusedBy: "ours", reason: "version 1.3 of the standard excludes it; Multus v4.3.0 does not read the claim"},
	"a number beyond float64":   {value: oneNetwork(`"cni-args": {"a": 18446744073709551615}`), differs: object{"cni-args": object{"a": json.Number("18446744073709551615")}}, reason: "arguments are passed on to the byte; Multus decodes them"},
}

// TestOursParsesAnnotationsLikeMultus compares this library's parser with Multus' own.
func TestOursParsesAnnotationsLikeMultus(t *testing.T) {
	var names, values []string
	for name := range annotations {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		values = append(values, annotations[name].value)
	}
	parsed := parsedByMultus(t, values)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			a, theirs := annotations[name], parsed[i]
			selected, err := multinet.Parse(a.value, "pods")
			by := map[[2]bool]string{{true, true}: "both", {true, false}: "ours", {false, true}: "theirs"}[[2]bool{err != nil, theirs.Error != ""}]
			if by != a.refusedBy {
				t.Fatalf("refused by %q, want %q: Multus %q, this library %v", by, a.refusedBy, theirs.Error, err)
			}
			if (a.refusedBy == "ours" || a.differs != nil) != (a.reason != "") {
				t.Errorf("a difference has a reason, and only a difference: %+v", a)
			}
			if by == "" {
				compareNetworks(t, a.differs, elements(t, selected), theirs.Networks)
			}
		})
	}
}

// compareNetworks compares an annotation's networks as this library and as Multus has them.
// differs has the keys that are known to differ.
func compareNetworks(t *testing.T, differs object, ours, theirs []object) {
	t.Helper()
	if n, has := differs["networks"]; has {
		expect.Same(t, "networks", any(len(ours)), n)
		if len(theirs) == len(ours) {
			t.Errorf("Multus has as many networks: %v", theirs)
		}
		return
	}
	if len(ours) != len(theirs) {
		t.Fatalf("networks %v, and of Multus %v", ours, theirs)
	}
	if len(ours) == 0 {
		return // an empty list, or none
	}
	for i := range ours {
		for key, value := range differs {
			if reflect.DeepEqual(ours[i][key], theirs[i][key]) {
				t.Errorf("%s does not differ: %v", key, ours[i][key])
			}
			theirs[i][key] = value
		}
	}
	expect.Same(t, "networks", rendered(t, ours), rendered(t, theirs))
}

// rendered returns JSON with sorted keys.
func rendered(t *testing.T, v any) string {
	t.Helper()
	return string(expect.Value(json.Marshal(v))(t))
}

// exactly decodes JSON and keeps its numbers.
func exactly(t *testing.T, data []byte, v any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	expect.NoError(t, dec.Decode(v))
}

// parsedByMultus has Multus' parser parse values.
func parsedByMultus(t *testing.T, values []string) (parsed []struct {
	Networks []object
	Error    string
}) {
	t.Helper()
	cmd := exec.Command(os.Getenv(parserVar))
	cmd.Stdin = bytes.NewReader(expect.Value(json.Marshal(values))(t))
	exactly(t, expect.Value(cmd.Output())(t), &parsed)
	expect.Same(t, "number of answers", len(parsed), len(values))
	for _, p := range parsed {
		for _, network := range p.Networks {
			delete(network, "interfaceRequest") // Multus leaves it beside interface
			if network["cni-args"] == nil {
				delete(network, "cni-args")
			}
		}
	}
	return parsed
}

// elements returns networks as Multus encodes them.
func elements(t *testing.T, selected []multinet.Selection) (all []object) {
	t.Helper()
	for _, s := range selected {
		e := object{"name": s.Name, "namespace": s.Namespace}
		for key, value := range map[string]string{"interface": s.Interface, "mac": s.MAC, "infiniband-guid": s.InfinibandGUID, "deviceID": s.DeviceID} {
			if value != "" {
				e[key] = value
			}
		}
		if list := s.AddressList(); list != nil {
			e["ips"] = list
		}
		var ports []object
		for _, p := range s.PortMappings {
			port := object{"hostPort": p.HostPort, "containerPort": p.ContainerPort, "protocol": p.Protocol}
			if p.HostIP.IsValid() {
				port["hostIP"] = p.HostIP
			}
			ports = append(ports, port)
		}
		if ports != nil {
			e["portMappings"] = ports
		}
		if b := s.Bandwidth; b != nil {
			e["bandwidth"] = object{"ingressRate": b.IngressRate, "ingressBurst": b.IngressBurst, "egressRate": b.EgressRate, "egressBurst": b.EgressBurst}
		}
		if s.CNIArgs != nil {
			e["cni-args"] = s.CNIArgs
		}
		if s.DefaultRoute != nil {
			e["default-route"] = s.DefaultRoute
		}
		var plain object // as decoding Multus' answer gives it
		exactly(t, fmt.Append(nil, rendered(t, e)), &plain)
		all = append(all, plain)
	}
	return all
}
