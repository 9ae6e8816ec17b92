package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

func TestFault_F17_TooMuchOutputIsATypedErrorAndRolledBack(t *testing.T) {
	s, r, path := oneNetwork(t, "p")
	s.On("p", "ADD", scripted.Action{StdoutBytes: 96 << 20})
	_, err := r.Setup(t.Context(), "c1", path)
	expect.Is(t, err, cni.ErrPluginOutput)
	expect.Same(t, "plugin", testhost.AsError(t, err).Plugin, "p")
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0", "DEL p c1/eth0"})

	s.On("p", "ADD", scripted.Action{StderrBytes: 96 << 20})
	testhost.MustSetUp(t, r, "c1", path)
	s.On("p", "DEL", scripted.Action{StdoutBytes: 96 << 20})
	expect.Is(t, r.Remove(t.Context(), "c1", path), cni.ErrPluginOutput)
	expect.Same(t, "processes", children(t), nil)
}

func TestFault_F22_BadPortsAreRefusedBeforeAnythingRuns(t *testing.T) {
	s, r, path := oneNetwork(t, "p")
	port := func(host, container int32, protocol, ip string) cni.PortMapping {
		return cni.PortMapping{HostPort: host, ContainerPort: container, Protocol: protocol, HostIP: ip}
	}
	ports := []cni.PortMapping{port(80, 1, "tcp", ""), port(80, 2, "tcp", "127.0.0.1")} // the package's own tests have more
	for what, opt := range map[string]cni.NamespaceOpts{
		"by the option": cni.WithCapabilityPortMap(ports), "by name": cni.WithCapability("portMappings", ports),
		"for one network": cni.WithNetwork("net", cni.WithCapabilityPortMap(ports)),
	} {
		s.refusedByAll(r, what, "c1", path, cni.ErrInvalidArgument, opt)
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

func TestFault_F24_APluginThatEverybodyMayWriteIsNotRun(t *testing.T) {
	s := newStage(t)
	s.shellPlugins("p")
	write(s.Host, "bin/p.out", "{}")
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
		fails(t, err, "chmod o-w")
		expect.Same(t, what+": it ran", expect.Exists(t, s.Path("lines")), false)
		insecure := s.Runtime(conf, cni.WithInsecureFiles())
		testhost.MustSetUp(t, insecure, "c1", path)
		expect.NoError(t, insecure.Remove(t.Context(), "c1", path))
		expect.Same(t, what+": calls", s.takeLines(), "ADD p, DEL p")
		expect.NoError(t, os.Chmod(tt.path, tt.mended))
	}
}

// noResults are outputs of a successful ADD that are not a result. %q is the
// configuration's version. The table of internal/run/chain has more.
var noResults = map[string]string{
	"unknown version":       `{"cniVersion":"9.9.9","ips":[{"version":"4","address":"10.0.0.1/24"}]}`,
	"version is a number":   `{"cniVersion":1,"ips":[{"version":"4","address":"10.0.0.1/24"}]}`,
	"version is no version": `{"cniVersion":"latest","ips":[]}`,
	"null":                  `null`,
	"nothing":               ``,
	"HTML":                  `<html><body>502 Bad Gateway</body></html>`,
	"two results":           `{"cniVersion":%q} {"cniVersion":%q}`,
	"cut off":               `{"cniVersion":%q,"ips":[{"addr`,
	"log line before":       "configuring…\n" + `{"cniVersion":%q}`,
	"null route":            `{"cniVersion":%q,"ip4":{"ip":"10.0.0.1/24","routes":[null]},"routes":[null]}`,
}

// shellPlugins are plugins that cost a tenth of the test binary. They print the
// file <type>.out at ADD, and append "ADD p" to the file lines.
func (s *stage) shellPlugins(types ...string) {
	s.T.Helper()
	for _, typ := range types {
		path := write(s.Host, "bin/"+typ, fmt.Sprintf("#!/bin/sh\necho \"$CNI_COMMAND %s\" >> %s\n"+
			"[ $CNI_COMMAND != ADD ] || exec cat \"$0.out\"\n", typ, s.Path("lines")))
		expect.NoError(s.T, os.Chmod(path, 0o755))
	}
}

func (s *stage) takeLines() string {
	s.T.Helper()
	data := expect.Value(os.ReadFile(s.Path("lines")))(s.T)
	expect.NoError(s.T, os.Remove(s.Path("lines")))
	return strings.ReplaceAll(strings.TrimSpace(string(data)), "\n", ", ")
}

func TestFault_F10_AResultThatIsNoneIsATypedErrorAndRolledBack(t *testing.T) {
	s := newStage(t)
	s.shellPlugins("p", "q")
	calls := map[string]string{"p": "ADD p, DEL q, DEL p", "q": "ADD p, ADD q, DEL q, DEL p"}
	path := s.Container("c1")
	for _, version := range []string{"0.2.0", "0.4.0", "1.1.0"} { // one of each form
		r := s.Runtime(cni.WithConfListBytes(testhost.Conflist("net", version, nil, "p", "q")))
		for what, format := range noResults {
			bad := []string{"p", "q"}[len(what)%2]
			write(s.Host, "bin/p.out", "{}")
			write(s.Host, "bin/"+bad+".out", strings.ReplaceAll(format, "%q", fmt.Sprintf("%q", version)))
			_, err := r.Setup(t.Context(), "c1", path)
			where := fmt.Sprintf("version %s, plugin %s, %s", version, bad, what)
			if !errors.Is(err, cni.ErrInvalidResult) {
				t.Errorf("%s: error %v, want one that is %q", where, err, cni.ErrInvalidResult)
			} else if e := testhost.AsError(t, err); e.Plugin != bad || strings.Contains(err.Error(), "panic") {
				t.Errorf("%s: error of plugin %q: %v", where, e.Plugin, err)
			}
			expect.Same(t, where+": calls", s.takeLines(), calls[bad])
			expect.Same(t, where+": cache", s.Cached(), []string{})
		}
	}
}

func TestFault_F4_ADELErrorIsNotJudgedByItsText(t *testing.T) {
	for _, text := range []string{"iptables: executable file not found in $PATH", "not found", "no such file or directory",
		"unknown FS magic on \"/run/netns/x\": 1021994", "already deleted"} {
		s, r, path := oneNetwork(t, "p")
		testhost.MustSetUp(t, r, "c1", path)
		s.On("p", "DEL", testhost.Says(999, text))
		expect.Same(t, text, testhost.Messages(r.Remove(t.Context(), "c1", path)), []string{"p: " + text})
		expect.NoError(t, r.Check(t.Context(), "c1", path)) // still recorded
	}
}

func TestFault_F8_OneOfSeveralNetworksFails(t *testing.T) {
	for _, serially := range []bool{false, true} {
		s := newStage(t)
		r := s.Runtime(cni.WithConfListBytes(s.Network("one", "1.0.0", "p")), cni.WithConfListBytes(s.Network("two", "1.0.0", "q", "r")),
			cni.WithConfListBytes(s.Network("three", "1.0.0", "s")))
		s.On("p", "ADD", gives("10.0.0.1/24"))
		s.On("q", "ADD", gives("10.0.0.2/24"))
		s.On("r", "ADD", testhost.Says(5, "no"))
		setup := r.Setup
		if serially {
			setup = r.SetupSerially
		}
		_, err := setup(t.Context(), "c1", s.Container("c1"))
		expect.Same(t, "errors", testhost.Messages(err), []string{"r: no"})
		calls := s.TakeCalls()
		dels := slices.DeleteFunc(slices.Clone(calls), func(c scripted.Call) bool { return c.Verb != "DEL" })
		want := []string{"DEL r 10.0.0.2/24", "DEL q 10.0.0.2/24", "DEL p 10.0.0.1/24"}
		if serially { // stops at the failure and undoes earlier work
			expect.Same(t, "calls", testhost.Rendered(calls), []string{"ADD p c1/eth0", "ADD q c1/eth1", "ADD r c1/eth1",
				"DEL r c1/eth1", "DEL q c1/eth1", "DEL p c1/eth0"})
		} else {
			want = slices.Insert(want, 0, "DEL s 10.9.0.2/24")
		}
		expect.Same(t, "prevResult at DEL", prevResults(t, dels), want)
		expect.Same(t, "cache", s.Cached(), []string{})
	}
}

func TestFault_F8_AnErrorOfTheRollbackIsPartOfTheError(t *testing.T) {
	s, r, path := oneNetwork(t, "p", "q")
	s.On("q", "ADD", testhost.Says(5, "no"))
	s.On("q", "DEL", testhost.Says(6, "stuck"))
	s.On("p", "DEL", testhost.Says(7, "stuck too"))
	_, err := r.Setup(t.Context(), "c1", path)
	const where = `network "net" of container c1, interface eth0: plugin type=`
	parts := []string{
		"add " + where + `"q" failed (add): no (code 5)`,
		"roll back: del " + where + `"q" failed (delete): stuck (code 6)`,
		"del " + where + `"p" failed (delete): stuck too (code 7)`,
		"fix the cause and call Remove again, or call CleanUp to abandon it",
	}
	expect.Same(t, "error", err.Error(), strings.Join(parts, "; "))
	expect.Same(t, "whole error", fmt.Sprintf("%+v", err), strings.Join(parts, "\n"))
	left := (*cni.LeftoverError)(nil)
	expect.That(t, errors.As(err, &left) && left.ContainerID == "c1", "%#v is no LeftoverError of c1", err)
}

func TestFault_F14_TheCallersContextEndsDuringADD(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("one", "1.0.0", "p", "q")), cni.WithConfListBytes(s.Network("two", "1.0.0", "r")))
	s.On("p", "ADD", gives("10.0.0.1/24"))
	s.On("q", "ADD", scripted.Action{Fork: true, Block: s.Gate("q")})
	ctx, cancel := context.WithCancelCause(t.Context())
	path := s.Container("c1")
	done := testhost.Begin(func() error { return errOf(r.SetupSerially(ctx, "c1", path)) })
	letGo := s.Arrive(s.Path("gate-q"))
	why := errors.New("the pod was deleted")
	cancel(why)
	err := expect.Await(t, "Setup", done)
	letGo()
	expect.Is(t, err, context.Canceled, why)
	expect.Same(t, "plugin", testhost.AsError(t, err).Plugin, "q")
	expect.Same(t, "calls", prevResults(t, s.TakeCalls()), []string{"ADD p none", "ADD q 10.0.0.1/24",
		"DEL q 10.0.0.1/24", "DEL p 10.0.0.1/24"})
	expect.Same(t, "processes", children(t), nil)
	expect.Same(t, "cache", s.Cached(), []string{})
}

func TestFault_F14_ASetupWhoseContextIsOverRunsNothing(t *testing.T) {
	s, r, path := oneNetwork(t, "p")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Is(t, errOf(r.Setup(ctx, "c1", path)), context.Canceled)
	expect.Is(t, r.Check(ctx, "c1", path), context.Canceled)
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestFault_F14_RemoveWithACancelledContextRunsEverything(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("one", "1.0.0", "p", "q")), cni.WithConfListBytes(s.Network("two", "1.0.0", "r")))
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	s.TakeCalls()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.NoError(t, r.Remove(ctx, "c1", path))
	expect.Same(t, "calls", s.Took(), []string{"DEL r c1/eth1", "DEL q c1/eth0", "DEL p c1/eth0"})
	expect.Same(t, "cache", s.Cached(), []string{})
}

// overshoot calls f with a limit, in which all calls begin, on a slow machine too. It returns
// long before what hangs ends, and no process may remain. How much later than the deadline is
// measured by M7, on a quiet machine.
func (s *stage) overshoot(what string, calls []string, f func(limit time.Duration) error) (err error) {
	t := s.T
	t.Helper()
	var took []string
	expect.Limited(500*time.Millisecond, func(limit time.Duration) bool {
		s.TakeCalls()
		start := time.Now()
		err = expect.Await(t, what, testhost.Begin(func() error { return f(limit) }))
		over := time.Since(start) - limit
		t.Logf("M7: %s: %v over a deadline of %v", what, over, limit)
		expect.That(t, over >= 0 && over <= expect.Patience/2, "%s took %v over its deadline", what, over)
		expect.Is(t, err, context.DeadlineExceeded)
		expect.Same(t, "processes", children(t), nil)
		took = s.Took()
		return !slices.Equal(took, calls)
	})
	expect.Same(t, what+": calls", took, calls)
	return err
}

func TestFault_F13_APluginsChildHoldsStdoutPastTheDeadline(t *testing.T) {
	s := newStage(t)
	conf := cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q"))
	path := s.Container("c1")
	rolledBack := []string{"ADD p c1/eth0", "ADD q c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"}
	s.On("q", "ADD", scripted.Action{Fork: true, Hang: true})
	_ = s.overshoot("the caller's context", rolledBack, func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return testhost.SetUp(ctx, s.Runtime(conf), "c1", path)()
	})
	err := s.overshoot("WithTimeouts", rolledBack, func(limit time.Duration) error {
		return testhost.SetUp(t.Context(), s.Runtime(conf, cni.WithTimeouts(cni.Timeouts{Add: limit})), "c1", path)()
	})
	fails(t, err, "took longer than the ", " that a plugin has for ADD")
	expect.Same(t, "cache", s.Cached(), []string{})
}
