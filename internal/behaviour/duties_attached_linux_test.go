package behaviour_test

import (
	"errors"
	"os"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

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
		"all":         func() error { _, err := r.Setup(ctx, "c1", path); return err },
		"serially":    func() error { _, err := r.SetupSerially(ctx, "c1", path); return err },
		"one of them": func() error { _, err := r.Setup(ctx, "c1", path, cni.WithNetwork("two")); return err },
		"one network": func() error { _, err := r.Networks()[0].Attach(ctx, namespaceOf(t, r, "c1", path)); return err },
		"its interface": func() error {
			_, err := r.Setup(ctx, "c1", path, cni.WithNetwork("two", cni.WithInterfaceName("eth0")))
			return err
		},
		"elsewhere": func() error { _, err := r.Setup(ctx, "c1", otherPath); return err },
	} {
		err := setup()
		if err == nil {
			t.Errorf("%s: no error", what)
		}
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
			s.Write("netns/c1", "")
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
				if _, ok := testhost.Request(t, c)["prevResult"]; !ok {
					t.Errorf("DEL %s without prevResult", c.Type)
				}
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
	says(t, err, "remove an earlier attachment")
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
