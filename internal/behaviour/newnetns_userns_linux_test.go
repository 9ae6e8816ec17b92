package behaviour_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// userNS starts a process in a user namespace, which ends with the test, and opens that.
func userNS(t *testing.T) *os.File {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: root, GidMappings: root}
	expect.NoError(t, cmd.Start())
	t.Cleanup(func() {
		expect.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	})
	f := expect.Value(os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid)))(t)
	t.Cleanup(func() { expect.NoError(t, f.Close()) })
	return f
}

func (m *maker) ownerOf(path string) netns.UserNS {
	m.T.Helper()
	h := expect.Value(netns.Open(path))(m.T)
	owner := expect.Value(h.Owner())(m.T)
	expect.NoError(m.T, h.Close())
	return owner
}

func identity(t *testing.T, f *os.File) netns.ID {
	t.Helper()
	var st unix.Stat_t
	expect.NoError(t, unix.Fstat(int(f.Fd()), &st))
	return netns.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}
}

// TestANamespaceOfAUserNamespace belongs to it, after an attempt that failed too, and goes
// with the container.
func TestANamespaceOfAUserNamespace(t *testing.T) {
	own := expect.Value(os.Open("/proc/thread-self/ns/user"))(t)
	defer own.Close() // was only looked at
	for what, user := range map[string]*os.File{"the container's": userNS(t), "the runtime's own": own} {
		for _, chosen := range []bool{false, true} {
			m := newMaker(t)
			var owners []netns.ID
			add := func(_ context.Context, r *plugin.Request) error {
				owner, err := r.Container.Owner()
				if owners = append(owners, owner.ID); err == nil && len(owners) == 1 {
					err = plugin.Errorf(11, "try again later")
				}
				return err
			}
			m.Runtime = m.stage.Runtime(cni.WithOwner("tester"), cni.WithRetry(cni.Retry{Attempts: 2, Delay: 1}), testhost.ListOfTypes("net", "p"),
				cni.WithPlugin("p", testhost.Acting{On: map[string]testhost.Action{"ADD": add}}))
			path := ""
			if chosen {
				path = m.Path("netns", "c1")
			}
			result := testhost.MustSetUp(t, m.Runtime, "c1", path, cni.WithNewNetNSIn(user))
			want := identity(t, user)
			expect.Same(t, what+": owners in the attempts", owners, []netns.ID{want, want})
			expect.Same(t, what+": owner", m.ownerOf(result.NetNS).ID, want)
			expect.Same(t, what+": on record", m.idAt(result.NetNS), m.recordedAs("c1"))

			// A runtime that is killed leaves it to the next.
			m.ChangeRecord("c1", func(rec *record.Record) {
				rec.Runtime, rec.Life, rec.Attachments[0].State = "1:1", "", record.Planned
			})
			report := expect.Value(m.Recover(t.Context()))(t)
			expect.Same(t, what+": removed", report.Removed, []string{"c1"})
			m.WantClean(m.before)
		}
	}
}

func TestAUserNamespaceThatCannotOwnIsRefused(t *testing.T) {
	m := newMaker(t)
	another := expect.Value(os.Open(m.Container("another")))(t)
	plain := expect.Value(os.Open(m.Write("plain", "text")))(t)
	closed := expect.Value(os.Open("/proc/self/ns/user"))(t)
	expect.NoError(t, closed.Close())
	m.before = m.Audit()
	for what, tt := range map[string]struct {
		owner *os.File
		opt   func(cni.NamespaceOpts) cni.NamespaceOpts
		want  error
	}{
		"none":                {nil, nil, cni.ErrInvalidArgument},
		"a network namespace": {another, nil, cni.ErrInvalidNetNS},
		"a file":              {plain, nil, cni.ErrInvalidNetNS},
		"a closed file":       {closed, nil, cni.ErrInvalidNetNS},
		"inside WithNetwork":  {userNS(t), func(o cni.NamespaceOpts) cni.NamespaceOpts { return cni.WithNetwork("net", o) }, cni.ErrInvalidArgument},
	} {
		opt := cni.WithNewNetNSIn(tt.owner)
		if tt.opt != nil {
			opt = tt.opt(opt)
		}
		expect.Is(t, errOf(m.Runtime.Setup(t.Context(), "c1", m.Path("netns", "c1"), opt)), tt.want)
		expect.Same(t, what+": calls", len(m.Calls()), 0)
		expect.Same(t, what+": on record", testhost.Recorded(t, m.Runtime), []string{})
		_, err := os.Lstat(m.Path("netns", "c1"))
		expect.Is(t, err, fs.ErrNotExist)
	}
	expect.NoError(t, another.Close())
	expect.NoError(t, plain.Close())
}
