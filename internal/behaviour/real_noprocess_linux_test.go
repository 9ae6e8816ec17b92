package behaviour_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestDefaultConflistStartsNoProcess: on a host with iptables-nft, the plugins of the
// configuration that runtimes install, none of which names a backend, change and read
// rules of iptables without it.
func TestDefaultConflistStartsNoProcess(t *testing.T) {
	h := newRealHost(t)
	plugintest.UseIPTables(t, "nft")
	h.installPlugins(false)
	c := testhost.Case{Plugins: []string{
		testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)),
		`{"type": "portmap", "capabilities": {"portMappings": true}}`, `{"type": "firewall"}`,
		`{"type": "tuning"}`}}
	r := h.Runtime(cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
	c1, c2 := h.Container("c1"), h.Container("c2")
	before, started := h.Audit(), h.toolsStarted()
	step := func(what string, err error) {
		t.Helper()
		expect.NoError(t, err)
		if notes := started(); notes != "" {
			t.Errorf("%s started\n%s", what, notes)
		}
	}
	setup := func(id, path string, port int) error {
		_, err := r.Setup(t.Context(), id, path, portOf(port))
		return err
	}
	step("the first ADD", setup("c1", c1, 1))
	step("ADD", setup("c2", c2, 2))
	step("CHECK", r.Check(t.Context(), "c1", c1))
	step("DEL", r.Remove(t.Context(), "c1", c1))
	step("CHECK", r.Check(t.Context(), "c2", c2))
	step("the last DEL", r.Remove(t.Context(), "c2", c2))
	h.WantClean(before)
}

// toolsStarted has each tool of a packet filter note that it was started, and returns
// a function that returns these notes since its last call.
func (h *realHost) toolsStarted() func() string {
	h.T.Helper()
	log := h.Path("started")
	tools := []string{"nft"}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"nft", "legacy"} {
			tools = append(tools, family+"-"+variant+"-save", family+"-"+variant+"-restore")
		}
	}
	for _, name := range tools {
		tool, err := exec.LookPath(name)
		expect.NoError(h.T, err)
		path := h.Write("noting/"+name, fmt.Sprintf("#!/bin/sh\necho %s \"$@\" >>%s\nexec %s \"$@\"\n", name, log, tool))
		expect.NoError(h.T, os.Chmod(path, 0o755))
	}
	h.T.Setenv("PATH", h.Path("noting")+":"+os.Getenv("PATH"))
	return func() string {
		notes, err := os.ReadFile(log)
		if errors.Is(err, fs.ErrNotExist) {
			return ""
		}
		expect.NoError(h.T, err, os.Remove(log))
		return string(notes)
	}
}
