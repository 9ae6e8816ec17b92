package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// reasons returns the reasons why a runtime is not ready.
func reasons(t *testing.T, r *cni.Runtime) []error {
	t.Helper()
	err := r.Ready(t.Context())
	if err == nil {
		return nil
	}
	all, ok := errors.Unwrap(err).(interface{ Unwrap() []error })
	expect.Must(t, ok && len(all.Unwrap()) != 0, "got %T: %v", err, err)
	for _, reason := range all.Unwrap() {
		fails(t, err, reason.Error())
	}
	return all.Unwrap()
}

// TestReadyNamesEveryReason, of all networks and plugins.
func TestReadyNamesEveryReason(t *testing.T) {
	s := newStage(t)
	s.Plugin(scripted.Script{}, "p")
	expect.NoError(t, os.Chmod(write(s.Host, "bin/open", "#!/bin/sh\n"), 0o777))
	dirs := cni.WithPluginDir([]string{s.Path("bin"), s.Path("nowhere")})
	list := func(version, plugins string) cni.Opt {
		return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": %q, "name": "net", "plugins": [%s]}`, version, plugins))
	}
	full := fmt.Sprintf(`{"type": "bridge", "ipam": {"type": "host-local", "dataDir": %q, "subnet": "10.1.0.0/30"}}`, s.Path("ipam"))
	expect.NoError(t, os.MkdirAll(s.Path("ipam", "net"), 0o700))
	expect.NoError(t, os.WriteFile(s.Path("ipam", "net", "10.1.0.2"), []byte("c9\r\neth0"), 0o600))
	expect.NoError(t, os.WriteFile(s.Path("ipam", "net", "lock"), nil, 0o600)) // STATUS makes it
	for what, tt := range map[string]struct {
		opts   []cni.Opt
		kinds  []error
		texts  []string
		status bool // Status is nil as with go-cni
	}{
		"ready":                {opts: []cni.Opt{list("1.0.0", `{"type": "p"}`)}, status: true},
		"nothing loaded":       {kinds: []error{cni.ErrCNINotInitialized}, texts: []string{"not initialized"}},
		"a plugin is missing":  {[]cni.Opt{list("1.0.0", `{"type": "p"}, {"type": "absent"}, {"type": "gone"}`)}, []error{cni.ErrPluginNotFound, cni.ErrPluginNotFound}, []string{`"absent"`, `"gone"`}, true},
		"its IPAM is missing":  {[]cni.Opt{list("1.0.0", `{"type": "p", "ipam": {"type": "host-local"}}`)}, []error{cni.ErrPluginNotFound}, []string{`"host-local"`}, true},
		"insecure":             {[]cni.Opt{list("1.0.0", `{"type": "open"}`)}, []error{cni.ErrInsecureFile}, []string{"open"}, true},
		"a full subnet":        {[]cni.Opt{list("1.0.0", full), cni.WithBuiltinPlugins("bridge", "host-local")}, []error{nil}, []string{"(code 50)"}, true},
		"a full subnet, 1.1.0": {[]cni.Opt{list("1.1.0", full), cni.WithBuiltinPlugins("bridge", "host-local")}, []error{nil}, []string{"(code 50)"}, false},
		"two networks":         {[]cni.Opt{list("1.0.0", `{"type": "absent"}`), list("1.0.0", `{"type": "gone"}`)}, []error{cni.ErrPluginNotFound, cni.ErrPluginNotFound}, []string{`"absent"`, `"gone"`}, true},
	} {
		t.Run(what, func(t *testing.T) {
			r := s.Runtime(append(tt.opts, dirs)...)
			before := s.Audit()
			got := reasons(t, r)
			expect.Must(t, len(got) == len(tt.kinds), "got %d reasons, want %d: %v", len(got), len(tt.kinds), got)
			for i, kind := range tt.kinds {
				if kind != nil {
					expect.Is(t, got[i], kind)
				}
				expect.Contains(t, "the reason", got[i].Error(), tt.texts[i])
			}
			expect.Same(t, "Status is nil", r.Status() == nil, tt.status)
			s.WantClean(before)
		})
	}
}

// TestReadySeesWhereNothingCanBeWritten: a Setup would fail before it runs a plugin.
func TestReadySeesWhereNothingCanBeWritten(t *testing.T) {
	s, r, _ := smallState(t)
	s.TakeCalls()
	expect.Same(t, "reasons", len(reasons(t, r)), 0)
	s.fill()
	expect.Is(t, reasons(t, r)[0], syscall.ENOSPC)
	expect.NoError(t, os.Remove(s.Path("state", "ballast")))
	s.makeReadOnly()
	expect.Is(t, reasons(t, r)[0], syscall.EROFS)

	file := write(s.Host, "file", "")
	elsewhere := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")), cni.WithStateDir(s.Path("new", "state")), cni.WithRecordDir(file))
	expect.Is(t, reasons(t, elsewhere)[0], syscall.ENOTDIR)
	expect.Is(t, expect.Err(os.Stat(s.Path("new"))), os.ErrNotExist)
}

// TestReadySeesMissingCapabilities drops one on a thread that ends with the goroutine.
func TestReadySeesMissingCapabilities(t *testing.T) {
	_, r, _ := oneNetwork(t, "p")
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var has [2]unix.CapUserData
		err := unix.Capget(&header, &has[0])
		if err == nil {
			has[0].Effective &^= 1 << unix.CAP_NET_ADMIN
			err = unix.Capset(&header, &has[0])
		}
		expect.That(t, err == nil, "%v", err)
		done <- r.Ready(t.Context())
	}()
	fails(t, <-done, "plugins need CAP_NET_ADMIN, which this process lacks")
	expect.Same(t, "reasons with it", testhost.Messages(r.Ready(t.Context())), nil)
}

// readyWithoutNFTables is the job of a process whose kernel has no nf_tables, and whose
// host has no iptables.
const readyWithoutNFTables = "READY without nf_tables"

func askWithoutNFTables(ctx context.Context, r *cni.Runtime, _ testhost.Job) error {
	if err := errors.Join(nettest.HideIPTables(), nettest.RefuseNetfilter()); err != nil {
		return err
	}
	return r.Ready(ctx)
}

// TestReadySeesAKernelWithoutNFTables, if a plugin of a network makes rules.
func TestReadySeesAKernelWithoutNFTables(t *testing.T) {
	for plugins, want := range map[string]string{
		`{"type": "portmap", "capabilities": {"portMappings": true}}`: "packet filter: the kernel has no nf_tables",
		`{"type": "loopback"}`: "",
	} {
		s := newStage(t)
		conf := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [%s]}`, plugins)
		job := testhost.Job{Verb: readyWithoutNFTables, StateDir: s.Path("state"), PluginDir: s.Path("bin"), Conf: conf, InProcess: true}
		cmd := job.Command(t)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		got := string(expect.Value(cmd.CombinedOutput())(t))
		expect.That(t, strings.Contains(got, want) && (want != "" || got == ""), "%s: got %q, want %q in it", plugins, got, want)
	}
}

// TestReadyAsksForReferencePlugins: the executables host-local and bridge do not say that
// an ADD must fail. Ready changes nothing, and says nothing about a plugin of somebody
// else's that has the name.
func TestReadyAsksForReferencePlugins(t *testing.T) {
	h := newRealHost(t)
	ipam := h.Path("ipam")
	list := func(subnet string) cni.Opt {
		return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
			{"type": "bridge", "ipam": {"type": "host-local", "dataDir": %q, "subnet": %q}}]}`, ipam, subnet))
	}
	before := h.Audit()
	expect.Same(t, "reasons of a subnet with addresses", len(reasons(t, h.Real(list("10.1.0.0/24")))), 0)
	h.WantClean(before)

	full := h.Real(list("10.1.0.0/30"))
	testhost.MustSetUp(t, full, "c1", h.Container("c1"))
	for what, tt := range map[string]struct {
		r    *cni.Runtime
		text string
	}{"full": {full, "10.1.0.1-10.1.0.2"}, "no subnet": {h.Real(list("10.3.0/24")), "10.3.0/24"}} {
		got := reasons(t, tt.r)
		expect.That(t, len(got) == 1 && strings.Contains(got[0].Error(), tt.text), "%s: reasons %q, want one that names %s", what, got, tt.text)
		fails(t, testhost.SetUp(t.Context(), tt.r, "c2", h.Container(strings.ReplaceAll(what, " ", "-")))())
	}
	expect.NoError(t, full.Remove(t.Context(), "c1", ""))

	s := newStage(t)
	s.Plugin(scripted.Script{}, "bridge", "host-local")
	theirs := s.Runtime(list("10.3.0/24"), cni.WithPluginDir([]string{s.Path("bin")}))
	expect.Same(t, "reasons of somebody else's plugins", len(reasons(t, theirs)), 0)
}

// TestNotInitializedHasTheErrorOfTheLastLoad: a program that goes on after a failed
// Load hears the reason from every call.
func TestNotInitializedHasTheErrorOfTheLastLoad(t *testing.T) {
	s := newStage(t)
	r := s.Runtime()
	expect.Same(t, "text", r.Status().Error(), "cni plugin not initialized")
	write(s.Host, "net.d/10-bad.conflist", `{"name": "net"}`)
	expect.Is(t, r.Load(cni.WithPluginConfDir(s.Path("net.d")), cni.WithDefaultConf), cni.ErrInvalidConfig)
	_, setup := r.Setup(t.Context(), "c1", s.Container("c1"))
	for what, err := range map[string]error{
		"Status": r.Status(), "Setup": setup, "Check": r.Check(t.Context(), "c1", ""),
	} {
		expect.Is(t, err, cni.ErrCNINotInitialized)
		expect.Is(t, err, cni.ErrInvalidConfig)
		expect.That(t, strings.HasPrefix(err.Error(), "cni plugin not initialized: ") && strings.Contains(err.Error(), "10-bad.conflist"),
			"%s: %v", what, err)
	}
	expect.NoError(t, r.Load(cni.WithConfListBytes(s.Network("net", "1.0.0", "p"))))
	expect.NoError(t, r.Status())
	expect.NoError(t, r.Load()) // loads nothing, and is no failure
	expect.Same(t, "text", r.Status().Error(), "cni plugin not initialized")
}

// TestDuty_R18_ACheckOfAStrangerIsNotAttachedWhateverThePath: who asks about a container that
// was never attached need not have a namespace.
func TestDuty_R18_ACheckOfAStrangerIsNotAttachedWhateverThePath(t *testing.T) {
	s, r, path := threeNetworks(t)
	file := s.Path("file")
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{path, "", "/nowhere", file} {
		expect.Is(t, r.Check(t.Context(), "c2", path), cni.ErrNotAttached)
	}
	expect.Same(t, "calls", s.Took(), []string{})
	testhost.MustSetUp(t, r, "c1", path)
	for _, path := range []string{"/nowhere", file} { // one that is attached has a namespace
		expect.Is(t, r.Check(t.Context(), "c1", path), cni.ErrInvalidNetNS)
	}
	expect.NoError(t, r.Check(t.Context(), "c1", "")) // on record
	s.TakeCalls()
}
