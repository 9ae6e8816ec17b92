package behaviour_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// unstartable puts an executable of that type into dir that cannot be started.
func unstartable(t *testing.T, dir, typ, how string) {
	t.Helper()
	path := dir + "/" + typ
	expect.NoError(t, os.RemoveAll(path))
	switch how {
	case "not found":
	case "not executable":
		expect.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o644))
	case "writable by everybody":
		expect.NoError(t, errors.Join(os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755), os.Chmod(path, 0o777)))
	case "exec format error":
		expect.NoError(t, os.WriteFile(path, []byte("\x00 no program"), 0o755))
	case "interpreter not found":
		expect.NoError(t, os.WriteFile(path, []byte("#!/nonexistent/sh\n"), 0o755))
	default:
		t.Fatal(how)
	}
}

// TestFault_F51_APluginThatCannotBeStartedKeepsNoID: a plugin that never ran
// has nothing to undo. It delays neither the failing Setup nor a program that
// finds the leftovers of a killed one.
func TestFault_F51_APluginThatCannotBeStartedKeepsNoID(t *testing.T) {
	for _, how := range []string{"not found", "not executable", "writable by everybody", "exec format error", "interpreter not found"} {
		t.Run(how, func(t *testing.T) {
			s := newStage(t)
			conf := cni.WithConfListBytes(s.Network("net", "1.0.0", "first", "second", "third"))
			unstartable(t, s.Path("bin"), "second", how)
			unstartable(t, s.Path("bin"), "third", "not found")
			path := s.Container("c1")
			_, err := s.Runtime(conf).Setup(t.Context(), "c1", path)
			if err == nil {
				t.Fatal("Setup succeeded")
			}
			if left := (*cni.LeftoverError)(nil); errors.As(err, &left) {
				t.Errorf("left after Setup: %v", left)
			}
			expect.Same(t, "calls", s.Took(), []string{"ADD first c1/eth0", "DEL first c1/eth0"})
			expect.Same(t, "on record", testhost.Recorded(t, s.Runtime(conf)), []string{})
		})
	}
}

// TestFault_F51_TheRecordNamesPluginsThatNeverRan, so that other processes know it.
func TestFault_F51_TheRecordNamesPluginsThatNeverRan(t *testing.T) {
	for name, remove := range removals() {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			conf := cni.WithConfListBytes(s.Network("net", "1.0.0", "first", "second"))
			unstartable(t, s.Path("bin"), "second", "not found")
			s.On("first", "DEL", testhost.Says(11, "later"))
			path := s.Container("c1")
			_, err := s.Runtime(conf).Setup(t.Context(), "c1", path)
			wantLeftover(t, err)
			expect.Same(t, "errors", testhost.Messages(err), []string{"second: ", "first: later"})
			s.On("first", "DEL", scripted.Action{})
			expect.Eventually(t, "another attempt", func() bool {
				err = remove(t, s.Runtime(conf), path)
				if err == nil || !strings.Contains(err.Error(), "not tried again yet") {
					return true
				}
				wantLeftover(t, err)
				return false
			})
			expect.NoError(t, err)
			expect.Same(t, "on record", testhost.Recorded(t, s.Runtime(conf)), []string{})
		})
	}
}

// removals lists every way to remove a container, with a corrected
// configuration.
func removals() map[string]func(*testing.T, *cni.Runtime, string) error {
	return map[string]func(*testing.T, *cni.Runtime, string) error{
		"Remove": func(t *testing.T, r *cni.Runtime, path string) error { return r.Remove(t.Context(), "c1", path) },
		"Recover": func(t *testing.T, r *cni.Runtime, _ string) error {
			report, err := r.Recover(t.Context())
			return errors.Join(err, report.Err())
		},
		"GC": func(t *testing.T, r *cni.Runtime, _ string) error {
			report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
			return errors.Join(err, report.Err())
		},
	}
}

func wantLeftover(t *testing.T, err error) {
	t.Helper()
	if left := (*cni.LeftoverError)(nil); !errors.As(err, &left) || left.ContainerID != "c1" {
		t.Errorf("got %v, want a LeftoverError of c1", err)
	}
}

// TestAFailedADDOfHostDeviceKeepsWhatItMoved: a device that reached the
// container is not forgotten.
func TestAFailedADDOfHostDeviceKeepsWhatItMoved(t *testing.T) {
	s := newStage(t)
	s.On("host-device", "ADD", testhost.Says(999, "late"))
	s.On("host-device", "DEL", testhost.Says(999, "stuck"))
	r := s.Runtime(cni.WithoutBuiltinPlugins(), cni.WithConfListBytes(s.Network("net", "1.0.0", "host-device")))
	path := s.Container("c1")
	s.AddLink("c1", "up0")
	_, err := r.Setup(t.Context(), "c1", path)
	wantLeftover(t, err)
	s.DelLink("c1", "up0")
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
}
