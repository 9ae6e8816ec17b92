package behaviour_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/plugin"
)

// chosen is a port that is left open.
func chosen(label string, protocols ...string) cni.NamespaceOpts {
	return cni.WithPorts(cni.Port{Label: label, ContainerPort: 80, Protocols: protocols})
}

// got returns the host port of a label.
func got(t testing.TB, res *cni.Result, label string) int32 {
	t.Helper()
	p, ok := res.Port(label)
	expect.Must(t, ok && p.HostPort != 0, "no port %q in %+v", label, res.Requested)
	return p.HostPort
}

// TestPortsAreChosen, forwarded, and returned by their labels, after a restart too, until
// the container is removed. Plugins see no labels.
func TestPortsAreChosen(t *testing.T) {
	for _, b := range portBackends() {
		t.Run(b.name, func(t *testing.T) {
			h := newRealHost(t)
			network := h.portNetwork("one", "81", b)
			r := h.forwarding(b, network, cni.WithPortRange(7000, 7009))
			c1 := h.Container("c1")
			h.Serve(c1, 80)
			before := h.Audit()
			res, err := r.Setup(t.Context(), "c1", c1, mapped(mapping("tcp", "", 8080)),
				cni.WithPorts(cni.Port{Label: "fixed", HostPort: 8081, ContainerPort: 80}), chosen("http", "TCP", "udp"), chosen("admin"))
			expect.NoError(t, err)
			http, admin := got(t, res, "http"), got(t, res, "admin")
			expect.That(t, http != admin && http >= 7000 && http <= 7009 && admin >= 7000 && admin <= 7009, "http has %d, admin has %d", http, admin)
			requested := []cni.Port{
				{Label: "fixed", HostPort: 8081, ContainerPort: 80, Protocols: []string{"tcp"}},
				{Label: "http", HostPort: http, ContainerPort: 80, Protocols: []string{"tcp", "udp"}},
				{Label: "admin", HostPort: admin, ContainerPort: 80, Protocols: []string{"tcp"}},
			}
			expect.Same(t, "requested", res.Requested, requested)
			all := []cni.PortMapping{mapping("tcp", "", 8080), mapping("tcp", "", 8081), mapping("tcp", "", http), mapping("udp", "", http), mapping("tcp", "", admin)}
			expect.Same(t, "forwarded", res.Networks[0].Ports, all)
			for _, m := range all {
				if m.Protocol == "tcp" {
					h.WantAnswers([]testhost.Question{{Network: "tcp", To: fmt.Sprint("127.0.0.1:", m.HostPort), Want: "10.81.0.1"}})
				}
			}
			data := expect.Value(json.Marshal(res))(t)
			var read cni.Result
			expect.NoError(t, json.Unmarshal(data, &read))
			expect.Same(t, "requested, from JSON", read.Requested, requested)

			later := h.forwarding(b, network)
			expect.Same(t, "requested, on record", expect.Value(later.Lookup("c1"))(t).Requested, requested)
			expect.Same(t, "requested, listed", expect.Value(later.Attachments())(t)[0].Requested, requested)
			expect.NoError(t, later.Check(t.Context(), "c1", c1))
			_, ok := res.Port("")
			expect.That(t, !ok, "a port without a label")
			expect.NoError(t, later.Remove(t.Context(), "c1", c1))
			h.WantClean(before)
		})
	}
}

// TestPluginsSeeChosenPortsAsMappings, and nothing else: to the byte as without WithPorts.
func TestPluginsSeeChosenPortsAsMappings(t *testing.T) {
	s := newStage(t)
	seen := make(chan string, 9)
	p := testhost.Acting{On: map[string]testhost.Action{"ADD": func(_ context.Context, r *plugin.Request) error {
		var c struct{ RuntimeConfig json.RawMessage }
		err := json.Unmarshal(r.Config, &c)
		seen <- string(c.RuntimeConfig)
		return err
	}}}
	conf := `{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": "p", "capabilities": {"portMappings": true}}]}`
	r := s.Runtime(cni.WithPlugin("p", p), cni.WithPortRange(7000, 7000),
		cni.WithConfListBytes(fmt.Appendf(nil, conf, "one")), cni.WithConfListBytes(fmt.Appendf(nil, conf, "two")))
	c1 := s.Container("c1")
	res := testhost.MustSetUp(t, r, "c1", c1, chosen("http", "udp", "tcp"))
	expect.Same(t, "requested", res.Requested, []cni.Port{{Label: "http", HostPort: 7000, ContainerPort: 80, Protocols: []string{"udp", "tcp"}}})
	for range 2 { // both networks share the port
		expect.Same(t, "seen", <-seen, `{"portMappings":[{"hostPort":7000,"containerPort":80,"protocol":"udp"},{"hostPort":7000,"containerPort":80,"protocol":"tcp"}]}`)
	}
	expect.Same(t, "on record", expect.Value(r.Lookup("c1"))(t).Requested, res.Requested)
}

// sysctl sets a value of the host, which the test's thread is in.
func sysctl(t *testing.T, name, value string) {
	t.Helper()
	expect.NoError(t, os.WriteFile("/proc/sys/"+name, []byte(value), 0o600))
}

// wantNoneLeft expects that no port of the range of r is free.
func wantNoneLeft(t *testing.T, r *cni.Runtime, path, want string) {
	t.Helper()
	_, err := r.Setup(t.Context(), "late", path, chosen("http"))
	expect.Is(t, err, cni.ErrPortInUse)
	expect.Same(t, "error", fmt.Sprint(err), `set up container "late": `+want)
}

// TestARangeWithoutAFreePort says who has the ports. Those on record of another boot are
// free.
func TestARangeWithoutAFreePort(t *testing.T) {
	s, runtime := portStage(t, cni.WithPortRange(7000, 7005))
	r, foreign := runtime(), runtime(cni.WithOwner("another program"))
	sysctl(t, "net/ipv4/ip_local_port_range", "7005 8000")
	expect.NoError(t, exec.Command("ip", "link", "set", "lo", "up").Run())
	l := expect.Value(net.Listen("tcp4", "127.0.0.1:7002"))(t)
	defer func() { expect.NoError(t, l.Close()) }()
	var given []int32
	for i := range 4 {
		owner := r
		if i == 0 {
			owner = foreign
		}
		id := fmt.Sprint("c", i)
		res := testhost.MustSetUp(t, owner, id, s.Container(id), chosen("http"))
		given = append(given, got(t, res, "http"))
	}
	slices.Sort(given)
	expect.Same(t, "given", given, []int32{7000, 7001, 7003, 7004})
	late := s.Container("late")
	own := filepath.Base(os.Args[0])
	wantNoneLeft(t, r, late, fmt.Sprintf("0 of the host ports 7000 to 7005 are free, and 1 are needed; containers of %q have 1; containers of %q have 3; "+
		"processes of the host use 1; 1 are ephemeral or reserved on the host", "another program", own))

	s.ChangeRecord("c0", func(rec *record.Record) { rec.Boot = "another" })
	_, err := r.Setup(t.Context(), "late", late, chosen("http"), cni.WithPorts(cni.Port{ContainerPort: 81}))
	expect.Is(t, err, cni.ErrPortInUse)
	fails(t, err, "1 of the host ports 7000 to 7005 are free, and 2 are needed")
	port := got(t, testhost.MustSetUp(t, r, "late", late, chosen("http")), "http")
	expect.That(t, slices.Contains(given, port), "the port of another boot is %d, not one of %d", port, given)
}

// TestADeadContainerIsRemovedForItsChosenPort, if no other is free.
func TestADeadContainerIsRemovedForItsChosenPort(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(h.portNetwork("one", "81", portBackends()[0]), cni.WithPortRange(7000, 7001))
	testhost.MustSetUp(t, r, "c1", h.Container("c1"), chosen("http"))
	for range 3 {
		dies(t, r, "dead", chosen("http"))
	}
	testhost.MustSetUp(t, r, "c2", h.Container("c2"), chosen("http"))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached", "c2/eth0 attached"})
	wantNoneLeft(t, r, h.Container("late"), fmt.Sprintf("0 of the host ports 7000 to 7001 are free, and 1 are needed; containers of %q have 2", filepath.Base(os.Args[0])))
}

// TestPortsOfTheKernelAreNotChosen: ephemeral ones unless they are reserved, and of the
// default range none that is reserved.
func TestPortsOfTheKernelAreNotChosen(t *testing.T) {
	s, runtime := portStage(t)
	path := s.Container("late")
	sysctl(t, "net/ipv4/ip_local_port_range", "7000 8000")
	named := runtime(cni.WithPortRange(7000, 7002))
	wantNoneLeft(t, named, path, "0 of the host ports 7000 to 7002 are free, and 1 are needed; 3 are ephemeral or reserved on the host")
	sysctl(t, "net/ipv4/ip_local_reserved_ports", "7001")
	res := testhost.MustSetUp(t, named, "late", path, chosen("http"))
	expect.Same(t, "the reserved one", got(t, res, "http"), int32(7001))
	expect.NoError(t, named.Remove(t.Context(), "late", path))

	sysctl(t, "net/ipv4/ip_local_reserved_ports", "20000-29998")
	r := runtime()
	res = testhost.MustSetUp(t, r, "late", path, chosen("http"))
	expect.Same(t, "the one that is not reserved", got(t, res, "http"), int32(29999))
	expect.NoError(t, r.Remove(t.Context(), "late", path))
	sysctl(t, "net/ipv4/ip_local_port_range", "29999 40000")
	wantNoneLeft(t, r, path, "0 of the host ports 20000 to 29999 are free, and 1 are needed; 10000 are ephemeral or reserved on the host")
}

// TestAnIDThatIsTooLongSaysNothingOfPorts: whether a plugin takes them is not known.
func TestAnIDThatIsTooLongSaysNothingOfPorts(t *testing.T) {
	_, runtime := portStage(t)
	_, err := runtime().Plan(strings.Repeat("x", 250), "/run/netns/x", chosen("http"))
	expect.Is(t, err, cni.ErrInvalidArgument)
	expect.Lacks(t, "error", fmt.Sprint(err), "ports")
}

// TestPortsThatMapNothing are refused before anything runs; a removal refuses nothing.
func TestPortsThatMapNothing(t *testing.T) {
	s, runtime := portStage(t)
	r, c1 := runtime(), s.Container("c1")
	deaf := s.Runtime(cni.WithPlugin("idle", testhost.Idle{}), cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "idle"}]}`)))
	none := `ports are asked for, and no plugin of network "net" declares the capability portMappings: add portmap with "capabilities": {"portMappings": true}: invalid argument`
	for _, tt := range []struct {
		r    *cni.Runtime
		opts []cni.NamespaceOpts
		want string
	}{
		{deaf, []cni.NamespaceOpts{chosen("http")}, none},
		{deaf, []cni.NamespaceOpts{cni.WithNetwork("net", chosen("http"))}, none},
		{r, []cni.NamespaceOpts{chosen("http"), chosen("http")}, `two ports have the label "http": invalid argument`},
		{r, []cni.NamespaceOpts{chosen("http", "tcp", "TCP")}, `port http: protocol tcp is named twice: invalid argument`},
		{r, []cni.NamespaceOpts{chosen("http", "icmp")}, `port http: protocol "icmp" is none of tcp, udp, sctp: invalid argument`},
		{r, []cni.NamespaceOpts{web(), cni.WithPorts(cni.Port{HostPort: 8080, ContainerPort: 1})}, `host port :8080->1/tcp is mapped twice: invalid argument`},
		{r, []cni.NamespaceOpts{cni.WithCapability("portMappings", "all"), chosen("http")}, `WithPorts beside a capability portMappings of another type than PortMapping: invalid argument`},
	} {
		_, err := tt.r.Setup(t.Context(), "c1", c1, tt.opts...)
		expect.Is(t, err, cni.ErrInvalidArgument)
		expect.Same(t, "error", err.Error(), `set up container "c1": `+tt.want)
	}
	expect.NoError(t, deaf.Remove(t.Context(), "c1", c1, chosen("http")))
}

// TestAKilledRuntimeKeepsItsPorts until Recover removes the container: it was killed after
// the ports were chosen, while the first plugin ran.
func TestAKilledRuntimeKeepsItsPorts(t *testing.T) {
	s := newStage(t)
	gate := s.Gate("p")
	s.On("p", "ADD", scripted.Action{Block: gate})
	s.Network("net", "1.0.0", "p")
	conf := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "p", "script": %q, "capabilities": {"portMappings": true}}]}`, s.Path("script-p"))
	process, done := s.ProcessFor(testhost.Job{Verb: addChosen, ID: "c1", NetNS: s.Container("c1"), Conf: conf}, nil)
	letGo := s.Arrive(gate)
	expect.NoError(t, process.Kill())
	expect.Same(t, "the runtime", expect.Await(t, "the end of the runtime", done), "signal: killed")
	r := s.Runtime(cni.WithConfListBytes(conf))
	port := int(expect.Value(r.Attachments())(t)[0].Requested[0].HostPort)
	one := s.Runtime(cni.WithConfListBytes(conf), cni.WithPortRange(port, port))
	c2 := s.Container("c2")
	expect.Is(t, errOf(one.Setup(t.Context(), "c2", c2, chosen("http"))), cni.ErrPortInUse)
	letGo()
	expect.Value(r.Recover(t.Context()))(t)
	s.On("p", "ADD", gives("10.0.0.1/24"))
	expect.Same(t, "port", got(t, testhost.MustSetUp(t, one, "c2", c2, chosen("http")), "http"), int32(port))
}

const addChosen = "ADD CHOSEN"

// addWithChosen is a job for another process: a Setup with a port that is chosen.
func addWithChosen(ctx context.Context, r *cni.Runtime, j testhost.Job) error {
	_, err := r.Setup(ctx, j.ID, j.NetNS, chosen("http"))
	return err
}

// TestManyChooseAtOnce: several programs attach containers at the same time, in a range that
// has fewer ports. Each port is one container's, the others are refused, and none is lost.
func TestManyChooseAtOnce(t *testing.T) {
	const many, ports = 12, 8
	s, runtime := portStage(t, cni.WithPortRange(7000, 7000+ports-1))
	runtimes := []*cni.Runtime{runtime(), runtime(cni.WithOwner("another program")), runtime()}
	var paths []string
	for i := range many {
		paths = append(paths, s.Container(fmt.Sprint("c", i)))
	}
	for range 10 {
		results, errs := make([]*cni.Result, many), make([]error, many)
		_ = testhost.InParallel(many, func(i int) error {
			results[i], errs[i] = runtimes[i%3].Setup(t.Context(), fmt.Sprint("c", i), paths[i], chosen("http"))
			return nil
		})
		holders := map[int32]string{}
		for i, err := range errs {
			id := fmt.Sprint("c", i)
			if err != nil {
				expect.Is(t, err, cni.ErrPortInUse)
				continue
			}
			port := got(t, results[i], "http")
			expect.Same(t, fmt.Sprintf("port %d of %s is also that of", port, id), holders[port], "")
			holders[port] = id
		}
		expect.Same(t, "ports of somebody", len(holders), ports)
		expect.NoError(t, testhost.InParallel(many, func(i int) error { return runtimes[i%3].Remove(t.Context(), fmt.Sprint("c", i), "") }))
	}
}

// TestAPortOfAnotherProgramsContainerIsNotChosen: it is only in libcni's cache.
func TestAPortOfAnotherProgramsContainerIsNotChosen(t *testing.T) {
	h := newRealHost(t)
	detach := h.byLibcni("theirs", h.Container("theirs"), 7001)
	r := h.Runtime(h.portNetwork("one", "81", portBackends()[0]), cni.WithPortRange(7000, 7001))
	expect.Same(t, "port", got(t, testhost.MustSetUp(t, r, "c1", h.Container("c1"), chosen("http")), "http"), int32(7000))
	late := h.Container("late")
	wantNoneLeft(t, r, late, fmt.Sprintf("0 of the host ports 7000 to 7001 are free, and 1 are needed; containers of %q have 1; containers of other programs have 1", filepath.Base(os.Args[0])))
	detach()
	expect.Same(t, "port", got(t, testhost.MustSetUp(t, r, "late", late, chosen("http")), "http"), int32(7001))
}

// TestARetryChoosesAgain: the port of the first attempt was taken meanwhile by a process,
// which is no reason to fail, with strict ports either.
func TestARetryChoosesAgain(t *testing.T) {
	h := newRealHost(t)
	var first int32
	var r *cni.Runtime
	p := testhost.Acting{On: map[string]testhost.Action{"DEL": func(_ context.Context, req *plugin.Request) error {
		if first != 0 {
			return nil
		}
		all, err := r.Attachments()
		if err != nil {
			return err
		}
		first = all[0].Requested[0].HostPort
		return req.Host.Do(func() error { h.listenElsewhere("tcp", "0.0.0.0", int(first)); return nil })
	}, "ADD": func(context.Context, *plugin.Request) error {
		if first == 0 {
			return &types.Error{Code: types.ErrTryAgainLater, Msg: "no"}
		}
		return nil
	}}}
	r = h.Runtime(cni.WithPlugin("p", p), cni.WithPortRange(7000, 7001), cni.WithRetry(cni.Retry{Attempts: 2, Delay: 1}), cni.WithStrictPorts(),
		cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "p", "capabilities": {"portMappings": true}}]}`)))
	res := testhost.MustSetUp(t, r, "c1", h.Container("c1"), chosen("http"))
	port := got(t, res, "http")
	expect.That(t, port != first && first != 0, "port %d after %d", port, first)
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}
