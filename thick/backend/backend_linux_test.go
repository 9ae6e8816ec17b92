package backend_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// stage is a host with the scripted plugins p, q and r, which give 10.0.0.1, 10.0.1.1 and
// 10.0.2.1.
type stage struct {
	*testhost.Stage
	runtime *cni.Runtime
	paths   map[string]string
}

func newStage(t *testing.T, opts ...cni.Opt) *stage {
	t.Helper()
	s := &stage{Stage: testhost.NewStage(t), paths: map[string]string{}}
	for i, typ := range []string{"p", "q", "r"} {
		s.Plugin(scripted.Script{}, typ)
		expect.NoError(t, os.Symlink(s.Path("script-"+typ), s.Path("bin", typ)+scripted.Beside))
		out := fmt.Sprintf(`{"cniVersion": "1.0.0", "interfaces": [{"name": %q, "sandbox": "x"}], "ips": [{"interface": 0, "address": "10.0.%d.1/24"}]}`, typ, i)
		s.On(typ, "ADD", scripted.Action{Stdout: &out})
	}
	s.runtime = s.Runtime(append([]cni.Opt{cni.WithOwner("us")}, opts...)...)
	return s
}

// request is a request for a container with a configuration.
func (s *stage) request(id, ifName, config string) *server.Request {
	s.T.Helper()
	if s.paths[id] == "" {
		s.paths[id] = s.Container(id)
	}
	var c struct{ Name, CNIVersion string }
	expect.NoError(s.T, json.Unmarshal([]byte(config), &c))
	return &server.Request{
		ContainerID: id, NetNS: s.paths[id], IfName: ifName, Config: json.RawMessage(config), Network: c.Name, CNIVersion: c.CNIVersion,
	}
}

// delegate is a delegate of one plugin.
func delegate(name, typ string) string { return fmt.Sprintf(`{"name": %q, "type": %q}`, name, typ) }

// delegating is a configuration in Multus' form.
func delegating(name string, delegates ...string) string {
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "type": "shim", "delegates": [%s]}`, name, strings.Join(delegates, ", "))
}

// addresses of a result.
func addresses(t *testing.T, result types.Result, err error) (all []string) {
	t.Helper()
	expect.NoError(t, err)
	r := expect.Value(types100.NewResultFromResult(result))(t)
	for _, ip := range r.IPs {
		all = append(all, ip.Address.String())
	}
	return all
}

// code of a CNI error.
func code(t *testing.T, err error) uint {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no CNI error", err)
	}
	return e.Code
}

func (s *stage) recorded() (all []string) {
	s.T.Helper()
	found := expect.Value(s.runtime.Attachments())(s.T)
	for _, a := range found {
		all = append(all, fmt.Sprintf("%s/%s %s", a.ContainerID, a.IfName, a.Network))
	}
	slices.Sort(all)
	return all
}

func TestDelegatesAreAttachedInOrder(t *testing.T) {
	s := newStage(t)
	b := backend.New(s.runtime, backend.Options{})
	config := delegating("node", delegate("", "p"), `{"name": "list", "cniVersion": "1.0.0", "plugins": [{"type": "q"}, {"type": "r"}]}`, delegate("third", "r"))
	r := s.request("c1", "eth5", config)
	r.Args, r.Pod, r.Began = map[string]string{"K8S_POD_NAME": "web", "X": "y"}, server.Pod{Name: "web", Namespace: "shop", UID: "u1"}, "then"
	got, err := b.Add(t.Context(), r)
	expect.Same(t, "the default network's result", addresses(t, got, err), []string{"10.0.0.1/24"})
	calls := s.TakeCalls()
	expect.Same(t, "ADD", testhost.Rendered(calls), []string{"ADD p c1/eth5", "ADD q c1/net1", "ADD r c1/net1", "ADD r c1/net2"})
	expect.Same(t, "CNI_ARGS", calls[3].Args, "IgnoreUnknown=true;K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop;K8S_POD_UID=u1;X=y")
	expect.Same(t, "version and name", testhost.Request(t, calls[0])["cniVersion"]+testhost.Request(t, calls[0])["name"], `"1.1.0""node"`)
	expect.Same(t, "version of its own", testhost.Request(t, calls[1])["cniVersion"], `"1.0.0"`)
	expect.Same(t, "recorded", s.recorded(), []string{"c1/eth5 node", "c1/net1 list", "c1/net2 third"})
	ledger := expect.Value(b.Attachments(t.Context()))(t)
	expect.Same(t, "ledger", ledger, []server.Attachment{{ContainerID: "c1", IfName: "eth5", Network: "node", NetNS: r.NetNS, Began: "then"}})

	_, err = b.Add(t.Context(), r)
	expect.Same(t, "a second ADD", code(t, err), uint(999))
	later := backend.New(s.Runtime(cni.WithOwner("us")), backend.Options{})
	other := s.request("c1", "eth5", delegating("node", delegate("changed", "z")))
	expect.NoError(t, later.Check(t.Context(), other))
	expect.NoError(t, later.Del(t.Context(), other))
	expect.Same(t, "CHECK and DEL by the record", s.Took(), []string{"CHECK p c1/eth5", "CHECK q c1/net1", "CHECK r c1/net1", "CHECK r c1/net2",
		"DEL r c1/net2", "DEL r c1/net1", "DEL q c1/net1", "DEL p c1/eth5"})
	expect.Same(t, "CHECK of nothing", code(t, later.Check(t.Context(), r)), types.ErrUnknownContainer)
	ledger = expect.Value(later.Attachments(t.Context()))(t)
	expect.Same(t, "ledger", len(ledger), 0)
}

// TestCheckLeavesOutNetworksWithoutIt: those of a version before 0.4.0, as the network of
// Multus' quickstart is.
func TestCheckLeavesOutNetworksWithoutIt(t *testing.T) {
	s := newStage(t)
	b := backend.New(s.runtime, backend.Options{})
	old := func(name, typ string) string {
		return fmt.Sprintf(`{"cniVersion": "0.3.0", "name": %q, "type": %q}`, name, typ)
	}
	r := s.request("c1", "eth0", delegating("node", old("a", "p"), delegate("b", "q"), old("c", "r")))
	none := s.request("c2", "eth0", delegating("node", old("a", "p"), old("c", "r")))
	for _, one := range []*server.Request{r, none} {
		expect.Value(b.Add(t.Context(), one))(t)
	}
	s.Took()
	expect.NoError(t, b.Check(t.Context(), r))
	expect.Same(t, "checked", s.Took(), []string{"CHECK q c1/net1"})
	s.On("q", "CHECK", testhost.Says(101, "gone"))
	expect.Same(t, "a network with CHECK", code(t, b.Check(t.Context(), r)), uint(101))
	expect.Says(t, "no network with CHECK", b.Check(t.Context(), none), "does not support the CHECK command")
}

func TestDelegatesAreRolledBackTogether(t *testing.T) {
	s := newStage(t)
	b := backend.New(s.runtime, backend.Options{})
	s.On("r", "ADD", testhost.Says(113, "no"))
	_, err := b.Add(t.Context(), s.request("c1", "eth0", delegating("node", delegate("a", "p"), delegate("b", "q"), delegate("c", "r"))))
	expect.Same(t, "code", code(t, err), uint(113))
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0", "ADD q c1/net1", "ADD r c1/net2", "DEL r c1/net2", "DEL q c1/net1", "DEL p c1/eth0"})
	expect.Same(t, "recorded", len(s.recorded()), 0)
}

// TestALinkOfAChain: the caller's plugins before gave a previous result. The runtimeConfig
// is the default network's.
func TestALinkOfAChain(t *testing.T) {
	s := newStage(t)
	b := backend.New(s.runtime, backend.Options{})
	prev := `"prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.1/24"}]}, "runtimeConfig": {"mac": "02:00:00:00:00:01"}`
	r := s.request("c1", "eth0", `{"cniVersion": "1.1.0", "name": "node", "type": "shim", `+prev+`, "delegates": [
		{"name": "a", "type": "p", "capabilities": {"mac": true}}, {"name": "b", "type": "q", "capabilities": {"mac": true}}]}`)
	_, err := b.Add(t.Context(), r)
	expect.NoError(t, err)
	var got []string
	for _, c := range s.TakeCalls() {
		request := testhost.Request(t, c)
		got = append(got, fmt.Sprint(c.Type, " ", strings.Contains(request["prevResult"], "10.9.0.1/24"), " ", request["runtimeConfig"]))
	}
	expect.Same(t, "requests", got, []string{`p true {"mac":"02:00:00:00:00:01"}`, "q false "})
	expect.NoError(t, b.Del(t.Context(), r))
	s.Took()

	expect.NoError(t, b.Del(t.Context(), r))
	expect.Same(t, "a DEL of what is not on record", s.Took(), []string{"DEL q c1/net1", "DEL p c1/eth0"})
	bad := s.request("c1", "eth0", strings.Replace(string(r.Config), "10.9.0.1/24", "10.9", 1))
	_, err = b.Add(t.Context(), bad)
	expect.Same(t, "an ADD with a bad result", code(t, err), types.ErrInvalidEnvironmentVariables)
	expect.NoError(t, b.Del(t.Context(), bad))
	expect.Same(t, "a DEL with a bad result", s.Took(), []string{"DEL q c1/net1", "DEL p c1/eth0"})
}

func TestOtherFormsOfARequest(t *testing.T) {
	loaded := func(name, typ string) cni.Opt {
		return cni.WithConfListBytes([]byte(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "plugins": [{"type": %q}]}`, name, typ)))
	}
	s := newStage(t, cni.WithLoNetwork, loaded("one", "p"), loaded("two", "q"), cni.WithBuiltinPlugins())
	b := backend.New(s.runtime, backend.Options{})
	plugins := s.request("c1", "eth0", `{"cniVersion": "1.1.0", "name": "node", "type": "shim", "plugins": [{"type": "q"}, {"type": "r"}]}`)
	got, err := b.Add(t.Context(), plugins)
	expect.Same(t, "plugins", addresses(t, got, err), []string{"10.0.2.1/24"})
	expect.NoError(t, b.Status(t.Context(), plugins))
	expect.NoError(t, b.Del(t.Context(), plugins))
	expect.Same(t, "plugins", s.Took(), []string{"ADD q c1/eth0", "ADD r c1/eth0", "STATUS q /", "STATUS r /", "DEL r c1/eth0", "DEL q c1/eth0"})

	r := s.request("c1", "eth7", `{"cniVersion": "1.1.0", "name": "node", "type": "shim"}`)
	expect.NoError(t, b.Status(t.Context(), r))
	got, err = b.Add(t.Context(), r)
	expect.Same(t, "loaded", addresses(t, got, err), []string{"10.0.0.1/24"})
	expect.Same(t, "recorded", s.recorded(), []string{"c1/eth7 one", "c1/lo cni-loopback", "c1/net1 two"})
	expect.NoError(t, b.Check(t.Context(), r))
	expect.NoError(t, b.Del(t.Context(), r))
	expect.Same(t, "loaded", s.Took(), []string{"STATUS p /", "STATUS q /", "ADD p c1/eth7", "ADD q c1/net1", "CHECK p c1/eth7", "CHECK q c1/net1",
		"DEL q c1/net1", "DEL p c1/eth7"})

	s.On("q", "STATUS", testhost.Says(50, "no"))
	expect.Same(t, "status", code(t, b.Status(t.Context(), plugins)), uint(50))
	_, err = backend.New(s.Runtime(), backend.Options{}).Add(t.Context(), r)
	expect.Same(t, "nothing loaded", code(t, err), uint(50))
}

func TestWhatCannotBeServedIsRefusedBeforeAnythingRuns(t *testing.T) {
	s := newStage(t)
	b := backend.New(s.runtime, backend.Options{})
	for what, config := range map[string]string{
		"both":                 `{"cniVersion": "1.1.0", "name": "node", "delegates": [{"type": "p"}], "plugins": [{"type": "p"}]}`,
		"no delegate":          `{"cniVersion": "1.1.0", "name": "node", "delegates": []}`,
		"null":                 `{"cniVersion": "1.1.0", "name": "node", "delegates": [null]}`,
		"a delegate of text":   `{"cniVersion": "1.1.0", "name": "node", "delegates": ["p"]}`,
		"delegates of text":    `{"cniVersion": "1.1.0", "name": "node", "delegates": "p"}`,
		"a name of numbers":    `{"cniVersion": "1.1.0", "name": "node", "delegates": [{"name": 1, "type": "p"}]}`,
		"no type":              `{"cniVersion": "1.1.0", "name": "node", "delegates": [{"name": "a"}]}`,
		"the second is no one": `{"cniVersion": "1.1.0", "name": "node", "delegates": [{"type": "p"}, {"type": "../q"}]}`,
		"no plugins":           `{"cniVersion": "1.1.0", "name": "node", "plugins": []}`,
		"a newer version":      `{"cniVersion": "1.1.0", "name": "node", "delegates": [{"cniVersion": "9.0.0", "type": "p"}]}`,
	} {
		_, err := b.Add(t.Context(), s.request("c1", "eth0", config))
		expect.Same(t, what, code(t, err), types.ErrInvalidNetworkConfig)
	}
	expect.Same(t, "calls", s.Took(), []string{})
	expect.Same(t, "recorded", len(s.recorded()), 0)
}

// annotated returns a Backend for pods with an annotation, and networks "a" and "b" in any
// namespace.
func (s *stage) annotated(value string, o backend.Options) *backend.Backend {
	o.Networks = func(context.Context, *server.Request) (string, error) { return value, nil }
	if o.Lookup == nil {
		o.Lookup = func(_ context.Context, _ *server.Request, sel multinet.Selection) (multinet.Definition, error) {
			switch sel.Name {
			case "a": // without a name and a version
				return multinet.Definition{Config: []byte(`{"type": "q", "capabilities": {"ips": true, "mac": true, "portMappings": true, "bandwidth": true, "infinibandGUID": true, "deviceID": true}}`)}, nil
			case "b":
				return multinet.Definition{Config: []byte(`{"cniVersion": "1.0.0", "name": "second", "plugins": [{"type": "r"}]}`)}, nil
			}
			return multinet.Definition{}, errors.New("there is none")
		}
	}
	return backend.New(s.runtime, o)
}

func TestNetworksOfTheAnnotation(t *testing.T) {
	s := newStage(t)
	var status string
	b := s.annotated(`[{"name": "a", "interface": "storage", "ips": ["10.0.1.1/24"], "mac": "02:00:00:00:00:01", "infiniband-guid": "02:00:00:00:00:00:00:01",
		"portMappings": [{"hostPort": 8080, "containerPort": 80}], "bandwidth": {"ingressRate": 8, "ingressBurst": 9}, "cni-args": {"k": [1]}, "deviceID": "d"},
		{"name": "b", "namespace": "ns", "ips": ["10.0.2.1", "fd00::1"], "mac": "02:00:00:00:00:02"}]`, backend.Options{
		OnStatus: func(_ context.Context, _ *server.Request, value string) error { status = value; return nil },
	})
	r := s.request("c1", "eth0", delegating("node", delegate("cluster", "p")))
	r.Pod = server.Pod{Namespace: "shop", Name: "web"}
	got, err := b.Add(t.Context(), r)
	expect.Same(t, "result", addresses(t, got, err), []string{"10.0.0.1/24"})
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"ADD p c1/eth0", "ADD q c1/storage", "ADD r c1/net2"})
	first, second := testhost.Request(t, calls[1]), testhost.Request(t, calls[2])
	expect.Same(t, "capabilities", expect.JSON(t, first["runtimeConfig"]), expect.JSON(t, `{"ips": ["10.0.1.1/24"], "mac": "02:00:00:00:00:01",
		"infinibandGUID": "02:00:00:00:00:00:00:01", "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
		"bandwidth": {"ingressRate": 8, "ingressBurst": 9}, "deviceID": "d"}`))
	expect.Same(t, "arguments", first["args"]+first["name"], `{"cni":{"k":[1]}}"a"`)
	expect.Same(t, "name", second["name"], `"second"`)
	expect.Same(t, "without capabilities", calls[2].Args,
		"IP=10.0.2.1,fd00::1;IgnoreUnknown=true;K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop;MAC=02:00:00:00:00:02")
	var statuses []multinet.Status
	expect.NoError(t, json.Unmarshal([]byte(status), &statuses))
	var short []string
	for _, one := range statuses {
		short = append(short, fmt.Sprint(one.Name, " ", one.IPs, " ", one.Default))
	}
	expect.Same(t, "status", short, []string{"cluster [10.0.0.1] true", "shop/a [10.0.1.1] false", "ns/b [10.0.2.1] false"})
	expect.NoError(t, b.Del(t.Context(), r))
	expect.Same(t, "recorded", len(s.recorded()), 0)
}

func TestAnnotationsThatCannotBeServed(t *testing.T) {
	s := newStage(t)
	failing := errors.New("the API server is away")
	for what, tt := range map[string]struct {
		b    *backend.Backend
		code uint
	}{
		"no annotation":     {s.annotated("a/b/c", backend.Options{}), types.ErrInvalidNetworkConfig},
		"an unknown one":    {s.annotated("a,zzz", backend.Options{}), 999},
		"one interface":     {s.annotated("a@eth0", backend.Options{}), types.ErrInvalidEnvironmentVariables},
		"nobody looks up":   {backend.New(s.runtime, backend.Options{Networks: func(context.Context, *server.Request) (string, error) { return "a", nil }}), types.ErrInvalidNetworkConfig},
		"no API server":     {backend.New(s.runtime, backend.Options{Networks: func(context.Context, *server.Request) (string, error) { return "", failing }}), 999},
		"a code of its own": {backend.New(s.runtime, backend.Options{Networks: func(context.Context, *server.Request) (string, error) { return "", types.NewError(11, "later", "") }}), 11},
	} {
		_, err := tt.b.Add(t.Context(), s.request("c1", "eth0", delegating("node", delegate("cluster", "p"))))
		expect.Same(t, what, code(t, err), tt.code)
		expect.Same(t, what, s.Took(), []string{})
	}
	b := s.annotated("b", backend.Options{OnStatus: func(context.Context, *server.Request, string) error { return failing }})
	_, err := b.Add(t.Context(), s.request("c1", "eth0", delegating("node", delegate("cluster", "p"))))
	expect.Says(t, "error", err, failing.Error())
	expect.Same(t, "undone", s.Took(), []string{"ADD p c1/eth0", "ADD r c1/net1", "DEL r c1/net1", "DEL p c1/eth0"})
	expect.Same(t, "recorded", len(s.recorded()), 0)
}

// plug attaches an interface as an earlier version did beside those of Adds.
func (s *stage) plug(id string) {
	s.T.Helper()
	metadata := map[string]string{"server.network": "hot", "server.interface": "hot0", "server.delegate": "true"}
	expect.Value(s.runtime.Setup(s.T.Context(), id, s.paths[id], cni.WithMetadata(metadata),
		cni.WithNetworkConfig([]byte(`{"cniVersion": "1.1.0", "name": "hot", "type": "r"}`), cni.WithInterfaceName("hot0"))))(s.T)
	s.AddLink(id, "hot0")
}

// TestDelIsForOneInterface: another request for the container, and what others have made,
// stays.
func TestDelIsForOneInterface(t *testing.T) {
	s := newStage(t)
	b := backend.New(s.runtime, backend.Options{})
	first := s.request("c1", "eth0", delegating("one", delegate("", "p")))
	second := s.request("c1", "eth1", delegating("two", delegate("", "q")))
	for _, r := range []*server.Request{first, second} {
		expect.Value(b.Add(t.Context(), r))(t)
		s.AddLink("c1", r.IfName)
	}
	s.plug("c1")
	expect.Value(s.Runtime(cni.WithOwner("them")).Setup(t.Context(), "c1", first.NetNS,
		cni.WithNetworkConfig([]byte(`{"cniVersion": "1.1.0", "name": "theirs", "type": "r"}`), cni.WithInterfaceName("eth9"))))(t)
	s.AddLink("c1", "eth9")
	s.Took()

	expect.NoError(t, b.Del(t.Context(), s.request("c1", "eth5", string(first.Config))))
	expect.NoError(t, b.Del(t.Context(), s.request("c1", "eth9", `{"cniVersion": "1.1.0", "name": "theirs", "plugins": [{"type": "r"}]}`)))
	expect.Same(t, "nothing is meant", s.Took(), []string{})
	expect.NoError(t, b.Del(t.Context(), first))
	expect.NoError(t, b.Del(t.Context(), first))
	expect.Same(t, "the first", s.Took(), []string{"DEL p c1/eth0"})
	expect.NoError(t, b.Del(t.Context(), second))
	expect.Same(t, "the last takes along what was plugged", s.Took(), []string{"DEL r c1/hot0", "DEL q c1/eth1"})
	expect.Same(t, "others'", s.recorded(), []string{"c1/eth9 theirs"})
}

func (s *stage) gc(b *backend.Backend, config string, valid ...string) {
	s.T.Helper()
	r := s.request("unused", "", config)
	r.ContainerID, r.NetNS = "", ""
	for _, pair := range valid {
		id, ifName, _ := strings.Cut(pair, "/")
		r.Valid = append(r.Valid, types.GCAttachment{ContainerID: id, IfName: ifName})
	}
	expect.NoError(s.T, b.GC(s.T.Context(), r))
}

func TestGCIsByPairsOfContainerAndInterface(t *testing.T) {
	s := newStage(t)
	b := backend.New(s.runtime, backend.Options{})
	node := delegating("node", delegate("cluster", "p"), delegate("more", "q"))
	other := delegating("other", delegate("", "r"))
	add := func(id, ifName, config string) {
		t.Helper()
		r := s.request(id, ifName, config)
		// Two requests for one container have extra networks of other names.
		r.Config = json.RawMessage(strings.Replace(string(r.Config), `"more"`, fmt.Sprintf(`"more%s"`, ifName), 1))
		expect.Value(b.Add(t.Context(), r))(t)
		for _, a := range s.recorded() {
			if name, _, _ := strings.Cut(a, " "); strings.HasPrefix(name, id+"/") && !slices.Contains(s.links(id), strings.TrimPrefix(name, id+"/")) {
				s.AddLink(id, strings.TrimPrefix(name, id+"/"))
			}
		}
	}
	for _, id := range []string{"c1", "c2", "c3"} {
		add(id, "eth0", node)
		add(id, "eth1", other)
	}
	for _, id := range []string{"c2", "c3"} {
		s.plug(id)
	}
	them := s.Runtime(cni.WithOwner("them"))
	expect.Value(backend.New(them, backend.Options{}).Add(t.Context(), s.request("c4", "eth0", node)))(t)
	s.Took()

	s.gc(b, node, "c1/eth0", "c3/eth0")
	expect.Same(t, "an interface that is not listed", s.recorded(), []string{
		"c1/eth0 cluster", "c1/eth1 other", "c1/net1 moreeth0",
		"c2/eth1 other", "c2/hot0 hot",
		"c3/eth0 cluster", "c3/eth1 other", "c3/hot0 hot", "c3/net1 moreeth0",
		"c4/eth0 cluster", "c4/net1 more",
	})
	calls := s.TakeCalls()
	expect.Same(t, "plugins asked", testhost.Rendered(calls), []string{"DEL q c2/net1", "DEL p c2/eth0", "GC p /", "GC q /"})
	s.gc(b, other, "c1/eth1", "c1/eth0", "c2/eth0")
	expect.Same(t, "the last of a container", s.recorded(), []string{
		"c1/eth0 cluster", "c1/eth1 other", "c1/net1 moreeth0", "c3/eth0 cluster", "c3/hot0 hot", "c3/net1 moreeth0", "c4/eth0 cluster", "c4/net1 more",
	})
	s.gc(b, node)
	s.gc(b, other)
	expect.Same(t, "none is valid", s.recorded(), []string{"c4/eth0 cluster", "c4/net1 more"})
	expect.Value(them.GC(t.Context(), cni.GCOptions{KeepNone: true}))(t)
}

// links returns the interfaces of a container.
func (s *stage) links(id string) (names []string) {
	s.T.Helper()
	ns := expect.Value(netns.Open(s.Path("netns", id)))(s.T)
	defer ns.Close()
	nettest.Inside(s.T, ns, func(nl *netlink.Handle) error {
		all, err := nl.LinkList()
		for _, l := range all {
			names = append(names, l.Attrs().Name)
		}
		return err
	})
	return names
}

// listing is a Runtime that says when it has listed its attachments.
type listing struct {
	backend.Runtime
	once   sync.Once
	listed chan struct{}
}

func (l *listing) Attachments(ids ...string) ([]cni.Attachment, error) {
	defer l.once.Do(func() { close(l.listed) })
	return l.Runtime.Attachments(ids...)
}

// TestGCKeepsWhatBeganMeanwhile: the client made its list before.
func TestGCKeepsWhatBeganMeanwhile(t *testing.T) {
	s := newStage(t)
	b := backend.New(s.runtime, backend.Options{})
	collector := &listing{Runtime: s.runtime, listed: make(chan struct{})}
	config := delegating("node", delegate("", "p"))
	gate := s.Gate("p")
	out := `{"cniVersion": "1.0.0"}`
	s.On("p", "ADD", scripted.Action{Block: gate, Stdout: &out})
	r := s.request("c1", "eth0", config)
	added := testhost.Begin(func() error { _, err := b.Add(t.Context(), r); return err })
	letGo := s.Arrive(gate)
	collected := testhost.Begin(func() error {
		return backend.New(collector, backend.Options{}).GC(t.Context(), &server.Request{Config: json.RawMessage(config), Network: "node", CNIVersion: "1.1.0"})
	})
	expect.Await(t, "the list of the GC", collector.listed)
	letGo()
	expect.NoError(t, expect.Await(t, "ADD", added))
	expect.NoError(t, expect.Await(t, "GC", collected))
	expect.Same(t, "recorded", s.recorded(), []string{"c1/eth0 node"})
	expect.NoError(t, b.Del(t.Context(), r))
}
