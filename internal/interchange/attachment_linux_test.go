package interchange

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
)

// network is a chain of plugins with a runtime's arguments for each attachment.
type network struct {
	version string   // of the specification; empty: 1.0.0
	plugins []string // their configurations; STATE is the directory for files
	caps    string   // the runtime's capability arguments, as JSON
	args    [][2]string
	ifName  string       // empty: eth0
	prepare func() error // prepares the host, in its namespace
	inside  func() error // prepares the container, in its namespace
	faults  []fault
	files   [][2]string // name and content of files in the directory STATE
}

// fault is a verb that wrongly fails in the reference plugin of a type. Ours of
// that type must succeed.
type fault struct{ typ, verb, err string }

// wantNoError checks that the verb succeeds, or fails with the known error of
// that side's reference plugins.
func (n *network) wantNoError(t *testing.T, s side, verb string, err error) {
	t.Helper()
	for _, f := range n.faults {
		if f.verb == verb && !s.ours(f.typ) {
			expect.Says(t, verb+" by the reference plugin "+f.typ, err, f.err)
			return
		}
	}
	if err != nil {
		t.Errorf("%s: %v", verb, err)
	}
}

// types returns the types of all plugins and their delegates.
func (n *network) types(t testing.TB) []string {
	t.Helper()
	var all []string
	for _, text := range n.plugins {
		var conf struct {
			Type string
			IPAM struct{ Type string }
		}
		if err := json.Unmarshal([]byte(text), &conf); err != nil {
			t.Fatalf("plugin configuration %s: %v", text, err)
		}
		for _, typ := range []string{conf.Type, conf.IPAM.Type} {
			if typ != "" && !slices.Contains(all, typ) {
				all = append(all, typ)
			}
		}
	}
	return all
}

// attachment is one container on one network of one host.
type attachment struct {
	h    *host
	c    *container
	n    *network
	list *libcni.NetworkConfigList
	rt   *libcni.RuntimeConf
}

const networkName = "podnet"

func (h *host) attachment(n *network, id string) *attachment {
	h.t.Helper()
	a := &attachment{h: h, n: n, c: h.container(id)}
	if n.inside != nil {
		a.c.do(h, n.inside)
	}
	text := fmt.Sprintf(`{"cniVersion": %q, "name": %q, "plugins": [%s]}`,
		cmp.Or(n.version, "1.0.0"), networkName, strings.Join(n.plugins, ",\n"))
	list := expect.Value(libcni.NetworkConfFromBytes([]byte(strings.ReplaceAll(text, "STATE", h.path("state")))))(h.t)
	a.list = list
	a.rt = &libcni.RuntimeConf{ContainerID: id, NetNS: a.c.path, IfName: cmp.Or(n.ifName, "eth0"), Args: n.args}
	if n.caps != "" {
		expect.NoError(h.t, json.Unmarshal([]byte(n.caps), &a.rt.CapabilityArgs))
	}
	return a
}

// run calls libcni with the plugins of a side. In-process plugins' deferred
// work runs at the end, as in the runtime.
func (a *attachment) run(s side, call func(ctx context.Context, c *libcni.CNIConfig) error) error {
	exec := &runner{side: s, host: a.h}
	config := libcni.NewCNIConfigWithCacheDir([]string{a.h.plugins}, a.h.path("cache"), exec)
	ctx := a.h.t.Context()
	err := call(ctx, config)
	return errors.Join(err, exec.batch.Flush(ctx))
}

// add runs ADD, and returns the result as JSON.
func (a *attachment) add(s side) (result string, err error) {
	err = a.run(s, func(ctx context.Context, c *libcni.CNIConfig) error {
		r, err := c.AddNetworkList(ctx, a.list, a.rt)
		if err != nil {
			return err
		}
		result, err = resultText(r)
		return err
	})
	return result, err
}

func resultText(r types.Result) (string, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	return string(text), err
}

func (a *attachment) check(s side) error {
	return a.run(s, func(ctx context.Context, c *libcni.CNIConfig) error { return c.CheckNetworkList(ctx, a.list, a.rt) })
}

func (a *attachment) del(s side) error {
	return a.run(s, func(ctx context.Context, c *libcni.CNIConfig) error { return c.DelNetworkList(ctx, a.list, a.rt) })
}

// audit lists the contents of the host and the container.
func (a *attachment) audit() audit.Lines { a.h.t.Helper(); return a.h.audit(a.c) }
