package behaviour_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// soon is much longer than a call waits for orphans, and much less than it
// waits for a running runtime.
const soon = 30 * time.Second

// neighbour attaches another container in another process, which waits at a
// gate. through opens the gate and checks that the call succeeds.
func (s *stage) neighbour() (through func()) {
	s.T.Helper()
	gate := s.Gate("neighbour")
	s.On("n", "ADD", scripted.Action{Block: gate})
	done := s.Elsewhere(s.Network("neighbours", "1.0.0", "n"), "ADD", "c2", s.Container("c2"))
	letGo := s.Arrive(gate)
	return func() {
		s.T.Helper()
		letGo()
		expect.Same(s.T, "the neighbour", expect.Await(s.T, "the neighbour", done), "")
	}
}

// promptly checks that f returns nil soon, but not before plugins that end by
// themselves had their time.
func promptly(t *testing.T, what string, f func() error) {
	t.Helper()
	start := time.Now()
	expect.NoError(t, expect.Await(t, what, testhost.Begin(f)))
	if took := time.Since(start); took > soon || took < time.Second {
		t.Errorf("%s took %v", what, took)
	}
}

// TestFault_F30_NoCallWaitsLongForADeadRuntimesPlugin: the next call does
// not wait long, whichever it is, in a process that never calls Recover.
func TestFault_F30_NoCallWaitsLongForADeadRuntimesPlugin(t *testing.T) {
	for what, call := range map[string]func(s *stage, r *cni.Runtime) error{
		"Remove": func(s *stage, r *cni.Runtime) error { return r.Remove(context.Background(), "c1", "") },
		"Setup": func(s *stage, r *cni.Runtime) error {
			s.On("p", "ADD", scripted.Action{})
			return testhost.SetUp(context.Background(), r, "c1", s.Path("netns", "c1"))()
		},
		"GC": func(s *stage, r *cni.Runtime) error {
			_, err := r.GC(context.Background(), cni.GCOptions{KeepNone: true})
			return err
		},
		"CleanUp": func(s *stage, r *cni.Runtime) error {
			_, err := r.CleanUp(context.Background(), cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth0"})
			return err
		},
		"Remove of a damaged record": func(s *stage, r *cni.Runtime) error {
			s.SpoilBase("c1", "{")
			return r.Remove(context.Background(), "c1", "")
		},
	} {
		t.Run(what, func(t *testing.T) {
			s, r, letGo := killedRuntime(t, scripted.Action{Hang: true, Fork: true})
			letGo()
			through := func() {}
			if what != "GC" { // which also waits for the neighbour
				through = s.neighbour()
			}
			promptly(t, what, func() error { return call(s, r) })
			if what != "Setup" {
				expect.Same(t, "of c1 on record", slices.DeleteFunc(testhost.Recorded(t, r), func(line string) bool {
					return !strings.HasPrefix(line, "c1/")
				}), []string{})
			}
			through()
			expect.Same(t, "processes", testhost.Children(t), nil)
		})
	}
}

// TestNobodyEndsThePluginsOfARuntimeThatLives, whatever the record says. A
// CHECK writes no record, so the record may name a dead runtime. A damaged
// record names none.
func TestNobodyEndsThePluginsOfARuntimeThatLives(t *testing.T) {
	for what, spoil := range map[string]func(*stage){
		"the record names another":    func(*stage) {},
		"the record is damaged":       func(s *stage) { s.SpoilBase("c1", "{") },
		"it is of an earlier version": func(s *stage) { expect.NoError(s.T, os.Remove(s.Path("state", "embedcni", "alive"))) },
		"of an earlier one and damaged": func(s *stage) {
			s.SpoilBase("c1", "{")
			expect.NoError(s.T, os.Remove(s.Path("state", "embedcni", "alive")))
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			conf := s.Network("net", "1.0.0", "p", "q")
			path := s.Container("c1")
			expect.Same(t, "Setup", expect.Await(t, "Setup", s.Elsewhere(conf, "ADD", "c1", path)), "")
			gate := s.Gate("check")
			s.On("p", "CHECK", scripted.Action{Block: gate})
			checking := s.Elsewhere(conf, "CHECK", "c1", path)
			letGo := s.Arrive(gate)
			spoil(s)
			r := s.Runtime(cni.WithConfListBytes(conf))
			removing := testhost.Begin(func() error { return r.Remove(t.Context(), "c1", "") })
			report, err := r.Recover(t.Context()) // which checks as often as Remove
			expect.NoError(t, err)
			expect.Is(t, report.Skipped["c1"], cni.ErrBusy)
			letGo()
			expect.Same(t, "CHECK", expect.Await(t, "CHECK", checking), "")
			expect.NoError(t, expect.Await(t, "Remove", removing))
		})
	}
}

// TestFault_F59_RecoverDoesNotWaitForAStoppedProcess of its owner, even if that
// process holds many containers' locks.
func TestFault_F59_RecoverDoesNotWaitForAStoppedProcess(t *testing.T) {
	s := newStage(t)
	gate := s.Gate("p")
	s.On("p", "ADD", scripted.Action{Block: gate})
	conf := s.Network("net", "1.0.0", "p")
	process, done := s.Process(conf, "ADD", "c1", s.Container("c1"))
	letGo := s.Arrive(gate)
	expect.NoError(t, process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(process.Pid, &status, syscall.WUNTRACED, nil) // until it has stopped
	expect.NoError(t, err)
	r := s.Runtime(cni.WithConfListBytes(conf))
	promptly(t, "Recover", func() error {
		report, err := r.Recover(t.Context())
		expect.Is(t, report.Skipped["c1"], cni.ErrBusy)
		if text := report.Skipped["c1"].Error(); !strings.Contains(text, fmt.Sprintf("in process %d (", process.Pid)) || !strings.Contains(text, ", stopped)") {
			t.Errorf("error %q does not name the stopped process %d", text, process.Pid)
		}
		return err
	})
	expect.NoError(t, process.Signal(syscall.SIGCONT))
	letGo()
	expect.Same(t, "Setup", expect.Await(t, "Setup", done), "")
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
}

// TestFault_F59_APoolIsAliveInEveryPIDNamespace: no process there has the
// number of the pool's process.
func TestFault_F59_APoolIsAliveInEveryPIDNamespace(t *testing.T) {
	for what, life := range map[string]bool{"by its byte": true, "by its number": false} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			r := s.Runtime(cni.WithOwner("tester"), cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
			pooled(s.Host, r, "warm-1", "")
			s.ChangeRecord("warm-1", func(rec *record.Record) {
				rec.Life, rec.Runtime = s.Life(r)
				if !life {
					rec.Life = ""
				}
			})
			_, done := s.ProcessFor(testhost.Job{Verb: "RECOVER", Owner: "tester", NewProc: true, Conf: s.Network("other", "1.0.0", "p")},
				&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS})
			expect.Same(t, "Recover there", expect.Await(t, "Recover there", done), fmt.Sprint(cni.Report{}))
			expect.Same(t, "on record", testhost.Recorded(t, r), []string{"warm-1/eth0 attached"})
			s.ChangeRecord("warm-1", func(rec *record.Record) { rec.Life, rec.Runtime = "", "1:1" })
			testhost.WantRecover(t, r, cni.Report{Removed: []string{"warm-1"}})
		})
	}
}

// TestFault_F62_PID1ReclaimsTheLastBootsWarmContainers: as a machine's init it
// may have the number and the start time, in ticks, of the one before, and by
// chance the same byte.
func TestFault_F62_PID1ReclaimsTheLastBootsWarmContainers(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithOwner("tester"), cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	pooled(s.Host, r, "warm-1", "")
	s.ChangeRecord("warm-1", func(rec *record.Record) { rec.Life, rec.Runtime = s.Life(r) })
	testhost.WantRecover(t, r, cni.Report{})
	s.ChangeRecord("warm-1", func(rec *record.Record) { rec.Boot = "another boot" })
	testhost.WantRecover(t, r, cni.Report{Removed: []string{"warm-1"}})
}
