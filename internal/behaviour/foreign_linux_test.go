package behaviour_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// sevenEnv makes the test binary a program that only knows go-cni's seven
// methods.
const sevenEnv = "EMBEDCNI_TEST_SEVEN"

// sevenMethods is such a program. It makes a network namespace on its leading
// thread, which stays there.
type sevenMethods struct {
	Parked   string // mount point of that namespace
	OwnFiles bool   // the leading thread has a file table of its own
	// Path is the container's path, or "descriptor" or "leader" for a path
	// below /proc that leads to the namespace.
	Path      string
	HostNetNS string
	PID1      string // with its own /proc: "itself" or "another"
	Lost      string // a Setup with this path, when no path leads to the namespace any more

	StateDir, PluginDir string
	Conf                []byte
}

// sevenMain makes the calls that the variable lists, and prints their errors.
func sevenMain() {
	var i sevenMethods
	if err := json.Unmarshal([]byte(os.Getenv(sevenEnv)), &i); err != nil {
		panic(err)
	}
	if i.PID1 != "" {
		if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""), unix.Mount("proc", "/proc", "proc", 0, "")); err != nil {
			panic(err)
		}
	}
	if i.PID1 == "another" {
		i.PID1 = ""
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), sevenEnv+"="+string(encoded(i)))
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Print(err)
		}
		syscall.Exit(0)
	}
	parkLeader(i.Parked, i.OwnFiles, func() {
		if err := i.do(); err != nil {
			fmt.Print(err)
		}
		syscall.Exit(0)
	})
}

func encoded(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// parkLeader makes a namespace on the leading thread, like a program that locks
// a goroutine, unshares and never unlocks. When the goroutine ends, Go parks
// the thread in the namespace for good. work runs on other threads.
func parkLeader(path string, ownFiles bool, work func()) {
	if unix.Gettid() != os.Getpid() {
		panic("not on the leading thread")
	}
	flags := unix.CLONE_NEWNET
	if ownFiles {
		flags |= unix.CLONE_FILES
	}
	err := unix.Unshare(flags)
	if err == nil {
		err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	}
	if err != nil {
		panic(err)
	}
	go work()
	runtime.Goexit()
}

// do calls each of the seven methods. It calls the two that attach once each.
func (i *sevenMethods) do() error {
	conf := []cni.Opt{cni.WithConfListBytes(i.Conf)}
	opts := []cni.Opt{cni.WithStateDir(i.StateDir), cni.WithPluginDir([]string{i.PluginDir})}
	if i.HostNetNS != "" {
		opts = append(opts, cni.WithHostNetNS(i.HostNetNS))
	}
	var r cni.CNI
	r, err := cni.New(opts...)
	if err != nil {
		return err
	}
	path := i.Path
	switch path {
	case "descriptor":
		ns, err := netns.Open(i.Parked)
		if err != nil {
			return err
		}
		defer ns.Close()
		path = fmt.Sprintf("/proc/%d/task/%d/fd/%d", os.Getpid(), unix.Gettid(), ns.File().Fd())
	case "leader":
		path = fmt.Sprintf("/proc/%d/ns/net", os.Getpid())
	}
	if i.Lost != "" {
		return errors.Join(r.Load(conf...), i.loses(r))
	}
	ctx := context.Background() // the test kills the process
	var errs []error
	for name, setup := range map[string]func(context.Context, string, string, ...cni.NamespaceOpts) (*cni.Result, error){
		"Setup": r.Setup, "SetupSerially": r.SetupSerially,
	} {
		errs = append(errs, r.Load(conf...), r.Status())
		if networks := r.GetConfig().Networks; len(networks) != 1 {
			errs = append(errs, fmt.Errorf("%d networks", len(networks)))
		}
		_, err := setup(ctx, "c1", path)
		for verb, err := range map[string]error{name: err, "Check": r.Check(ctx, "c1", path), "Remove": r.Remove(ctx, "c1", path)} {
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", verb, err))
			}
		}
	}
	return errors.Join(errs...)
}

// run runs the program on the host and returns its output.
func (s *stage) run(i sevenMethods) string {
	s.T.Helper()
	i.StateDir, i.PluginDir = s.Path("state"), s.Path("bin")
	i.Parked = write(s.Host, "netns/parked", "")
	defer func() { expect.NoError(s.T, netns.Remove(i.Parked)) }()
	exe := expect.Value(os.Executable())(s.T)
	cmd := exec.CommandContext(s.T.Context(), exe)
	cmd.Env = append(os.Environ(), sevenEnv+"="+string(encoded(i)))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if i.PID1 != "" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	}
	expect.NoError(s.T, cmd.Run())
	return out.String()
}

func (s *stage) wantLoUp() {
	s.T.Helper()
	expect.Same(s.T, "the host's lo is up", expect.Value(net.InterfaceByName("lo"))(s.T).Flags&net.FlagUp != 0, true)
}

// TestFault_F29_ANamespaceMadeOnTheLeadingThreadIsAttached: the leading
// thread's namespace says nothing about the process.
func TestFault_F29_ANamespaceMadeOnTheLeadingThreadIsAttached(t *testing.T) {
	for what, i := range map[string]sevenMethods{
		"mounted":                          {},
		"by a descriptor":                  {Path: "descriptor"},
		"by the leading thread's own path": {Path: "leader"},
		"with a host namespace":            {HostNetNS: "host"},
		"by PID 1":                         {PID1: "itself"},
		"by a child of PID 1":              {PID1: "another"},
		"with descriptors of its own":      {OwnFiles: true},
		// A program that attaches itself.
		"the process's own, mounted": {HostNetNS: "other", Path: "host"},
	} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			i.Conf = s.Network("net", "1.1.0", "p")
			if i.Path == "" {
				i.Path = s.Path("netns", "parked")
			}
			if i.Path == "host" {
				i.Path = s.hostMounted()
			}
			if i.HostNetNS == "other" {
				s.Container("other")
			}
			if i.HostNetNS != "" {
				i.HostNetNS = s.Path("netns", i.HostNetNS)
			}
			expect.Same(t, "errors", s.run(i), "")
			var got []string
			for _, call := range s.Took() {
				if call != "STATUS p /" {
					got = append(got, call)
				}
			}
			expect.Same(t, "calls", got, []string{"ADD p c1/eth0", "CHECK p c1/eth0", "DEL p c1/eth0", "ADD p c1/eth0", "CHECK p c1/eth0", "DEL p c1/eth0"})
		})
	}
}

// TestFault_F11_TheHostsNamespaceIsRefusedWhereverTheLeadingThreadIs: the plugins'
// namespace, that of PID 1, and the process's own through a path that may have
// become its own.
func TestFault_F11_TheHostsNamespaceIsRefusedWhereverTheLeadingThreadIs(t *testing.T) {
	for what, test := range map[string]struct {
		sevenMethods
		path func(s *stage) string
		want string
	}{
		"the plugins', mounted":                       {path: (*stage).hostMounted, want: "that plugins run in"},
		"the plugins', of another process":            {path: (*stage).hostsProcess, want: "that plugins run in"},
		"the plugins', with a host namespace":         {sevenMethods{HostNetNS: "other"}, (*stage).otherMounted, "that plugins run in"},
		"the process's, of another process":           {sevenMethods{HostNetNS: "other"}, (*stage).hostsProcess, "of this process"},
		"the process's, which is PID 1":               {sevenMethods{HostNetNS: "other", PID1: "itself"}, (*stage).ownThread, "of this process"},
		"the plugins', in PID 1":                      {sevenMethods{PID1: "itself"}, (*stage).hostMounted, "that plugins run in"},
		"PID 1's, with a host namespace":              {sevenMethods{HostNetNS: "other", PID1: "another"}, (*stage).hostMounted, "of process 1"},
		"PID 1's by its path, with a host namespace":  {sevenMethods{HostNetNS: "other", PID1: "another"}, (*stage).firstProcess, "of process 1"},
		"PID 1's, where the plugins run too, mounted": {sevenMethods{PID1: "another"}, (*stage).hostMounted, "that plugins run in"},
	} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			s.Container("other")
			i := test.sevenMethods
			i.Conf, i.Path = s.Network("net", "1.1.0", "p"), test.path(s)
			if i.HostNetNS != "" {
				i.HostNetNS = s.Path("netns", i.HostNetNS)
			}
			said := s.run(i)
			for _, verb := range []string{"Setup", "SetupSerially", "Check", "Remove"} {
				expect.Same(t, "refusals of "+verb, strings.Contains(said, verb+": "), true)
			}
			expect.Same(t, "refusals as the namespace "+test.want+", in\n"+said, strings.Count(said, test.want+", not a container's"), 6)
			for _, call := range s.Took() {
				expect.Same(t, "call", call, "STATUS p /")
			}
			s.wantLoUp()
		})
	}
}

func (s *stage) hostMounted() string  { return s.Path("netns", "host") }
func (s *stage) otherMounted() string { return s.Path("netns", "other") }
func (s *stage) firstProcess() string { return "/proc/1/ns/net" }
func (s *stage) ownThread() string    { return "/proc/thread-self/ns/net" }

// hostsProcess returns the path of a process on the host, as if its number had
// belonged to a container before.
func (s *stage) hostsProcess() string {
	path, _ := inhabitIn(s.T, s.Path("netns", "host"), 0)
	return path
}

// TestFault_F29_AContainerThatTheLeadingThreadIsInLives: neither path nor pin
// leads to the namespace any more, but the leading thread is still inside.
func TestFault_F29_AContainerThatTheLeadingThreadIsInLives(t *testing.T) {
	s := newStage(t)
	path := s.Path("netns", "parked")
	result := fmt.Sprintf(`{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:07", "sandbox": %q}]}`, path)
	conf := s.Network("net", "1.1.0", "p")
	s.On("p", "ADD", scripted.Action{Stdout: &result})
	for _, ownFiles := range []bool{false, true} {
		said := s.run(sevenMethods{Conf: conf, Path: path, Lost: s.Container("c2"), OwnFiles: ownFiles})
		expect.That(t, strings.Contains(said, cni.ErrAlreadyAttached.Error()) && !strings.Contains(said, "\n"),
			"a second Setup, and Remove, said %q", said)
		calls := s.TakeCalls()
		expect.Same(t, "calls", testhost.Rendered(calls), []string{"ADD p c1/eth0", "DEL p c1/eth0"})
		// The path goes through the leading thread's descriptor, unless that
		// thread does not have it.
		del := strings.Split(calls[1].NetNS, "/")
		expect.Same(t, "CNI_NETNS of DEL by a thread", slices.Contains(del, "task"), ownFiles)
		expect.Same(t, "CNI_NETNS of DEL by a descriptor", slices.Contains(del, "fd"), true)
		s.RemoveNetNS("c2")
	}
}

// loses sets a container up in the leading thread's namespace, hides the
// namespace's mounts, sets the container up again at another path, and removes
// it.
func (i *sevenMethods) loses(r cni.CNI) error {
	ns, err := netns.Open(i.Parked)
	if err != nil {
		return err
	}
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd()))
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = "eth0", net.HardwareAddr{2, 0, 0, 0, 0, 7}
	ctx := context.Background() // the test kills the process
	_, err = r.Setup(ctx, "c1", i.Path)
	pins, perr := filepath.Glob(filepath.Join(i.StateDir, "embedcni", "attachments", "netns", "*"))
	if err := errors.Join(err, perr, nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}), ns.Close()); err != nil {
		return err
	}
	nl.Close()
	for _, mounted := range append(pins, i.Parked) {
		if isNetNS(mounted) {
			if err := nettest.Unpin(mounted); err != nil {
				return err
			}
		}
	}
	_, err = r.Setup(ctx, "c1", i.Lost)
	return errors.Join(err, r.Remove(ctx, "c1", ""))
}

// TestFault_F29_AContainerThatOnlyAThreadIsInLives: a program that serves a
// container from outside may have one thread inside, other than the leading
// one.
func TestFault_F29_AContainerThatOnlyAThreadIsInLives(t *testing.T) {
	s, conf, leave := elsewhereMountedWith(t, inhabitByThread)
	r := s.restarted(conf)
	expect.Is(t, testhost.SetUp(t.Context(), r, "c1", s.Container("c2"))(), cni.ErrAlreadyAttached)
	wantRecover(t, r, adopted)
	leave()
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// inhabitByThread is inhabit with a thread of this process.
func inhabitByThread(t testing.TB, path string) (leave func()) {
	t.Helper()
	ns := expect.Value(netns.Open(path))(t)
	arrived, leaving := make(chan struct{}), make(chan struct{})
	left := testhost.Begin(func() error {
		return errors.Join(ns.Do(func() error { close(arrived); <-leaving; return nil }), ns.Close())
	})
	expect.Await(t, "the thread", arrived)
	return func() {
		close(leaving)
		expect.NoError(t, expect.Await(t, "the thread's end", left))
	}
}

func TestANamespaceIsKeptByADescriptorWhereMountsAreNotAllowed(t *testing.T) {
	s, r, conf := inhabited(t)
	path := s.Container("c1")
	container := expect.Value(netns.Open(path))(t)
	id := container.ID()
	expect.NoError(t, container.Close())
	expect.NoError(t, testhost.UnableToMount(testhost.SetUp(t.Context(), r, "c1", path)))
	expect.Same(t, "pinned", s.Pinned("c1"), false)
	s.TakeCalls()
	s.RemoveNetNS("c1")

	done, letGo := s.heldUp("q", "DEL", func() error { return r.Remove(t.Context(), "c1", "") })
	told := s.TakeCalls()[0].NetNS
	want := fmt.Sprintf("/proc/%d/fd/", os.Getpid())
	expect.That(t, strings.HasPrefix(told, want), "CNI_NETNS %q, want it to begin with %q", told, want)
	kept := expect.Value(netns.Open(told))(t)
	expect.Same(t, "the namespace there", kept.ID(), id)
	expect.NoError(t, kept.Close())
	letGo()
	expect.NoError(t, expect.Await(t, "Remove", done))
	expect.Same(t, "on record", testhost.Recorded(t, s.restarted(conf)), []string{})
}

func TestADescriptorDoesNotOutliveTheProcess(t *testing.T) {
	s, r, conf := inhabited(t)
	expect.NoError(t, testhost.UnableToMount(testhost.SetUp(t.Context(), r, "c1", s.Container("c1"))))
	s.TakeCalls()
	s.RemoveNetNS("c1")
	wantRecover(t, s.restarted(conf), removed)
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
	expect.Same(t, "CNI_NETNS", calls[0].NetNS, "")
	expect.NoError(t, r.Remove(t.Context(), "c1", "")) // closes the descriptor
}
