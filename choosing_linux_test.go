package cni_test

import (
	"os"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/plugin"
)

func TestOptionsThatContradictEachOther(t *testing.T) {
	builtIn := cni.WithBuiltins(map[string]plugin.Plugin{"bridge": testhost.Idle{}, "ptp": testhost.Idle{}})
	for want, opts := range map[string][]cni.Opt{
		`WithBuiltinPlugins: plugin "dhcp" is not built in`: {cni.WithBuiltinPlugins("bridge", "dhcp")},
		`WithPlugin: plugin "x" is nil`:                     {cni.WithPlugin("x", nil)},
		`WithPlugin: plugin "x" is registered twice`:        {cni.WithPlugin("x", testhost.Idle{}), cni.WithPlugin("x", testhost.Idle{})},
		`WithPlugin: no plugin name provided`:               {cni.WithPlugin("", testhost.Idle{})},
		`WithPlugin: invalid plugin name: "../x"`:           {cni.WithPlugin("../x", testhost.Idle{})},
		`plugin "ptp" is to be the one built in, with WithBuiltinPlugins, and registered, with WithPlugin`: {
			cni.WithPlugin("ptp", testhost.Idle{}), cni.WithBuiltinPlugins("bridge", "ptp")},
	} {
		_, err := cni.New(append([]cni.Opt{builtIn}, opts...)...)
		expect.Is(t, err, cni.ErrInvalidArgument)
		expect.Same(t, "error", err.Error(), want+": invalid argument")
	}
	for _, opts := range [][]cni.Opt{
		{cni.WithBuiltinPlugins()},
		{cni.WithBuiltinPlugins("ptp"), cni.WithBuiltinPlugins("ptp", "bridge")},
		{cni.WithBuiltinPlugins(), cni.WithPlugin("bridge", testhost.Idle{})},
	} {
		expect.NoError(t, expect.Err(cni.New(append([]cni.Opt{builtIn}, opts...)...)))
	}
}

// kinds returns the kinds of plugins of the loaded networks.
func kinds(r *cni.Runtime) map[string]string {
	found := map[string]string{}
	for _, n := range r.GetConfig().Networks {
		for _, p := range n.Config.Plugins {
			found[p.Network.Type] = p.Kind
			if p.Network.IPAM.Type != "" {
				found[p.Network.Type+"'s IPAM"] = p.IPAMKind
			}
		}
	}
	return found
}

const choosing = `{"cniVersion": "1.0.0", "name": "net", "plugins": [
	{"type": "bridge", "ipam": {"type": "static"}}, {"type": "ptp", "ipam": {"type": "host-local"}}, {"type": "own"}, {"type": "nowhere"}]}`

func TestWhichPluginRuns(t *testing.T) {
	s := testhost.NewStage(t)
	s.Plugin(scripted.Script{}, "bridge", "own", "host-local")
	builtIn := cni.WithBuiltins(map[string]plugin.Plugin{"bridge": testhost.Idle{}, "ptp": testhost.Idle{}, "host-local": testhost.Idle{}, "static": testhost.Idle{}})
	const disk, ours, callers = "executable", "built in", "registered"
	type all = map[string]string
	for name, tt := range map[string]struct {
		opts []cni.Opt
		want all
	}{
		"on disk, else built in": {nil,
			all{"bridge": disk, "bridge's IPAM": "", "ptp": ours, "ptp's IPAM": disk, "own": disk, "nowhere": ""}},
		"built in, else on disk": {[]cni.Opt{cni.WithBuiltinPlugins()},
			all{"bridge": ours, "bridge's IPAM": ours, "ptp": ours, "ptp's IPAM": ours, "own": disk, "nowhere": ""}},
		"only one of them": {[]cni.Opt{cni.WithBuiltinPlugins("host-local")},
			all{"bridge": disk, "bridge's IPAM": "", "ptp": ours, "ptp's IPAM": ours, "own": disk, "nowhere": ""}},
		"registered before all": {[]cni.Opt{cni.WithBuiltinPlugins(), cni.WithPlugin("bridge", testhost.Idle{}), cni.WithPlugin("own", testhost.Idle{}),
			cni.WithPlugin("nowhere", testhost.Idle{})},
			all{"bridge": callers, "bridge's IPAM": ours, "ptp": ours, "ptp's IPAM": ours, "own": callers, "nowhere": callers}},
	} {
		expect.Same(t, name, kinds(s.Runtime(append(tt.opts, builtIn, cni.WithConfListBytes([]byte(choosing)))...)), tt.want)
	}
}

func TestGetConfigHasThePathOfAnExecutable(t *testing.T) {
	s := testhost.NewStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")), cni.WithPlugin("q", testhost.Idle{}),
		cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "two", "plugins": [{"type": "q"}]}`)))
	var paths []string
	for _, n := range r.GetConfig().Networks {
		paths = append(paths, n.Config.Plugins[0].Path)
	}
	expect.Same(t, "paths", paths, []string{s.Path("bin", "p"), ""})
}

// TestLoadMayChooseAnew: a setting stays until an option changes it.
func TestLoadMayChooseAnew(t *testing.T) {
	s := testhost.NewStage(t)
	s.Plugin(scripted.Script{}, "bridge")
	conf := cni.WithConfListBytes([]byte(choosing))
	r := s.Runtime(cni.WithPlugin("own", testhost.Idle{}), conf)
	for _, step := range []struct {
		opt                cni.Opt
		bridge, ptp, owned string
	}{
		{nil, "executable", "built in", "registered"},
		{cni.WithBuiltinPlugins("bridge"), "built in", "built in", "registered"},
		{nil, "built in", "built in", "registered"},
		{cni.WithBuiltinPlugins("ptp"), "executable", "built in", "registered"},
		{cni.WithBuiltinPlugins(), "built in", "built in", "registered"},
		{cni.WithBuiltinFallback(), "executable", "built in", "registered"},
		{cni.WithBuiltinPlugins(), "built in", "built in", "registered"},
		{cni.WithPlugin("own", testhost.Idle{}), "built in", "built in", "registered"},
		{cni.WithPlugin("ptp", testhost.Idle{}), "built in", "registered", "registered"},
	} {
		opts := []cni.Opt{conf}
		if step.opt != nil {
			opts = append(opts, step.opt)
		}
		expect.NoError(t, r.Load(opts...))
		got := kinds(r)
		expect.Same(t, "kinds", []string{got["bridge"], got["ptp"], got["own"]}, []string{step.bridge, step.ptp, step.owned})
	}
	expect.Is(t, r.Load(conf, cni.WithBuiltinPlugins("ptp")), cni.ErrInvalidArgument, cni.ErrLoad)
}

// TestInsecureExecutableIsNotPassedOver: the built-in plugin is not the one
// that the administrator installed.
func TestInsecureExecutableIsNotPassedOver(t *testing.T) {
	s := testhost.NewStage(t)
	conf := s.Network("net", "1.1.0", "p")
	expect.NoError(t, os.Chmod(s.Path("bin"), 0o777))
	builtIn := cni.WithBuiltins(map[string]plugin.Plugin{"p": testhost.Idle{}})
	r := s.Runtime(builtIn, cni.WithConfListBytes(conf))
	expect.Is(t, r.Status(), cni.ErrInsecureFile)
	expect.Same(t, "kinds", kinds(r), map[string]string{"p": ""})
	expect.NoError(t, r.Load(builtIn, cni.WithBuiltinPlugins(), cni.WithConfListBytes(conf)))
	expect.NoError(t, r.Status())
}

func TestNoPluginIsBuiltInUnlessAnOptionNamesThem(t *testing.T) {
	s := testhost.NewStage(t)
	s.NoBuiltins = true
	conf := cni.WithConfListBytes([]byte(`{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "tuning"}]}`))
	r := s.Runtime(conf)
	err := r.Status()
	expect.Is(t, err, cni.ErrPluginNotFound)
	expect.Same(t, "error", err.Error(), `status network "net": plugin type="tuning" failed (status): failed to find plugin "tuning" in path [`+s.Path("bin")+
		`]; install it there, or name its directory with WithPluginDir`)
	expect.NoError(t, r.Load(cni.WithBuiltinFallback(), conf))
	expect.NoError(t, r.Status())
}

// TestTheLibrarysOwnLoopbackNetworkRunsInProcess whether or not there is an executable,
// and whatever other types are preferred. A configuration like it is the caller's.
func TestTheLibrarysOwnLoopbackNetworkRunsInProcess(t *testing.T) {
	const disk, ours, callers = "executable", "built in", "registered"
	like := cni.WithConfListBytes([]byte(`{"cniVersion": "0.4.0", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}`))
	for name, tt := range map[string]struct {
		opts      []cni.Opt
		installed bool
		want      string
	}{
		"installed":                  {[]cni.Opt{cni.WithLoNetwork}, true, ours},
		"not installed":              {[]cni.Opt{cni.WithLoNetwork}, false, ours},
		"another type is preferred":  {[]cni.Opt{cni.WithLoNetwork, cni.WithBuiltinPlugins("bridge")}, true, ours},
		"registered":                 {[]cni.Opt{cni.WithLoNetwork, cni.WithPlugin("loopback", testhost.Idle{})}, true, callers},
		"the caller's configuration": {[]cni.Opt{like}, true, disk},
		"the caller's, preferred":    {[]cni.Opt{like, cni.WithBuiltinPlugins("loopback")}, true, ours},
	} {
		t.Run(name, func(t *testing.T) {
			s := testhost.NewStage(t)
			if tt.installed {
				s.Plugin(scripted.Script{}, "loopback")
			}
			var ran []string
			r := s.Runtime(append(tt.opts, ranKinds(&ran))...)
			expect.Same(t, "GetConfig", kinds(r)["loopback"], tt.want)
			path := s.Container("c1")
			expect.Value(r.Setup(t.Context(), "c1", path))(t)
			later := s.Runtime(cni.WithBuiltinPlugins("bridge"), ranKinds(&ran), tt.opts[0]) // another process, with other options
			if tt.want != callers {
				expect.NoError(t, later.Check(t.Context(), "c1", path))
				expect.NoError(t, later.Remove(t.Context(), "c1", path))
				kind := " loopback " + string(tt.want)
				expect.Same(t, "ran", ran, []string{"ADD" + kind, "CHECK" + kind, "DEL" + kind})
				return
			}
			expect.Is(t, later.Remove(t.Context(), "c1", path), cni.ErrPluginNotFound)
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
		})
	}
}
