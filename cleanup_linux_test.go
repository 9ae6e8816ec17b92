package cni_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/scripted"
)

// swappable is a host whose reference plugins may be swapped for scripted ones,
// with a network that leaves something wherever plugins can.
type swappable struct {
	*realHost
	conf []byte
}

func newSwappable(t *testing.T) *swappable {
	t.Helper()
	h := newRealHost(t)
	plugins, err := filepath.Glob(filepath.Join(referencePlugins(t), "*"))
	wantNil(t, err)
	wantNil(t, os.MkdirAll(h.path("bin"), 0o755))
	for _, plugin := range plugins {
		wantNil(t, os.Symlink(plugin, h.path("bin", filepath.Base(plugin))))
	}
	c := everything()
	conf := string(c.conf("podnet", "1.0.0", h.path("ipam")))
	for _, typ := range []string{"bridge", "portmap", "bandwidth", "firewall"} {
		key := fmt.Sprintf(`"type": %q`, typ)
		conf = strings.ReplaceAll(conf, key, fmt.Sprintf(`%s, "script": %q`, key, h.path("script-"+typ)))
	}
	return &swappable{h, []byte(conf)}
}

// swap replaces a plugin by one that does nothing but this at DEL.
func (h *swappable) swap(typ string, del scripted.Action) {
	h.t.Helper()
	wantNil(h.t, os.Remove(h.path("bin", typ)))
	h.plugin(scripted.Script{Verbs: map[string]scripted.Action{"DEL": del}}, typ)
}

// wantSwapped sets c1 up beside c2, which keeps what it has, lets plugins be
// swapped, and removes c1.
func (h *swappable) wantSwapped(what string, swap func(), opts ...cni.Opt) error {
	h.t.Helper()
	r := h.runtime(append(opts, cni.WithConfListBytes(h.conf))...)
	_, err := r.Setup(h.t.Context(), "c2", h.container("c2"), cni.WithCapabilityPortMap(
		[]cni.PortMapping{{HostPort: 8081, ContainerPort: 80, Protocol: "tcp"}}))
	wantNil(h.t, err)
	path := h.container("c1")
	before := h.audit()
	_, err = r.Setup(h.t.Context(), "c1", path, onePort)
	wantNil(h.t, err)
	swap()
	err = r.Remove(h.t.Context(), "c1", path)
	if left, gone := h.left(before); len(left)+len(gone) > 0 {
		h.t.Errorf("%s: left behind:\n%s\ngone:\n%s", what, strings.Join(left, "\n"), strings.Join(gone, "\n"))
	}
	wantSame(h.t, what+": on record", recorded(h.t, r), []string{"c2/eth0 attached"})
	return err
}

func TestRealSweepMakesUpForADELThatFails(t *testing.T) {
	for what, del := range map[string]scripted.Action{
		"fails":          says(5, "stuck"),
		"is killed":      {Signal: 9},
		"does nothing":   {},
		"prints rubbish": {Exit: 3, StdoutBytes: 100},
	} {
		for _, typ := range []string{"bridge", "portmap", "bandwidth", "firewall"} {
			t.Run(typ+" "+what, func(t *testing.T) {
				h := newSwappable(t)
				wantNil(t, h.wantSwapped(what, func() { h.swap(typ, del) }))
			})
		}
	}
	t.Run("none of them there", func(t *testing.T) {
		h := newSwappable(t)
		wantNil(t, h.wantSwapped("no plugins", func() { wantNil(t, os.RemoveAll(h.path("bin"))) }))
	})
}

func TestTeardownErrorsAreReportedIfAskedFor(t *testing.T) {
	h := newSwappable(t)
	var log logged
	wantNil(t, h.wantSwapped("by default", func() { h.swap("portmap", says(5, "stuck")) }, log.logger()))
	warned := strings.Join(log.lines("WARN"), "\n")
	if !strings.Contains(warned, `msg="DEL failed, and nothing is left" container=c1`) || !strings.Contains(warned, "stuck") {
		t.Errorf("warnings %s", warned)
	}
	h = newSwappable(t)
	err := h.wantSwapped("asked for", func() { h.swap("portmap", says(5, "stuck")) }, cni.WithTeardownErrors())
	wantSame(t, "errors", messages(err), []string{"portmap: stuck"})
}

func TestADELThatFailsOfAPluginThatNobodyKnows(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	path := s.container("c1")
	before := s.audit()
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	s.on("p", "DEL", says(5, "stuck"))
	for range 2 {
		wantSame(t, "errors", messages(r.Remove(t.Context(), "c1", path)), []string{"p: stuck"})
		wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 failed"})
		wantSame(t, "kept", s.pinned("c1"), true)
	}
	s.on("p", "DEL", scripted.Action{})
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantSame(t, "on record", recorded(t, r), []string{})
	s.takeCalls() // its file is none of the container's
	s.wantCleanBut(before, s.path("script-p"))
}

// wantCleanBut is wantClean for a test that changes a file of its own.
func (s *stage) wantCleanBut(before audit.Lines, path string) {
	s.t.Helper()
	own := func(line string) bool {
		return strings.Contains(line, path) || strings.Contains(line, s.path("state", "embedcni"))
	}
	added, gone := s.since(before)
	wantSame(s.t, "left", strings.Join(added.Without(audit.Shared).Without(own), "\n"), "")
	wantSame(s.t, "gone", strings.Join(gone.Without(own), "\n"), "")
}

func TestRealWhatCannotBeDeletedIsListed(t *testing.T) {
	h := newRealHost(t)
	r := h.real(cni.WithConfListBytes(h.bridgeList("podnet", "10.22.1")))
	path := h.container("c1")
	dir := h.path("ipam")
	wantNil(t, os.MkdirAll(dir, 0o755))
	wantNil(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { wantNil(t, unix.Unmount(dir, 0)) })
	before := h.audit()
	_, err := r.Setup(t.Context(), "c1", path, onePort)
	wantNil(t, err)
	wantNil(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	err = r.Remove(t.Context(), "c1", path)
	var left *cni.LeftoverError
	if !errors.As(err, &left) {
		t.Fatalf("error %v, want a LeftoverError", err)
	}
	wantIs(t, left, unix.EROFS)
	left.Err = nil
	wantSame(t, "left", *left, cni.LeftoverError{ContainerID: "c1", Left: []string{"address 10.22.1.2 in " + filepath.Join(dir, "podnet")}})
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 failed"})
	wantNil(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantSame(t, "on record", recorded(t, r), []string{})
	h.wantClean(before)
}
