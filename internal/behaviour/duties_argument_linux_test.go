package behaviour_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// tree lists the files below the test's directory with their contents.
func (s *stage) tree() []string {
	s.T.Helper()
	var files []string
	expect.NoError(s.T, filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		line := path
		if d.Type().IsRegular() && !strings.HasPrefix(path, s.Path("netns")) {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(data)
		}
		files = append(files, line)
		return nil
	}))
	return files
}

// refusedByAll checks that every verb refuses, that no plugin runs, and that no
// file changes.
func (s *stage) refusedByAll(r *cni.Runtime, what, id, path string, kind error, opts ...cni.NamespaceOpts) {
	s.T.Helper()
	before := s.tree()
	for verb, err := range s.everyVerb(r, id, path, opts...) {
		if err == nil {
			s.T.Errorf("%s: %s gave no error", what, verb)
			continue
		}
		expect.Is(s.T, err, kind)
	}
	expect.Same(s.T, what+": calls", s.Took(), []string{})
	expect.Same(s.T, what+": files", s.tree(), before)
}

// neverAttached checks that no verb runs a plugin: no Setup accepts these names, so Remove
// finds nothing to do.
func (s *stage) neverAttached(r *cni.Runtime, what, id, path string) {
	s.T.Helper()
	for verb, err := range s.everyVerb(r, id, path) {
		if verb == "Remove" {
			expect.NoError(s.T, err)
		} else {
			expect.Is(s.T, err, cni.ErrInvalidArgument)
		}
	}
	expect.Same(s.T, what+": calls", s.Took(), []string{})
}

func TestDuty_R2_NetworkNamesAtLoadAndAtEveryVerb(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	path := s.Container("c1")
	s.refusedByAll(r, "a network without a name", "c1", path, cni.ErrNotFound, cni.WithNetwork(""))
	for _, name := range []string{".", "..", "-a", "_a", "a b", "../x", "a/b", "a\x00", "a\n", "é", strings.Repeat("a", 181)} {
		expect.Is(t, r.Load(cni.WithConfListBytes(s.Network(name, "1.0.0", "p"))), cni.ErrInvalidConfig, cni.ErrLoad)
		s.refusedByAll(r, "network "+name, "c1", path, cni.ErrNotFound, cni.WithNetwork(name))
	}
	for _, name := range []string{"0", "A._-", strings.Repeat("a", 180)} {
		expect.NoError(t, r.Load(cni.WithConfListBytes(s.Network(name, "1.0.0", "p"))))
	}
}

func TestDuty_R3_F12_ContainerIDsAtEveryVerb(t *testing.T) {
	s, r, path := oneNetwork(t, "p")
	write(s.Host, "x", "a file that an id points at")
	write(s.Host, "state/results/net-a-eth0", "a file that an id points at")
	for _, id := range []string{"", ".", "..", "/../../x", "/../x", "a/../../../x", "../x", "a/b", "-a", "_a", ".a", "a b",
		"a\x00b", "a\nb", "a;b", "a=b", "a:b", "é", "a\\b", strings.Repeat("a", 256), strings.Repeat("a", 300)} {
		s.refusedByAll(r, "id "+id, id, path, cni.ErrInvalidArgument)
	}
	// The longest allowed: "net", the ID, "eth0" and two dashes form a file
	// name.
	long := strings.Repeat("a", 255-len("net--eth0"))
	s.neverAttached(r, "a byte too long", long+"a", path)
	for _, id := range []string{long, "0", "A.b_c-D"} {
		testhost.MustSetUp(t, r, id, path)
		expect.NoError(t, r.Check(t.Context(), id, path))
		expect.NoError(t, r.Remove(t.Context(), id, path))
		expect.Same(t, "calls", s.Took(), []string{"ADD p " + id + "/eth0", "CHECK p " + id + "/eth0", "DEL p " + id + "/eth0"})
	}
}

func TestDuty_R4_InterfaceNamesAtEveryVerbAndThePrefix(t *testing.T) {
	s := newStage(t)
	conf := cni.WithConfListBytes(s.Network("net", "1.0.0", "p"))
	r := s.Runtime(conf)
	path := s.Container("c1")
	for _, name := range []string{".", "..", "a/b", "a:b", "a b", "a\tb", "a\nb", "a\u00a0b", strings.Repeat("a", 16), "eth%d", "50%"} {
		s.refusedByAll(r, "interface "+name, "c1", path, cni.ErrInvalidArgument, cni.WithNetwork("net", cni.WithInterfaceName(name)))
	}
	for _, prefix := range []string{"a/", "a:", "a b", " ", strings.Repeat("a", 15), "%d", "eth%"} {
		expect.Is(t, r.Load(conf, cni.WithInterfacePrefix(prefix)), cni.ErrInvalidArgument, cni.ErrLoad)
	}
	for _, prefix := range []string{"", ".", "wlan", strings.Repeat("a", 14)} {
		expect.NoError(t, r.Load(conf, cni.WithInterfacePrefix(prefix)))
	}
	// The prefix fits, the prefix with the network's number does not.
	long := s.Runtime(cni.WithInterfacePrefix(strings.Repeat("a", 14)), cni.WithConfIndex([]byte(testhost.ConfOf("net")), 10))
	s.neverAttached(long, "number", "c2", path)
	for _, name := range []string{"a", "net-1.100", strings.Repeat("a", 15)} {
		expect.Value(r.SetupSerially(t.Context(), "c1", path, cni.WithNetwork("net", cni.WithInterfaceName(name))))(t)
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
		expect.Same(t, "calls", s.Took(), []string{"ADD p c1/" + name, "DEL p c1/" + name})
	}
	// A record of an earlier version may have a name that the kernel fills in.
	expect.Value(r.CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth%d"}))(t)
}

// notNetNS returns paths that are not a container's network namespace.
func (s *stage) notNetNS() map[string]string {
	s.T.Helper()
	fifo := s.Path("fifo")
	expect.NoError(s.T, syscall.Mkfifo(fifo, 0o600))
	return map[string]string{
		"missing": s.Path("missing"), "regular file": write(s.Host, "regular", ""), "FIFO": fifo, "directory": s.Dir,
		"UTS namespace": "/proc/self/ns/uts", "a link to nothing": "/proc/self/fd/9999",
	}
}

func TestDuty_R23_AnInvalidNetNSIsRefusedBeforeAnythingRuns(t *testing.T) {
	s, r, _ := oneNetwork(t, "p")
	paths := s.notNetNS()
	paths["empty"] = ""
	for what, path := range paths {
		errs := s.everyVerb(r, "c1", path)
		for _, verb := range []string{"Setup", "SetupSerially", "Check"} {
			expect.Fails(t, verb+" with "+what+": no error", errs[verb])
			expect.Is(t, errs[verb], cni.ErrInvalidNetNS)
		}
		expect.NoError(t, errs["Remove"])
		calls := s.TakeCalls()
		expect.Same(t, what+": calls", testhost.Rendered(calls), []string{"DEL p c1/eth0"})
		expect.Same(t, what+": CNI_NETNS at DEL", calls[0].NetNS, "")
	}
}

func TestDuty_R23_F11_TheRuntimesOwnNamespaceIsRefused(t *testing.T) {
	s := newStage(t)
	conf := cni.WithConfListBytes(s.Network("net", "1.0.0", "p"))
	other := s.Container("other")
	s.refusedByAll(s.Runtime(conf), "the one plugins run in", "c1", s.Path("netns", "host"), cni.ErrInvalidNetNS)
	s.refusedByAll(s.Runtime(conf), "the process's", "c1", "/proc/self/ns/net", cni.ErrInvalidNetNS)
	s.refusedByAll(s.Runtime(conf, cni.WithHostNetNS(other)), "the one of WithHostNetNS", "c1", other, cni.ErrInvalidNetNS)
	s.refusedByAll(s.Host.Runtime(conf), "the thread's", "c1", s.Path("netns", "host"), cni.ErrInvalidNetNS)
	s.refusedByAll(s.Host.Runtime(conf), "the thread's by another path", "c1", "/proc/thread-self/ns/net", cni.ErrInvalidNetNS)
	s.refusedByAll(s.Host.Runtime(conf), "the process's, which the thread is not in", "c1", "/proc/self/ns/net", cni.ErrInvalidNetNS)
}

func TestDuty_R23_AHostNamespaceThatIsNoneIsRefused(t *testing.T) {
	s := newStage(t)
	conf := cni.WithConfListBytes(s.Network("net", "1.1.0", "p"))
	path := s.Container("c1")
	for what, host := range s.notNetNS() {
		r := s.Runtime(conf, cni.WithHostNetNS(host))
		s.refusedByAll(r, what, "c1", path, cni.ErrInvalidNetNS)
		expect.Is(t, r.Status(), cni.ErrInvalidNetNS)
	}
}

func TestDuty_R13_TheThreadsOfTheProcessStayWhereTheyWere(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")), cni.WithConfListBytes(s.Network("two", "1.0.0", "q")))
	path := s.Container("c1")
	// A separate thread, so that WithHostNetNS differs from the caller's
	// namespace.
	expect.NoError(t, expect.Await(t, "a life", testhost.Begin(func() error {
		before, err := netns.CurrentID()
		if err != nil {
			return err
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if _, err := r.Setup(t.Context(), "c1", path); err != nil {
			return err
		}
		after, err := netns.CurrentID()
		expect.Same(t, "namespace of the thread", after, before)
		return err
	})))
	tasks := expect.Value(os.ReadDir("/proc/self/task"))(t)
	mine := unix.Gettid()
	counts := map[string]int{}
	for _, task := range tasks {
		ns, err := os.Readlink(filepath.Join("/proc/self/task", task.Name(), "ns/net"))
		if err == nil && task.Name() != strconv.Itoa(mine) {
			counts[ns]++
		}
	}
	delete(counts, expect.Value(os.Readlink("/proc/self/ns/net"))(t))
	expect.Same(t, "threads elsewhere", counts, map[string]int{})
}

// attached sets up c1 on two networks, with the interfaces that the plugins
// would have made.
func attached(t *testing.T) (s *stage, r *cni.Runtime, path string) {
	t.Helper()
	s = newStage(t)
	r = s.Runtime(cni.WithConfListBytes(s.Network("one", "1.0.0", "p")), cni.WithConfListBytes(s.Network("two", "1.0.0", "q")))
	path = s.Container("c1")
	expect.Value(r.SetupSerially(t.Context(), "c1", path, cni.WithArgs("K", "v")))(t)
	s.AddLink("c1", "eth0")
	s.AddLink("c1", "eth1")
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0", "ADD q c1/eth1"})
	return s, r, path
}

// namespaceOf returns the argument of Network's methods, which only options
// receive.
func namespaceOf(t *testing.T, r *cni.Runtime, id, path string, opts ...cni.NamespaceOpts) (ns *cni.Namespace) {
	t.Helper()
	seen := errors.New("seen")
	err := r.Check(t.Context(), id, path, append(opts, func(given *cni.Namespace) error {
		ns = given
		return seen
	})...)
	expect.Is(t, err, seen)
	return ns
}

func TestDuty_R16_NoSecondADDWithoutADEL(t *testing.T) {
	s, r, path := attached(t)
	otherPath := s.Container("c2")
	ctx := t.Context()
	for what, setup := range map[string]func() error{
		"all":         func() error { return errOf(r.Setup(ctx, "c1", path)) },
		"serially":    func() error { return errOf(r.SetupSerially(ctx, "c1", path)) },
		"one of them": func() error { return errOf(r.Setup(ctx, "c1", path, cni.WithNetwork("two"))) },
		"one network": func() error { return errOf(r.Networks()[0].Attach(ctx, namespaceOf(t, r, "c1", path))) },
		"its interface": func() error {
			return errOf(r.Setup(ctx, "c1", path, cni.WithNetwork("two", cni.WithInterfaceName("eth0"))))
		},
		"elsewhere": func() error { return errOf(r.Setup(ctx, "c1", otherPath)) },
	} {
		err := setup()
		expect.Fails(t, what+": no error", err)
		expect.Is(t, err, cni.ErrAlreadyAttached)
	}
	expect.Same(t, "calls", s.Took(), []string{})
	expect.Value(r.Setup(ctx, "c1", path, cni.WithNetwork("two", cni.WithInterfaceName("eth2"))))(t)
	expect.NoError(t, r.Remove(ctx, "c1", path))
	s.DelLink("c1", "eth0")
	s.DelLink("c1", "eth1")
	expect.Value(r.Setup(ctx, "c1", path))(t)
}

func TestDuty_R16_ADeadAttachmentIsRemovedFirst(t *testing.T) {
	cleaned := []string{"DEL q c1/eth1", "DEL p c1/eth0", "ADD p c1/eth0", "ADD q c1/eth1"}
	for what, die := range map[string]struct {
		how  func(s *stage)
		told func(s *stage) string // CNI_NETNS at DEL
	}{
		"its namespace is gone": {func(s *stage) { s.RemoveNetNS("c1") }, func(s *stage) string { return s.Pin("c1") }},
		"its namespace is gone, the file stays": {func(s *stage) {
			s.RemoveNetNS("c1")
			write(s.Host, "netns/c1", "")
		}, func(s *stage) string { return s.Pin("c1") }},
		"its interfaces are gone": {func(s *stage) {
			s.DelLink("c1", "eth0")
			s.DelLink("c1", "eth1")
		}, func(s *stage) string { return s.Path("netns", "c1") }},
	} {
		t.Run(what, func(t *testing.T) {
			s, r, _ := attached(t)
			die.how(s)
			path := s.Container("c2")
			expect.Value(r.SetupSerially(t.Context(), "c1", path))(t)
			calls := s.TakeCalls()
			expect.Same(t, "calls", testhost.Rendered(calls), cleaned)
			for _, c := range calls[:2] {
				expect.Same(t, "DEL: arguments and namespace", []string{c.Args, c.NetNS}, []string{"K=v", die.told(s)})
				_, ok := testhost.Request(t, c)["prevResult"]
				expect.That(t, ok, "DEL %s without prevResult", c.Type)
			}
		})
	}
}

func TestDuty_R16_ADeadAttachmentWhosePathIsTheHostsByNow(t *testing.T) {
	s, r, _ := attached(t)
	s.RemoveNetNS("c1")
	// Like a /proc/PID/ns/net whose PID now belongs to a process of the host.
	link := s.Path("netns", "c1")
	expect.NoError(t, os.Symlink(s.Path("netns", "host"), link))
	t.Cleanup(func() { expect.NoError(t, os.Remove(link)) })
	expect.Value(r.SetupSerially(t.Context(), "c1", s.Container("c2")))(t)
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL q c1/eth1", "DEL p c1/eth0", "ADD p c1/eth0", "ADD q c1/eth1"})
	expect.Same(t, "CNI_NETNS at DEL", calls[0].NetNS, s.Pin("c1"))
}

func TestDuty_R16_ADeadAttachmentThatCannotBeCleanedIsAnError(t *testing.T) {
	s, r, _ := attached(t)
	s.On("p", "DEL", testhost.Says(5, "stuck"))
	s.RemoveNetNS("c1")
	_, err := r.Setup(t.Context(), "c1", s.Container("c2"))
	expect.Same(t, "errors", testhost.Messages(err), []string{"p: stuck"})
	expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth1", "DEL p c1/eth0"})
	fails(t, err, "remove an earlier attachment")
}

func TestDuty_R16_LoopbackAloneLivesWithItsNamespace(t *testing.T) {
	s := newStage(t)
	s.Network("unused", "1.0.0", "loopback")
	r := s.Runtime(cni.WithLoNetwork)
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	expect.Is(t, errOf(r.Setup(t.Context(), "c1", path)), cni.ErrAlreadyAttached)
	s.RemoveNetNS("c1")
	testhost.MustSetUp(t, r, "c1", s.Container("c2"))
}
