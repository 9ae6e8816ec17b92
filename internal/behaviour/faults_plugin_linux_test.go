package behaviour_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestFault_F17_OutputIsBounded(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	path := s.Container("c1")
	const most = 64 << 20 // bytes: four MiB of output, grown and copied a few times

	s.On("p", "ADD", scripted.Action{StdoutBytes: 96 << 20})
	bytes := allocated(func() {
		_, err := r.Setup(t.Context(), "c1", path)
		expect.Is(t, err, cni.ErrPluginOutput)
		expect.Same(t, "plugin", testhost.AsError(t, err).Plugin, "p")
	})
	t.Logf("96 MiB on stdout: %d KiB allocated", bytes>>10)
	if bytes > most {
		t.Errorf("%d bytes allocated, want at most %d", bytes, most)
	}
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0", "DEL p c1/eth0"})

	s.On("p", "ADD", scripted.Action{StderrBytes: 96 << 20})
	bytes = allocated(func() {
		_, err := r.Setup(t.Context(), "c1", path)
		expect.NoError(t, err)
	})
	t.Logf("96 MiB on stderr: %d KiB allocated", bytes>>10)
	if bytes > most {
		t.Errorf("%d bytes allocated, want at most %d", bytes, most)
	}
	s.On("p", "DEL", scripted.Action{StdoutBytes: 96 << 20})
	expect.Is(t, r.Remove(t.Context(), "c1", path), cni.ErrPluginOutput)
	expect.Same(t, "processes", testhost.Children(t), nil)
}

// busyPlugin is a copy of the scripted plugin that stays open for writing.
func (s *stage) busyPlugin(typ string) *os.File {
	s.T.Helper()
	data, err := os.ReadFile(refplugins.Scripted())
	expect.NoError(s.T, err)
	expect.NoError(s.T, os.MkdirAll(s.Path("bin"), 0o755))
	f, err := os.OpenFile(s.Path("bin", typ), os.O_CREATE|os.O_WRONLY, 0o755)
	expect.NoError(s.T, err)
	_, err = f.Write(data)
	expect.NoError(s.T, err)
	return f
}

func TestFault_F18_ABusyExecutableIsTriedAgainUntilItIsFree(t *testing.T) {
	s := newStage(t)
	f := s.busyPlugin("p")
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	done := testhost.Begin(testhost.SetUp(t.Context(), r, "c1", s.Container("c1")))
	expect.Same(t, "waiting", s.blocked("/internal/invoke.start", 1), 1)
	expect.NoError(t, f.Close())
	expect.NoError(t, expect.Await(t, "Setup", done))
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0"})
}

func TestFault_F18_AnExecutableThatStaysBusyIsAnErrorThatSaysSo(t *testing.T) {
	s := newStage(t)
	f := s.busyPlugin("p")
	r := s.Runtime(cni.WithTimeouts(cni.Timeouts{Del: 1}), cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	_, err := r.Setup(t.Context(), "c1", s.Container("c1"))
	expect.Is(t, err, syscall.ETXTBSY)
	expect.Same(t, "plugin", testhost.AsError(t, err).Plugin, "p")
	expect.NoError(t, f.Close())
}

func TestFault_F22_BadPortsAreRefusedBeforeAnythingRuns(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	path := s.Container("c1")
	port := func(host, container int32, protocol, ip string) cni.PortMapping {
		return cni.PortMapping{HostPort: host, ContainerPort: container, Protocol: protocol, HostIP: ip}
	}
	// The table of the package's own tests has more.
	for what, ports := range map[string][]cni.PortMapping{
		"on all and one address": {port(80, 1, "tcp", ""), port(80, 2, "tcp", "127.0.0.1")},
		"a name":                 {port(80, 1, "tcp", "localhost")},
		"no host port":           {port(0, 1, "tcp", "")},
		"another protocol":       {port(80, 1, "icmp", "")},
	} {
		s.refusedByAll(r, what, "c1", path, cni.ErrInvalidArgument, cni.WithCapabilityPortMap(ports))
		s.refusedByAll(r, what+", by name", "c1", path, cni.ErrInvalidArgument, cni.WithCapability("portMappings", ports))
		s.refusedByAll(r, what+", for one network", "c1", path, cni.ErrInvalidArgument,
			cni.WithNetwork("net", cni.WithCapabilityPortMap(ports)))
	}
	_, err := r.Setup(t.Context(), "c1", path, cni.WithCapabilityPortMap([]cni.PortMapping{port(80, 1, "tcp", "10.0.0.1"),
		port(80, 1, "tcp", "10.0.0.2"), port(80, 1, "udp", "10.0.0.1"), port(80, 1, "tcp", "::"), port(81, 1, "tcp", "")}))
	expect.NoError(t, err)
}

func TestFault_F23_PluginsGetOnlyAllowedEnvironmentVariables(t *testing.T) {
	s := newStage(t)
	for name, value := range map[string]string{
		"AWS_SECRET_ACCESS_KEY": "secret", "HOME": "/root", "LD_PRELOAD": "", "NOTIFY_SOCKET": "/x", "HTTP_PROXY": "http://u:p@x",
		"PATH": "/usr/sbin:/usr/bin", "TZ": "UTC", "XTABLES_LOCKFILE": "/run/x", "CNI_NETNS_OVERRIDE": "1", "CNI_COMMANDO": "x",
		"MY_A": "1", "MY_B": "2", "MINE": "3", "NOT_MINE": "4", "CNI_PATH": "/of/another/request",
	} {
		t.Setenv(name, value)
	}
	s.cleared("DBUS_SYSTEM_BUS_ADDRESS", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "XDG_RUNTIME_DIR", "XTABLES_LIBDIR")
	conf := s.only(`"x":1`)
	base := []string{"CNI_ARGS=", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=" + s.Path("netns", "c1"),
		"CNI_PATH=" + s.Path("bin"), "PATH=/usr/sbin:/usr/bin", "TZ=UTC", "XTABLES_LOCKFILE=/run/x"}
	for what, tt := range map[string]struct {
		opts []cni.Opt
		more []string
	}{
		"as it is":   {nil, nil},
		"names":      {[]cni.Opt{cni.WithPluginEnv("MINE", "MISSING"), cni.WithPluginEnv("MY_A")}, []string{"MINE=3", "MY_A=1"}},
		"a prefix":   {[]cni.Opt{cni.WithPluginEnv("MY_*")}, []string{"MY_A=1", "MY_B=2"}},
		"all of CNI": {[]cni.Opt{cni.WithPluginEnv("CNI_*")}, []string{"CNI_COMMANDO=x", "CNI_NETNS_OVERRIDE=1"}},
	} {
		r := s.Runtime(append(tt.opts, conf)...)
		for _, c := range s.wholeLife(r) {
			want := slices.Sorted(slices.Values(slices.Concat(base, tt.more, []string{"CNI_COMMAND=" + c.Verb})))
			expect.Same(t, what+": environment at "+c.Verb, c.Env, want)
		}
		s.RemoveNetNS("c1")
	}
}

// cleared unsets variables for the test.
func (s *stage) cleared(names ...string) {
	s.T.Helper()
	for _, name := range names {
		if value, ok := os.LookupEnv(name); ok {
			s.T.Cleanup(func() { expect.NoError(s.T, os.Setenv(name, value)) })
		}
		expect.NoError(s.T, os.Unsetenv(name))
	}
}

func TestFault_F23_ATraceIsPassedOn(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(s.only(`"x":1`))
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: 1})
	_, err := r.Setup(trace.ContextWithSpanContext(t.Context(), span), "c1", s.Container("c1"))
	expect.NoError(t, err)
	want := fmt.Sprintf("TRACEPARENT=00-%s-%s-01", span.TraceID(), span.SpanID())
	if env := s.TakeCalls()[0].Env; !slices.Contains(env, want) {
		t.Errorf("environment %v, want %s in it", env, want)
	}
}

func TestFault_F24_APluginThatEverybodyMayWriteIsNotRun(t *testing.T) {
	s := newStage(t)
	s.shellPlugins("p")
	s.Write("bin/p.out", "{}")
	conf := cni.WithConfListBytes(testhost.Conflist("net", "1.0.0", nil, "p"))
	path := s.Container("c1")
	for what, tt := range map[string]struct {
		path         string
		mode, mended os.FileMode
	}{
		"the file":      {s.Path("bin", "p"), 0o777, 0o755},
		"its directory": {s.Path("bin"), 0o777, 0o755},
	} {
		expect.NoError(t, os.Chmod(tt.path, tt.mode))
		_, err := s.Runtime(conf).Setup(t.Context(), "c1", path)
		expect.Is(t, err, cni.ErrInsecureFile)
		if want := "chmod o-w"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", what, err, want)
		}
		if _, err := os.Stat(s.Path("lines")); !os.IsNotExist(err) {
			t.Errorf("%s: it ran (%v)", what, err)
		}
		insecure := s.Runtime(conf, cni.WithInsecureFiles())
		_, err = insecure.Setup(t.Context(), "c1", path)
		expect.NoError(t, err)
		expect.NoError(t, insecure.Remove(t.Context(), "c1", path))
		expect.Same(t, what+": calls", s.takeLines(), "ADD p, DEL p")
		expect.NoError(t, os.Chmod(tt.path, tt.mended))
	}
}
