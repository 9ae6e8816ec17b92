package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// smallState puts the state directory on a file system of 256 KiB.
func smallState(t *testing.T) (s *stage, r *cni.Runtime, log *testhost.Log) {
	t.Helper()
	s, log = newStage(t), &testhost.Log{}
	dir := s.Path("state")
	expect.NoError(t, os.MkdirAll(dir, 0o755))
	expect.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"))
	t.Cleanup(func() {
		s.makeWritable()
		s.Unpin()
		expect.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) // a Runtime keeps its liveness file open
	})
	return s, s.Runtime(log.Logger(), cni.WithConfListBytes(s.Network("net", "1.0.0", "p"))), log
}

func (s *stage) makeReadOnly() {
	s.T.Helper()
	expect.NoError(s.T, unix.Mount("", s.Path("state"), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

func (s *stage) makeWritable() {
	s.T.Helper()
	expect.NoError(s.T, unix.Mount("", s.Path("state"), "", unix.MS_REMOUNT, ""))
}

func (s *stage) fill() {
	s.T.Helper()
	err := os.WriteFile(s.Path("state", "ballast"), make([]byte, 1<<20), 0o600)
	expect.Must(s.T, errors.Is(err, syscall.ENOSPC), "error %v, want a full disk", err)
}

func TestFault_F21_SetupOnAReadOnlyStateDirectoryRunsNothing(t *testing.T) {
	s, r, _ := smallState(t)
	path := s.Container("c1")
	s.makeReadOnly()
	expect.Is(t, errOf(r.Setup(t.Context(), "c1", path)), syscall.EROFS)
	expect.Is(t, r.Check(t.Context(), "c1", path), syscall.EROFS)
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestFault_F21_SetupOnAFullStateDirectoryRunsNothing(t *testing.T) {
	s, r, _ := smallState(t)
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "warm", s.Container("warm"))
	s.TakeCalls()
	s.fill()
	expect.Is(t, errOf(r.Setup(t.Context(), "c1", path)), syscall.ENOSPC)
	expect.Same(t, "calls", s.Took(), []string{})
	expect.Same(t, "cache", s.Cached(), []string{"net-warm-eth0"})
	expect.NoError(t, r.Remove(t.Context(), "warm", ""))
	expect.NoError(t, os.Remove(s.Path("state", "ballast")))
	testhost.MustSetUp(t, r, "c1", path)
}

func TestFault_F21_RemoveOnAReadOnlyStateDirectoryGoesOnAndLogs(t *testing.T) {
	s, r, log := smallState(t)
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path, cni.WithArgs("K", "v"))
	s.TakeCalls()
	s.makeReadOnly()
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL p c1/eth0"})
	expect.Same(t, "arguments", calls[0].Args, "K=v")
	expect.Same(t, "warnings", log.Lines("WARN"), []string{
		fmt.Sprintf(`msg="removing without a lock between processes" container=c1 `+
			`error="lock \"barrier\" and 1 more: lock file unavailable: open %s: read-only file system"`, s.Path("state", "embedcni", "locks")),
		fmt.Sprintf(`msg="note a removal in the record" container=c1 error="record of container c1: open %s.json: read-only file system"`,
			s.RecordFile("c1")),
	})
	// The next one deletes the leftover file.
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
	s.makeWritable()
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}

// spoiled are contents that libcni never writes to its cache.
var spoiled = map[string]string{
	"empty":      "",
	"cut off":    `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkN`,
	"garbage":    "\x00\x01\x02",
	"wrong kind": `{"kind":"other"}`,
	"null":       `null`,
}

// spoil sets c1 up without the interface and spoils its cache, which is its
// only trace.
func spoil(t *testing.T, content string) (s *stage, r *cni.Runtime, log *testhost.Log, path string) {
	t.Helper()
	s, log = newStage(t), &testhost.Log{}
	r = s.Runtime(log.Logger(), cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	path = s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	s.TakeCalls()
	s.Unrecord("c1")
	write(s.Host, "state/results/net-c1-eth0", content)
	return s, r, log, path
}

// wantWarned checks that the log names the unreadable file.
func wantWarned(t *testing.T, what string, log *testhost.Log) {
	t.Helper()
	const want = `msg="cached attachment cannot be read" container=c1 network=net error="`
	for _, line := range log.Lines("WARN") {
		if strings.HasPrefix(line, want) {
			return
		}
	}
	t.Errorf("%s: warnings %q, want one that begins with %q", what, log.Lines("WARN"), want)
}

// TestFault_F21_CallsOverACacheThatCannotBeRead: Setup cleans first, and so does Remove.
func TestFault_F21_CallsOverACacheThatCannotBeRead(t *testing.T) {
	for what, content := range spoiled {
		s, r, log, path := spoil(t, content)
		expect.Is(t, r.Check(t.Context(), "c1", path), cni.ErrNotAttached)
		expect.Same(t, what, s.Took(), []string{})
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
		expect.Same(t, what, s.Took(), []string{"DEL p c1/eth0"})
		expect.Same(t, what+": cache", s.Cached(), []string{})
		wantWarned(t, what, log)

		s, r, log, path = spoil(t, content)
		testhost.MustSetUp(t, r, "c1", path)
		calls := s.TakeCalls()
		expect.Same(t, what, testhost.Rendered(calls), []string{"DEL p c1/eth0", "ADD p c1/eth0"})
		expect.Same(t, what+": CNI_NETNS at DEL", calls[0].NetNS, path)
		wantWarned(t, what, log)
	}
}

func TestFault_F21_ALivingAttachmentIsSafeWhenItsCacheCannotBeRead(t *testing.T) {
	s, r, _, path := spoil(t, "")
	s.AddLink("c1", "eth0")
	expect.Is(t, testhost.SetUp(t.Context(), r, "c1", path)(), cni.ErrAlreadyAttached)
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestFault_F21_ACachedResultThatIsNoneKeepsNoPluginFromBeingAsked(t *testing.T) {
	for what, result := range map[string]string{
		"null interface":  `{"cniVersion":"1.0.0","interfaces":[null],"ips":[{"address":"10.0.0.1/24","interface":7}]}`,
		"null address":    `{"cniVersion":"1.0.0","ips":[null]}`,
		"null route":      `{"cniVersion":"1.0.0","routes":[null]}`,
		"older, null":     `{"cniVersion":"0.3.1","ips":[null],"routes":[null]}`,
		"newer, null":     `{"cniVersion":"1.1.0","ips":[null],"interfaces":[null]}`,
		"unknown version": `{"cniVersion":"9.9.9"}`,
		"no object":       `7`,
	} {
		s, r, _, path := spoil(t, fmt.Sprintf(
			`{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","netns":"/x","config":"e30=","result":%s}`, result))
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
		expect.Same(t, what, s.Took(), []string{"DEL p c1/eth0"})
		expect.Same(t, what+": cache", s.Cached(), []string{})
	}
}

func TestDuty_R32_ASpoiledCacheDoesNotMatterWhereThereIsARecord(t *testing.T) {
	for what, content := range spoiled {
		s, log := newStage(t), &testhost.Log{}
		r := s.Runtime(log.Logger(), cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
		path := s.Container("c1")
		testhost.MustSetUp(t, r, "c1", path)
		s.AddLink("c1", "eth0")
		s.TakeCalls()
		write(s.Host, "state/results/net-c1-eth0", content)
		expect.Is(t, testhost.SetUp(t.Context(), r, "c1", path)(), cni.ErrAlreadyAttached)
		expect.NoError(t, r.Check(t.Context(), "c1", path))
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
		expect.Same(t, what, prevResults(t, s.TakeCalls()), []string{"CHECK p 10.9.0.2/24", "DEL p 10.9.0.2/24"})
		expect.Same(t, what+": warnings", log.Lines("WARN"), []string{})
		expect.Same(t, what+": cache", s.Cached(), []string{})
	}
}

// TestFault_F49_FieldsOfAnotherTypeKeepAnAttachmentFromBeingRemoved: a plugin's
// configuration is its own. A configuration that go-cni loads can be loaded,
// attached, and removed: by Remove, by CleanUp, by GC, and by a Setup that
// fails.
func TestFault_F49_FieldsOfAnotherTypeKeepAnAttachmentFromBeingRemoved(t *testing.T) {
	s := newStage(t)
	netNS := s.Container("c1")
	for _, typ := range []string{"own", "bridge", "portmap"} {
		for _, field := range testhost.OddFields() {
			t.Run(typ+"/"+field, func(t *testing.T) { removeInAllWays(t, s, netNS, typ, field) })
		}
	}
}

func removeInAllWays(t *testing.T, s *stage, netNS, typ, field string) {
	ctx, path := context.Background(), s.Plugin(scripted.Script{}, typ)
	list := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "n1", "plugins": [{"type": %q, "script": %q, %s}]}`, typ, path, field)
	_, theirs := libcni.ConfListFromBytes(list) // like go-cni; the oracle compares both
	r := s.Runtime()
	err := r.Load(cni.WithConfListBytes(list))
	expect.Must(t, (err == nil) == (theirs == nil), "Load: got %v, libcni %v", err, theirs)
	if err != nil {
		return
	}
	setUp := func() error { return errOf(r.Setup(ctx, "c1", netNS)) }
	expect.NoError(t, setUp())
	expect.NoError(t, r.Remove(ctx, "c1", netNS))
	expect.NoError(t, setUp())
	found := expect.Value(r.CleanUp(ctx, cni.CleanUpTarget{ContainerID: "c1", Network: "n1", IfName: "eth0"}))(t)
	expect.Same(t, "CleanUp has found something", len(found) > 0, true)
	s.On(typ, "ADD", testhost.Says(100, "refused"))
	wantNothingLeft(t, setUp())
	s.On(typ, "ADD", scripted.Action{})
	expect.NoError(t, setUp())
	expect.NoError(t, expect.Reported(r.GC(ctx, cni.GCOptions{KeepNone: true})))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}

// TestFault_F49_ArgsThatAreNoObjectKeepTheIDForEver: the caller's arguments
// cannot be merged into args that are not an object. ADD reports that, and the
// plugins before that one are still undone.
func TestFault_F49_ArgsThatAreNoObjectKeepTheIDForEver(t *testing.T) {
	ctx, s := context.Background(), newStage(t)
	path := s.Plugin(scripted.Script{}, "first", "second")
	list := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "n1", "plugins": [
		{"type": "first", "script": %q}, {"type": "second", "script": %q, "args": "none"}]}`, path, path)
	r := s.Runtime(cni.WithConfListBytes(list))
	netNS := s.Container("c1")
	wantNothingLeft(t, expect.Err(r.Setup(ctx, "c1", netNS, cni.WithConfigArgs("mac", "02:00:00:00:00:01"))))
	expect.Same(t, "calls", s.Took(), []string{"ADD first c1/eth0", "DEL second c1/eth0", "DEL first c1/eth0"})
	testhost.MustSetUp(t, r, "c1", netNS)
}

// TestFault_F49_ABuiltInPluginThatRefusesAFieldKeepsTheIDForEver: a built-in
// plugin that refuses a field of the wrong type has made nothing. Its undoing
// adds no other error.
func TestFault_F49_ABuiltInPluginThatRefusesAFieldKeepsTheIDForEver(t *testing.T) {
	for _, fields := range []string{
		`"type": "host-device", "device": 5`, `"type": "tuning", "mtu": "big"`, `"type": "tuning", "dataDir": []`, `"type": "bridge", "mtu": "big"`,
		`"type": "ptp", "ipMasq": "auto"`, `"type": "macvlan", "master": 5`, `"type": "portmap", "snat": "no"`, `"type": "firewall", "backend": 5`,
		`"type": "bandwidth", "ingressRate": "fast"`, `"type": "bridge", "ipam": {"type": "static", "addresses": 5}`,
	} {
		t.Run(fields, func(t *testing.T) {
			ctx, s := context.Background(), newStage(t)
			r := s.Runtime(cni.WithBuiltinPlugins(), cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "n1", "plugins": [{%s}]}`, fields)))
			wantNothingLeft(t, expect.Err(r.Setup(ctx, "c1", s.Container("c1"))))
			expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
		})
	}
}

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
			wantNothingLeft(t, expect.Err(s.Runtime(conf).Setup(t.Context(), "c1", path)))
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
		"Remove":  func(t *testing.T, r *cni.Runtime, path string) error { return r.Remove(t.Context(), "c1", path) },
		"Recover": func(t *testing.T, r *cni.Runtime, _ string) error { return expect.Reported(r.Recover(t.Context())) },
		"GC": func(t *testing.T, r *cni.Runtime, _ string) error {
			return expect.Reported(r.GC(t.Context(), cni.GCOptions{KeepNone: true}))
		},
	}
}

// wantNothingLeft checks that a Setup has failed, and that nothing of it is left.
func wantNothingLeft(t *testing.T, err error) {
	t.Helper()
	expect.That(t, err != nil && !errors.As(err, new(*cni.LeftoverError)), "got %v, want an error, and nothing left", err)
}

func wantLeftover(t *testing.T, err error) {
	t.Helper()
	left := (*cni.LeftoverError)(nil)
	expect.That(t, errors.As(err, &left) && left.ContainerID == "c1", "got %v, want a LeftoverError of c1", err)
}

// TestAFailedADDOfHostDeviceKeepsWhatItMoved: a device that reached the
// container is not forgotten.
func TestAFailedADDOfHostDeviceKeepsWhatItMoved(t *testing.T) {
	s := newStage(t)
	s.On("host-device", "ADD", testhost.Says(999, "late"))
	s.On("host-device", "DEL", testhost.Says(999, "stuck"))
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "host-device")))
	path := s.Container("c1")
	s.AddLink("c1", "up0")
	wantLeftover(t, expect.Err(r.Setup(t.Context(), "c1", path)))
	s.DelLink("c1", "up0")
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
}

// TestFault_F51_ANameTooLongBesideDoesNotKeepAContainerAttached: a container on
// one network is removed even if the ID and another loaded network's name are
// together too long for libcni's cache.
func TestFault_F51_ANameTooLongBesideDoesNotKeepAContainerAttached(t *testing.T) {
	s := newStage(t)
	short, long := s.Network("a", "1.0.0", "p"), s.Network(strings.Repeat("b", 180), "1.0.0", "q")
	r := s.Runtime(cni.WithConfListBytes(short))
	id, path := strings.Repeat("c", 90), s.Container("c1")
	testhost.MustSetUp(t, r, id, path)
	expect.NoError(t, r.Load(cni.WithConfListBytes(short), cni.WithConfListBytes(long)))
	s.Took()

	expect.Is(t, errOf(r.Setup(t.Context(), id, path)), cni.ErrInvalidArgument)
	expect.NoError(t, r.Remove(t.Context(), id, path))
	expect.Same(t, "calls", s.Took(), []string{"DEL p " + id + "/eth0"})
	// Once more without a record.
	expect.NoError(t, r.Remove(t.Context(), id, path))
	expect.Same(t, "calls", s.Took(), []string{"DEL p " + id + "/eth0"})
}
