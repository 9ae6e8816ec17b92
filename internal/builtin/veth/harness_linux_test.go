package veth_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/inprocess"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// host is a namespace that represents a host, with its containers.
type host struct {
	t       testing.TB
	dir     string
	plugins string // directory of the reference plugins
	ns      *netns.Handle
	netNS   *string // CNI_NETNS, if not the container's
	lookup  func(typ string) plugin.Plugin
}

// call is the input of a plugin. DIR in its configuration is the host's
// directory.
type call struct {
	typ, id, args, conf string
	prev                []byte
}

const ifName = "eth0"

func newHost(t testing.TB) *host {
	t.Helper()
	plugins, err := refplugins.Dir(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, dir: t.TempDir(), plugins: plugins, lookup: builtin.Lookup}
	h.ns = h.namespace("host")
	h.sh("ip link set lo up")
	return h
}

// namespace makes a namespace that lives until the test ends.
func (h *host) namespace(name string) *netns.Handle {
	h.t.Helper()
	return nettest.At(h.t, h.path(name))
}

func (h *host) path(name string) string { return filepath.Join(h.dir, "netns", name) }

// sh runs a script on the host.
func (h *host) sh(script string) {
	h.t.Helper()
	nettest.Shell(h.t, h.ns, script)
}

// in runs a script in a container.
func (h *host) in(name, script string) {
	h.t.Helper()
	ns, err := netns.Open(h.path(name))
	if err != nil {
		h.t.Fatal(err)
	}
	defer ns.Close()
	nettest.Shell(h.t, ns, script)
}

// run is ours or theirs.
type run func(h *host, ctx context.Context, verb string, c call) ([]byte, error)

// ours runs a plugin in process. It delegates to our own plugin if there is
// one, or else to an executable.
func ours(h *host, ctx context.Context, verb string, c call) ([]byte, error) {
	return inprocess.Run(ctx, h.lookup(c.typ), inprocess.Call{
		Verb: verb, Type: c.typ, Env: h.env(verb, c), Stdin: h.stdin(c), Host: h.ns,
		Delegate: func(ctx context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error) {
			with := ours
			if h.lookup(typ) == nil {
				with = theirs
			}
			c.typ, c.conf, c.prev = typ, string(config), nil
			out, err := with(h, ctx, verb, c)
			if err != nil || verb != "ADD" {
				return nil, err
			}
			return parse(out)
		},
	})
}

// theirs runs a reference plugin.
func theirs(h *host, ctx context.Context, verb string, c call) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(h.plugins, c.typ))
	cmd.Env = append(h.env(verb, c), "PATH="+os.Getenv("PATH"))
	cmd.Stdin = bytes.NewReader(h.stdin(c))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := h.ns.Do(cmd.Run); err != nil {
		if e := (&types.Error{}); json.Unmarshal(stdout.Bytes(), e) == nil && e.Msg != "" {
			return nil, e
		}
		return nil, fmt.Errorf("%w: %s%s", err, stdout.String(), stderr.String())
	}
	return stdout.Bytes(), nil
}

func (h *host) env(verb string, c call) []string {
	ns := h.path(c.id)
	if h.netNS != nil {
		ns = *h.netNS
	}
	return []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=id-" + c.id, "CNI_IFNAME=" + ifName,
		"CNI_NETNS=" + ns, "CNI_ARGS=" + c.args, "CNI_PATH=" + h.plugins,
	}
}

func (h *host) stdin(c call) []byte {
	conf := h.expand(c.conf)
	if c.prev == nil {
		return []byte(conf)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(conf), &fields); err != nil {
		h.t.Fatal(err)
	}
	fields["prevResult"] = c.prev
	out, err := json.Marshal(fields)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func parse(out []byte) (*types100.Result, error) {
	var version struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(out, &version); err != nil {
		return nil, err
	}
	raw, err := create.Create(version.CNIVersion, out)
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(raw)
}

// must runs a verb that must succeed.
func (h *host) must(with run, verb string, c call) []byte {
	h.t.Helper()
	out, err := with(h, h.t.Context(), verb, c)
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", verb, err, c.conf)
	}
	return out
}

// mustFail runs a verb that must fail, and compares the error's text.
func (h *host) mustFail(with run, verb string, c call, want string) {
	h.t.Helper()
	out, err := with(h, h.t.Context(), verb, c)
	if err == nil {
		h.t.Errorf("%s succeeded: %s\nwant %s", verb, out, want)
	} else if got := h.normal(err.Error()); got != want {
		h.t.Errorf("%s: got %s\nwant %s", verb, got, want)
	}
}

var (
	randomMAC  = regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}`)
	randomName = regexp.MustCompile(`veth[0-9a-f]{8}`)
)

// normal returns text without random parts and parts that are specific to the
// host.
func (h *host) normal(text string) string {
	text = strings.ReplaceAll(text, h.dir, "DIR")
	text = randomName.ReplaceAllString(text, "vethX")
	return randomMAC.ReplaceAllStringFunc(text, func(mac string) string {
		if mac == fixedMAC || mac == "00:00:00:00:00:00" || mac == "ff:ff:ff:ff:ff:ff" {
			return mac
		}
		return "MAC"
	})
}

// expand replaces DIR by this host's directory.
func (h *host) expand(text string) string { return strings.ReplaceAll(text, "DIR", h.dir) }

// fixedMAC is the address that the tests' configurations request.
const fixedMAC = "02:00:00:00:00:42"

// result returns a result in normal and canonical form.
func (h *host) result(out []byte) string {
	h.t.Helper()
	var v any
	if err := json.Unmarshal(out, &v); err != nil {
		h.t.Fatal(err)
	}
	canonical, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		h.t.Fatal(err)
	}
	return h.normal(string(canonical))
}

// snapshot lists everything on the host and in this process.
func (h *host) snapshot() audit.Lines {
	h.t.Helper()
	var lines audit.Lines
	err := h.ns.Do(func() (err error) {
		lines, err = audit.Snapshot(h.t.Context(), audit.Options{StateDirs: []string{filepath.Join(h.dir, "ipam")}})
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return lines
}

// kernel returns the kernel's state on the host and in a container, in normal
// form.
func (h *host) kernel(container string) string {
	h.t.Helper()
	lines := h.snapshot()
	ns, err := netns.Open(h.path(container))
	if err != nil {
		h.t.Fatal(err)
	}
	defer ns.Close()
	err = ns.Do(func() error {
		inside, err := audit.Snapshot(h.t.Context(), audit.Options{})
		for _, l := range inside {
			lines = append(lines, "container: "+l)
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	lines = lines.Without(func(l string) bool {
		words := strings.Fields(strings.TrimPrefix(l, "container: "))
		return slices.Contains([]string{"fd", "process", "mount", "netns", "file", "dir"}, words[0])
	})
	text := h.normal(strings.Join(lines, "\n"))
	sorted := strings.Split(text, "\n")
	slices.Sort(sorted)
	return strings.Join(sorted, "\n")
}

// wantClean fails unless the state is as before, apart from shared lines.
func (h *host) wantClean(before audit.Lines) {
	h.t.Helper()
	left, gone := audit.Diff(before, h.snapshot())
	if left = left.Without(audit.Shared); len(left)+len(gone) > 0 {
		h.t.Errorf("left behind:\n%s\ngone:\n%s", strings.Join(left, "\n"), strings.Join(gone, "\n"))
	}
}

// diff returns the differences between two texts, line by line.
func diff(got, want string) string {
	added, removed := audit.Diff(strings.Split(want, "\n"), strings.Split(got, "\n"))
	return "only ours:\n  " + strings.Join(added, "\n  ") + "\nonly theirs:\n  " + strings.Join(removed, "\n  ")
}
