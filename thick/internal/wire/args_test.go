package wire_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/internal/wire"
)

// env returns the variables of a complete ADD, changed by "key=value" pairs; "key" alone
// removes one.
func env(changes ...string) map[string]string {
	e := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/c1", "CNI_IFNAME": "net1",
		"CNI_ARGS": "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0.x;K8S_POD_UID=u-1;K8S_POD_INFRA_CONTAINER_ID=c1",
		"CNI_PATH": "/opt/cni/bin:/usr/lib/cni", "HOME": "/root",
	}
	for _, c := range changes {
		if key, value, ok := strings.Cut(c, "="); ok {
			e[key] = value
		} else {
			delete(e, key)
		}
	}
	return e
}

func TestArgumentsAreTyped(t *testing.T) {
	complete := wire.Args{
		Command: "ADD", ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "net1",
		Args: map[string]string{"K8S_POD_NAMESPACE": "ns", "K8S_POD_NAME": "web-0.x", "K8S_POD_UID": "u-1", "K8S_POD_INFRA_CONTAINER_ID": "c1"},
		Pod:  wire.Pod{Namespace: "ns", Name: "web-0.x", UID: "u-1", InfraContainerID: "c1"},
		Path: []string{"/opt/cni/bin", "/usr/lib/cni"},
	}
	but := func(change func(*wire.Args)) wire.Args {
		a := complete
		a.Args = maps.Clone(a.Args)
		change(&a)
		return a
	}
	onWire, shim, kubernetes := wire.Rules{IfName: "eth0"}, wire.Rules{}, wire.Rules{IfName: "eth0", Kubernetes: true}
	for name, c := range map[string]struct {
		rules wire.Rules
		env   map[string]string
		want  wire.Args
	}{
		"complete, wire":        {onWire, env(), complete},
		"complete, shim":        {shim, env(), complete},
		"complete, kubernetes":  {kubernetes, env(), complete},
		"interface by default":  {onWire, env("CNI_IFNAME"), but(func(a *wire.Args) { a.IfName = "eth0" })},
		"interface empty":       {onWire, env("CNI_IFNAME="), but(func(a *wire.Args) { a.IfName = "eth0" })},
		"DEL without namespace": {kubernetes, env("CNI_COMMAND=DEL", "CNI_NETNS"), but(func(a *wire.Args) { a.Command, a.NetNS = "DEL", "" })},
		"CHECK":                 {shim, env("CNI_COMMAND=CHECK"), but(func(a *wire.Args) { a.Command = "CHECK" })},
		"no path":               {shim, env("CNI_PATH"), but(func(a *wire.Args) { a.Path = []string{} })},
		"others of CNI":         {shim, env("CNI_NETNS_OVERRIDE=True"), complete},
		"no arguments":          {onWire, env("CNI_ARGS"), but(func(a *wire.Args) { a.Args, a.Pod = nil, wire.Pod{} })},
		"arguments of others":   {onWire, env("CNI_ARGS=IgnoreUnknown=1;X="), but(func(a *wire.Args) { a.Args, a.Pod = map[string]string{"IgnoreUnknown": "1", "X": ""}, wire.Pod{} })},
		"pod without UID": {kubernetes, env("CNI_ARGS=K8S_POD_NAMESPACE=a;K8S_POD_NAME=b"), but(func(a *wire.Args) {
			a.Args, a.Pod = map[string]string{"K8S_POD_NAMESPACE": "a", "K8S_POD_NAME": "b"}, wire.Pod{Namespace: "a", Name: "b"}
		})},
		"GC needs no container":  {kubernetes, env("CNI_COMMAND=GC", "CNI_CONTAINERID", "CNI_ARGS"), wire.Args{Command: "GC", Path: complete.Path}},
		"STATUS ignores others'": {kubernetes, env("CNI_COMMAND=STATUS", "CNI_CONTAINERID=/", "CNI_ARGS=x"), wire.Args{Command: "STATUS", Path: complete.Path}},
		"VERSION":                {kubernetes, map[string]string{"CNI_COMMAND": "VERSION"}, wire.Args{Command: "VERSION"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.rules.Parse(c.env)
			if err != nil {
				t.Fatal(err)
			}
			expect.Same(t, "arguments", *got, c.want)
		})
	}
}

func TestArgumentsAreRefused(t *testing.T) {
	onWire, shim, kubernetes := wire.Rules{IfName: "eth0"}, wire.Rules{}, wire.Rules{IfName: "eth0", Kubernetes: true}
	for name, c := range map[string]struct {
		rules wire.Rules
		env   map[string]string
		want  string // in the message
	}{
		"no verb":                      {onWire, env("CNI_COMMAND"), "required env variables [CNI_COMMAND] missing"},
		"unknown verb":                 {onWire, env("CNI_COMMAND=add"), `unknown verb "add"`},
		"several missing":              {shim, env("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"), "[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME] missing"},
		"no container":                 {onWire, env("CNI_CONTAINERID="), "[CNI_CONTAINERID] missing"},
		"DEL without container":        {onWire, env("CNI_COMMAND=DEL", "CNI_CONTAINERID"), "[CNI_CONTAINERID] missing"},
		"ADD without namespace":        {onWire, env("CNI_NETNS"), "[CNI_NETNS] missing"},
		"CHECK without namespace":      {onWire, env("CNI_COMMAND=CHECK", "CNI_NETNS="), "[CNI_NETNS] missing"},
		"container ID is a path":       {onWire, env("CNI_CONTAINERID=../c1"), "invalid characters in containerID"},
		"relative namespace":           {onWire, env("CNI_NETNS=netns/c1"), "not an absolute path"},
		"namespace with NUL":           {onWire, env("CNI_NETNS=/run/netns/c1\x00x"), "not an absolute path"},
		"shim without interface":       {shim, env("CNI_IFNAME"), "[CNI_IFNAME] missing"},
		"interface too long":           {onWire, env("CNI_IFNAME=abcdefghijklmnop"), "interface name is too long"},
		"interface is a path":          {onWire, env("CNI_IFNAME=a/b"), "interface name contains"},
		"interface with NUL":           {onWire, env("CNI_IFNAME=a\x00"), "has a NUL"},
		"argument without value":       {onWire, env("CNI_ARGS=a=b;c"), `"c" is not of the form KEY=VALUE`},
		"argument with two values":     {onWire, env("CNI_ARGS=a=b=c"), `"a=b=c" is not of the form`},
		"argument without key":         {onWire, env("CNI_ARGS==b"), `"=b" is not of the form`},
		"empty argument":               {onWire, env("CNI_ARGS=a=b;"), `"" is not of the form`},
		"argument twice":               {onWire, env("CNI_ARGS=a=b;a=c"), `"a" occurs twice`},
		"argument with a line break":   {onWire, env("CNI_ARGS=a=b\nc"), "has a line break"},
		"argument with a blank in it":  {onWire, env("CNI_ARGS=a=b; c=d"), `the key " c" has a blank`},
		"kubernetes without arguments": {kubernetes, env("CNI_ARGS"), "[CNI_ARGS] missing"},
		"DEL without arguments":        {kubernetes, env("CNI_COMMAND=DEL", "CNI_ARGS="), "[CNI_ARGS] missing"},
		"kubernetes without pod":       {kubernetes, env("CNI_ARGS=IgnoreUnknown=1"), "[K8S_POD_NAMESPACE,K8S_POD_NAME] missing"},
		"kubernetes without name":      {kubernetes, env("CNI_ARGS=K8S_POD_NAMESPACE=a;K8S_POD_NAME="), "[K8S_POD_NAME] missing"},
		"namespace is a path":          {kubernetes, env("CNI_ARGS=K8S_POD_NAMESPACE=../a;K8S_POD_NAME=b"), "is not a name of Kubernetes"},
		"name in capitals":             {kubernetes, env("CNI_ARGS=K8S_POD_NAMESPACE=a;K8S_POD_NAME=B"), "is not a name of Kubernetes"},
		"name ends in a hyphen":        {kubernetes, env("CNI_ARGS=K8S_POD_NAMESPACE=a;K8S_POD_NAME=b-"), "is not a name of Kubernetes"},
		"name too long":                {kubernetes, env("CNI_ARGS=K8S_POD_NAMESPACE=a;K8S_POD_NAME=" + strings.Repeat("b", 254)), "is not a name of Kubernetes"},
		"UID is a path":                {kubernetes, env("CNI_ARGS=K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=a/b"), "is not an identifier"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.rules.Parse(c.env)
			if err == nil {
				t.Fatalf("%+v was accepted", got)
			}
			if got != nil || err.Code != 4 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, code %d: %v; want code 4 with %q", got, err.Code, err, c.want)
			}
		})
	}
}
