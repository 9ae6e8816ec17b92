package behaviour_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// loaded renders the networks of a Runtime: "name=ifname" in order.
func loaded(r *cni.Runtime) string {
	var s []string
	for _, n := range r.GetConfig().Networks {
		s = append(s, n.Config.Name+"="+n.IFName)
	}
	return strings.Join(s, " ")
}

// TestFault_F5_HalfWrittenFileKeepsTheLastGoodConfiguration for every prefix of
// the file.
func TestFault_F5_HalfWrittenFileKeepsTheLastGoodConfiguration(t *testing.T) {
	full := testhost.ListOf("net")
	dir := testhost.ConfDir(t, map[string]string{"10-net.conflist": full, "20-other.conflist": testhost.ListOf("other")})
	path := filepath.Join(dir, "10-net.conflist")
	r := expect.Value(cni.New(cni.WithPluginConfDir(dir)))(t)
	load := func() error { return r.Load(cni.WithLoNetwork, cni.WithDefaultConf) }
	expect.NoError(t, load())
	const want = "cni-loopback=lo net=eth0"
	before := r.GetConfig()
	for n := range len(full) {
		expect.NoError(t, os.WriteFile(path, []byte(full[:n]), 0o644))
		err := load()
		expect.Must(t, errors.Is(err, cni.ErrLoad) && cni.IsInvalidConfig(err) && strings.Contains(err.Error(), path),
			"%q: error %v, want one that names the file", full[:n], err)
		if !reflect.DeepEqual(r.GetConfig(), before) {
			t.Fatalf("%q: loaded is %s, want %s", full[:n], loaded(r), want)
		}
	}
	expect.NoError(t, os.WriteFile(path, []byte(strings.Replace(full, "1.0.0", "1.1.0", 1)), 0o644))
	err := load()
	expect.That(t, err == nil && loaded(r) == want && r.GetConfig().Networks[1].Config.CNIVersion == "1.1.0",
		"whole again: %v, loaded is %s", err, loaded(r))
}

// TestDuty_R1_ConfigurationsOfOneNameAreToldApartByTheInterface with every
// loader. The interfaces are the same as go-cni's, and a file is not skipped
// because its name is taken.
func TestDuty_R1_ConfigurationsOfOneNameAreToldApartByTheInterface(t *testing.T) {
	dir := testhost.ConfDir(t, map[string]string{"10-a.conflist": testhost.ListOf("a"), "20-a.conf": testhost.ConfOf("a"), "30-b.conf": testhost.ConfOf("b")})
	list, conf := cni.WithConfListBytes([]byte(testhost.ListOf("a"))), cni.WithConf([]byte(testhost.ConfOf("a")))
	file := cni.WithConfListFile(filepath.Join(dir, "10-a.conflist"))
	for name, tt := range map[string]struct {
		opts []cni.Opt
		want string
	}{
		"Concourse's IPv6": {[]cni.Opt{list, cni.WithLoNetwork, list}, "a=eth0 cni-loopback=lo a=eth2"},
		"bytes and file":   {[]cni.Opt{cni.WithLoNetwork, list, file}, "cni-loopback=lo a=eth1 a=eth2"},
		"lo behind":        {[]cni.Opt{list, file, cni.WithLoNetwork}, "a=eth0 a=eth1 cni-loopback=lo"},
		"list and single":  {[]cni.Opt{list, conf, cni.WithConfIndex([]byte(testhost.ConfOf("a")), 7)}, "a=eth0 a=eth0 a=eth7"},
		"directory":        {[]cni.Opt{cni.WithAllConf}, "a=eth0 a=eth1 b=eth2"},
		"a part of it":     {[]cni.Opt{cni.WithPluginMaxConfNum(2), cni.WithDefaultConf}, "a=eth0 a=eth1"},
		"behind bytes":     {[]cni.Opt{cni.WithLoNetwork, list, cni.WithAllConf}, "cni-loopback=lo a=eth1 a=eth0 a=eth1 b=eth2"},
	} {
		r, err := cni.New(append(tt.opts, cni.WithPluginConfDir(dir))...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		expect.Same(t, name, loaded(r), tt.want)
		expect.Same(t, name+": skipped", r.GetConfig().Skipped, nil)
	}
}

// TestDuty_R2_R5_AtLoad: every loader refuses such names and plugin types,
// before any container exists.
func TestDuty_R2_R5_AtLoad(t *testing.T) {
	for what, conf := range map[string][2]string{
		"name": {`{"name": "../x", "plugins": [{"type": "a"}]}`, `{"name": "../x", "type": "a"}`},
		"type": {`{"name": "net", "plugins": [{"type": "../a"}]}`, `{"name": "net", "type": "../a"}`},
		"ipam": {`{"name": "net", "plugins": [{"type": "a", "ipam": {"type": "/b"}}]}`, `{"name": "net", "type": "a", "ipam": {"type": "/b"}}`},
	} {
		dir := testhost.ConfDir(t, map[string]string{"1.conflist": conf[0], "2.conf": conf[1]})
		for loader, opt := range map[string]cni.Opt{
			"WithConf": cni.WithConf([]byte(conf[1])), "WithConfFile": cni.WithConfFile(filepath.Join(dir, "2.conf")),
			"WithConfListBytes": cni.WithConfListBytes([]byte(conf[0])), "WithConfListFile": cni.WithConfListFile(filepath.Join(dir, "1.conflist")),
			"WithDefaultConf": cni.WithDefaultConf, "WithAllConf": cni.WithAllConf,
		} {
			_, err := cni.New(cni.WithPluginConfDir(dir), opt)
			expect.That(t, cni.IsInvalidConfig(err), "%s, %s: %v, want ErrInvalidConfig", what, loader, err)
		}
	}
}

// TestDuty_R9_BadFileIsPassedOverAndReported in GetConfig and in the log.
func TestDuty_R9_BadFileIsPassedOverAndReported(t *testing.T) {
	dir := testhost.ConfDir(t, map[string]string{"05-bad.conflist": `{"name": "bad"`, "10-net.conflist": testhost.ListOf("net"), "20-b.conf": testhost.ConfOf("b"), "30-bad.conf": `{}`})
	var log bytes.Buffer
	r := expect.Value(cni.New(cni.WithPluginConfDir(dir), cni.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))(t)
	expect.NoError(t, r.Load(cni.WithAllConf))
	expect.Same(t, "loaded", loaded(r), "net=eth0 b=eth1")
	want := []cni.SkippedFile{
		{Path: filepath.Join(dir, "05-bad.conflist"), Reason: "error parsing configuration list: unexpected end of JSON input at line 1, column 14"},
		{Path: filepath.Join(dir, "30-bad.conf"), Reason: "error parsing configuration: missing 'type'"},
	}
	expect.Same(t, "skipped", r.GetConfig().Skipped, want)
	for _, f := range want {
		expect.Contains(t, "log", log.String(), "level=WARN msg=\"configuration file passed over\" path="+f.Path)
	}
	expect.NoError(t, r.Load(cni.WithConf([]byte(testhost.ConfOf("c")))))
	expect.Same(t, "skipped after another Load", r.GetConfig().Skipped, nil)
}
