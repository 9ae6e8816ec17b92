package behaviour_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// removeUntil removes the first list with a runtime that calls deleted when the
// executable portmap has removed the objects of both lists. If deleted does not
// return, the runtime ends there.
func (l *twoLists) removeUntil(deleted func()) error {
	l.T.Helper()
	observe := cni.WithObserver(func(_ context.Context, e cni.Event) {
		if e.Operation == "DEL" && e.Plugin == "portmap" && e.PluginKind == "executable" {
			deleted()
		}
	})
	r := l.Runtime(observe, cni.WithHostNetNS(l.Path("netns", "host")))
	done := make(chan error, 1)
	go func() {
		err := errors.New("it has not returned")
		defer func() { done <- err }()
		err = r.Remove(context.Background(), "c1", "", l.only(0))
	}()
	return expect.Await(l.T, "Remove", done)
}

// bothAttached returns two lists attached by executables, both of which have
// worked.
func bothAttached(t *testing.T, variant string, families [2]string) *twoLists {
	t.Helper()
	l := newTwoLists(t, "executable", variant, "iptables", families)
	testhost.MustSetUp(t, l.load(), "c1", l.container, l.options()...)
	l.Serve(l.container, 80)
	return l
}

// TestFault_F32_ARuntimeIsKilledBeforeItMends the executable's damage: Recover
// does, and so does a repeated Remove.
func TestFault_F32_ARuntimeIsKilledBeforeItMends(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, l *twoLists, r *cni.Runtime){
		"Recover": func(t *testing.T, _ *twoLists, r *cni.Runtime) {
			report := expect.Value(r.Recover(t.Context()))(t)
			expect.Same(t, "adopted", report.Adopted, []string{"c1"})
		},
		"Remove": func(t *testing.T, l *twoLists, r *cni.Runtime) {
			expect.NoError(t, r.Remove(t.Context(), "c1", "", l.only(0)))
		},
	} {
		for _, families := range [][2]string{{"4", "6"}, {"4", "4"}} {
			t.Run(name+", IPv"+families[1], func(t *testing.T) {
				l := bothAttached(t, "nft", families)
				if err := l.removeUntil(runtime.Goexit); err == nil || err.Error() != "it has not returned" {
					t.Fatalf("Remove returned %v", err)
				}
				r := l.load()
				if err := r.Check(t.Context(), "c1", l.container, l.only(1)); err == nil {
					t.Fatal("the executable took nothing of the other list's")
				}
				again(t, l, r)
				expect.NoError(t, r.Check(t.Context(), "c1", l.container, l.only(1)))
				l.wantWorking(1)
				expect.Is(t, r.Check(t.Context(), "c1", l.container, l.only(0)), cni.ErrNotAttached)
				expect.NoError(t, r.Remove(t.Context(), "c1", l.container))
			})
		}
	}
}

// TestFault_F32_AFailedRepairIsReported in an error that names the damaged
// interface. The next Remove repairs it. Somebody else has the port meanwhile.
func TestFault_F32_AFailedRepairIsReported(t *testing.T) {
	l := bothAttached(t, "legacy", [2]string{"4", "6"})
	err := l.removeUntil(func() { // in a goroutine that is not in the host's namespace
		l.sh("nsenter --net=" + l.Path("netns", "host") + ` nft -f - <<EOF
			add table inet embedcni
			add map inet embedcni hostports6 { type inet_proto . inet_service : ipv6_addr . inet_service; }
			add element inet embedcni hostports6 { tcp . 8080 comment "x" : fd99::1 . 80 }
EOF`)
	})
	l.sh("nft delete table inet embedcni")
	if left := (*cni.LeftoverError)(nil); !errors.As(err, &left) {
		t.Fatalf("Remove: %v, want a LeftoverError", err)
	}
	says(t, err, `rules of interface eth2 on network "podnet", which stays, went too and could not be made again: `)
	r := l.load()
	expect.NoError(t, r.Remove(t.Context(), "c1", "", l.only(0)))
	expect.NoError(t, r.Check(t.Context(), "c1", l.container, l.only(1)))
	l.wantWorking(1)
	expect.NoError(t, r.Remove(t.Context(), "c1", l.container))
}
