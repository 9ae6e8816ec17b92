package cni_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

// task is a container's process, in a network namespace that nothing but the
// process keeps in existence.
type task struct {
	t   *testing.T
	cmd *exec.Cmd
}

func newTask(t *testing.T) *task {
	t.Helper()
	cmd := exec.Command("sh", "-c", "echo; exec sleep 600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET}
	out, err := cmd.StdoutPipe()
	wantNil(t, errors.Join(err, cmd.Start()))
	k := &task{t, cmd}
	t.Cleanup(k.kill)
	_, err = bufio.NewReader(out).ReadString('\n')
	wantNil(t, err)
	ns, err := netns.Open(k.path())
	wantNil(t, err)
	wantNil(t, errors.Join(ns.Do(noAddressDetection), ns.Close()))
	return k
}

func (k *task) path() string { return fmt.Sprintf("/proc/%d/ns/net", k.cmd.Process.Pid) }

func (k *task) kill() {
	_ = k.cmd.Process.Kill() // or it was killed before
	_ = k.cmd.Wait()         // it was killed
}

// abandoning is a network of which a container can be abandoned.
func abandoning() map[string]realCase {
	both := v4Range + "," + v6Range
	return map[string]realCase{
		"bridge":     {plugins: []string{bridgeConf(`"ipMasq": true, ` + hostLocal(both))}},
		"ptp":        {plugins: []string{ptpConf(hostLocal(both))}},
		"everything": everything(),
	}
}

// without waits until nothing is on record of a container.
func (h *realHost) wantGone(r *cni.Runtime, id string) {
	h.t.Helper()
	h.eventually("the end of "+id, func() bool {
		return !strings.Contains(strings.Join(recorded(h.t, r), "\n"), id+"/")
	})
}

// eventually waits until something is so.
func (h *realHost) eventually(what string, is func() bool) {
	h.t.Helper()
	deadline := time.Now().Add(patience)
	for tick := time.NewTicker(5 * time.Millisecond); !is(); <-tick.C {
		if time.Now().After(deadline) {
			h.t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// TestFault_F33_AnAbandonedNamespaceGoesByItself, as those of faasd, which removes
// no container whose task is gone: the next Setup, of another container, by the
// same process or a new one, is all that there is to call.
func TestFault_F33_AnAbandonedNamespaceGoesByItself(t *testing.T) {
	for name, network := range abandoning() {
		for _, builtIn := range []bool{true, false} {
			for _, restarted := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/built in %v/restarted %v", name, builtIn, restarted), func(t *testing.T) {
					h := newRealHost(t)
					opts := []cni.Opt{cni.WithConfListBytes(network.conf("podnet", "1.0.0", h.path("ipam")))}
					if builtIn {
						opts = append(opts, cni.WithBuiltinPlugins())
					}
					r := h.real(opts...)
					next := h.container("c2")
					before := h.audit()
					gone := newTask(t)
					_, err := r.Setup(t.Context(), "c1", gone.path(), onePort)
					wantNil(t, err)
					gone.kill()
					if restarted {
						r = h.real(opts...)
					}
					_, err = r.Setup(t.Context(), "c2", next)
					wantNil(t, err)
					h.wantGone(r, "c1")
					wantNil(t, r.Remove(t.Context(), "c2", next))
					h.wantClean(before)
					left, err := os.ReadDir(filepath.Dir(h.pin("c1")))
					wantNil(t, err)
					for _, pin := range left {
						if _, err := netns.Open(filepath.Join(filepath.Dir(h.pin("c1")), pin.Name())); err == nil {
							t.Errorf("%s keeps a namespace", pin.Name())
						}
					}
				})
			}
		}
	}
}
