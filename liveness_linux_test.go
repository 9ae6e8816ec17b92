package cni_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
)

// soon is much longer than a call waits for orphans, and much less than it waits
// for a runtime that lives.
const soon = 30 * time.Second

// neighbour is another container that a runtime is attaching in another process,
// which stands at a gate. When the test is over it must have got through.
func (s *stage) neighbour() (through func()) {
	s.t.Helper()
	gate := s.gate("neighbour")
	s.on("n", "ADD", scripted.Action{Block: gate})
	done := s.elsewhere(s.network("neighbours", "1.0.0", "n"), "ADD", "c2", s.container("c2"))
	letGo := s.arrive(gate)
	return func() {
		s.t.Helper()
		letGo()
		wantSame(s.t, "the neighbour", await(s.t, "the neighbour", done), "")
	}
}

// promptly wants f to return nil soon, and not before plugins that end by
// themselves had their time.
func promptly(t *testing.T, what string, f func() error) {
	t.Helper()
	start := time.Now()
	wantNil(t, await(t, what, begin(f)))
	if took := time.Since(start); took > soon || took < time.Second {
		t.Errorf("%s took %v", what, took)
	}
}

// TestFault_F30_NobodyWaitsLongBehindADeadRuntimesPlugin: by whichever call comes
// next, in a process that never calls Recover.
func TestFault_F30_NobodyWaitsLongBehindADeadRuntimesPlugin(t *testing.T) {
	for what, call := range map[string]func(s *stage, r *cni.Runtime) error{
		"Remove": func(s *stage, r *cni.Runtime) error { return r.Remove(context.Background(), "c1", "") },
		"Setup": func(s *stage, r *cni.Runtime) error {
			s.on("p", "ADD", scripted.Action{})
			return setUp(context.Background(), r, "c1", s.path("netns", "c1"))()
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
			s.spoilBase("c1", "{")
			return r.Remove(context.Background(), "c1", "")
		},
	} {
		t.Run(what, func(t *testing.T) {
			s, r, letGo := killedRuntime(t, scripted.Action{Hang: true, Fork: true})
			letGo()
			through := func() {}
			if what != "GC" { // which waits for the neighbour too
				through = s.neighbour()
			}
			promptly(t, what, func() error { return call(s, r) })
			if what != "Setup" {
				wantSame(t, "of c1 on record", slices.DeleteFunc(recorded(t, r), func(line string) bool {
					return !strings.HasPrefix(line, "c1/")
				}), []string{})
			}
			through()
			wantSame(t, "processes", children(t), nil)
		})
	}
}

// TestFault_F45_AnOrphanOfAPooledContainerIsFound: plugins know the container by
// another ID.
func TestFault_F45_AnOrphanOfAPooledContainerIsFound(t *testing.T) {
	for what, damaged := range map[string]bool{"a whole record": false, "a damaged record": true} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			gate := s.gate("portmap")
			s.on("portmap", "ADD", scripted.Action{Block: gate, Hang: true, Fork: true})
			conf := fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "net", "plugins": [
				{"type": "bridge", "script": %q}, {"type": "portmap", "script": %q, "capabilities": {"portMappings": true}}]}`,
				s.plugin(s.scripts["bridge"], "bridge"), s.plugin(s.scripts["portmap"], "portmap"))
			process, done := s.process(conf, "POOL", "c1", "")
			s.arrive(gate)()
			wantNil(t, process.Kill())
			await(t, "the end of the runtime", done)
			if damaged {
				s.spoilBase("c1", "{")
			}
			r := s.runtime(cni.WithConfListBytes(conf))
			promptly(t, "the next call", func() error {
				if damaged { // so that its ID is known to the caller alone
					return r.Remove(t.Context(), "c1", "")
				}
				report, err := r.Recover(t.Context())
				return errors.Join(err, report.Err())
			})
			_, err := r.Recover(t.Context()) // the namespace, of which the record said nothing
			wantNil(t, err)
			wantSame(t, "processes", children(t), nil)
		})
	}
}

// TestNobodyEndsThePluginsOfARuntimeThatLives, whatever the record says: a CHECK
// writes none, so that it may name a runtime that is dead, and of a damaged one
// nobody knows.
func TestNobodyEndsThePluginsOfARuntimeThatLives(t *testing.T) {
	for what, spoil := range map[string]func(*stage){
		"the record names another":      func(*stage) {},
		"the record is damaged":         func(s *stage) { s.spoilBase("c1", "{") },
		"it is of an earlier version":   func(s *stage) { wantNil(s.t, os.Remove(s.path("state", "embedcni", "alive"))) },
		"of an earlier one and damaged": func(s *stage) { s.spoilBase("c1", "{"); wantNil(s.t, os.Remove(s.path("state", "embedcni", "alive"))) },
	} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			conf := s.network("net", "1.0.0", "p", "q")
			path := s.container("c1")
			wantSame(t, "Setup", await(t, "Setup", s.elsewhere(conf, "ADD", "c1", path)), "")
			gate := s.gate("check")
			s.on("p", "CHECK", scripted.Action{Block: gate})
			checking := s.elsewhere(conf, "CHECK", "c1", path)
			letGo := s.arrive(gate)
			spoil(s)
			r := s.runtime(cni.WithConfListBytes(conf))
			removing := begin(func() error { return r.Remove(t.Context(), "c1", "") })
			report, err := r.Recover(t.Context()) // which looks as often as Remove
			wantNil(t, err)
			wantIs(t, report.Skipped["c1"], cni.ErrBusy)
			letGo()
			wantSame(t, "CHECK", await(t, "CHECK", checking), "")
			wantNil(t, await(t, "Remove", removing))
		})
	}
}

// TestFault_F59_RecoverDoesNotWaitForAStoppedProcess of its owner, which may have
// any number of containers locked.
func TestFault_F59_RecoverDoesNotWaitForAStoppedProcess(t *testing.T) {
	s := newStage(t)
	gate := s.gate("p")
	s.on("p", "ADD", scripted.Action{Block: gate})
	conf := s.network("net", "1.0.0", "p")
	process, done := s.process(conf, "ADD", "c1", s.container("c1"))
	letGo := s.arrive(gate)
	wantNil(t, process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(process.Pid, &status, syscall.WUNTRACED, nil) // until it has
	wantNil(t, err)
	r := s.runtime(cni.WithConfListBytes(conf))
	promptly(t, "Recover", func() error {
		report, err := r.Recover(t.Context())
		wantIs(t, report.Skipped["c1"], cni.ErrBusy)
		if text := report.Skipped["c1"].Error(); !strings.Contains(text, fmt.Sprintf("in process %d (", process.Pid)) || !strings.Contains(text, ", stopped)") {
			t.Errorf("error %q does not name the stopped process %d", text, process.Pid)
		}
		return err
	})
	wantNil(t, process.Signal(syscall.SIGCONT))
	letGo()
	wantSame(t, "Setup", await(t, "Setup", done), "")
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached"})
}

// TestFault_F59_APoolIsAliveInEveryPIDNamespace: the number of its process is
// nobody's there.
func TestFault_F59_APoolIsAliveInEveryPIDNamespace(t *testing.T) {
	for what, life := range map[string]bool{"by its byte": true, "by its number": false} {
		t.Run(what, func(t *testing.T) {
			s, r, p := pooled(t, 2)
			ready := s.wantFull(r, p, 2)
			if !life {
				for _, id := range ready {
					s.changeRecord(id, func(rec *record.Record) { rec.Life = "" })
				}
			}
			_, done := s.processFor(job{Verb: "RECOVER", Owner: "tester", NewProc: true, Conf: s.network("other", "1.0.0", "p")},
				&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS})
			wantSame(t, "Recover there", await(t, "Recover there", done), fmt.Sprint(cni.Report{}))
			wantSame(t, "ready", s.wantFull(r, p, 2), ready)
		})
	}
}

// TestFault_F62_AProcessThatExecutesItselfReclaimsItsWarmContainers: it is
// another runtime with the same number and start.
func TestFault_F62_AProcessThatExecutesItselfReclaimsItsWarmContainers(t *testing.T) {
	for what, list := range map[string]string{
		"attached ahead of time": `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "script": %q}]}`,
		"a namespace only":       `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "own", "script": %q}]}`,
	} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			conf := fmt.Appendf(nil, list, s.plugin(scripted.Script{}, "bridge", "own"))
			_, done := s.processFor(job{Verb: "EXEC", Owner: "tester", WarmOnly: true, Conf: conf}, nil)
			said := await(t, "the report", done)
			if !strings.HasPrefix(said, "{[] [warm-") {
				t.Errorf("Recover after exec reports %s", said)
			}
			for _, pattern := range []string{"*.json", "pool/*/*"} {
				left, err := filepath.Glob(s.path("state", "embedcni", "attachments", pattern))
				wantNil(t, err)
				wantSame(t, "left", left, nil)
			}
		})
	}
}

// TestFault_F62_PID1ReclaimsTheLastBootsWarmContainers: as init of a machine it
// may have the number and the start, in ticks, of the one before, and by chance
// the byte.
func TestFault_F62_PID1ReclaimsTheLastBootsWarmContainers(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithOwner("tester"), s.poolNetwork("net"))
	p, err := r.NewPool(cni.PoolOptions{Size: 1})
	wantNil(t, err)
	warm := s.wantFull(r, p, 1)[0]
	recoverWith(t, r, cni.Report{})
	s.changeRecord(warm, func(rec *record.Record) { rec.Boot = "another boot" })
	recoverWith(t, r, cni.Report{Removed: []string{warm}})
	wantNil(t, p.Close())
}
