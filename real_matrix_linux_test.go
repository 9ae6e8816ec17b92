package cni_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocni "github.com/containerd/go-cni"
	"github.com/sasha-s/go-deadlock"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
)

// TestRealPluginsInEveryVersion attaches, checks and detaches a container with
// every reference plugin in every version of the specification it has, compares
// the container with the result and the host with what it was, and all of it
// with what go-cni does with the same configuration.
func TestRealPluginsInEveryVersion(t *testing.T) {
	// Under the race detector go-cni has locks that look for deadlocks, and
	// take all goroutines for one where they do not know the version of Go.
	deadlock.Opts.Disable = true
	wantProcessAsBefore(t)
	seen := &seenDifferences{}
	all := 0
	t.Run("group", func(t *testing.T) {
		for _, c := range realCases() {
			for _, version := range c.versions() {
				all++
				t.Run(c.name+"/"+version, func(t *testing.T) {
					t.Parallel()
					compareLives(t, &c, version, seen)
				})
			}
		}
	})
	if !t.Failed() && seen.compared == all { // else -run has left some out
		seen.wantAll(t)
	}
}

// compareLives lives one container's life with either library on a host of its
// own. A test of its own gives each a thread of its own.
func compareLives(t *testing.T, c *realCase, version string, seen *seenDifferences) {
	var ours, theirs []string
	t.Run("embedcni", func(t *testing.T) {
		h := newRealHost(t)
		ours = h.live(c, version, h.ourLibrary(c, version))
	})
	t.Run("go-cni", func(t *testing.T) {
		h := newRealHost(t)
		theirs = h.live(c, version, h.goCNI(c, version))
	})
	if t.Failed() {
		return // with less to compare than there is
	}
	onlyTheirs, onlyOurs := audit.Diff(ours, theirs)
	onlyOurs, onlyTheirs = seen.unlisted(c.name+"/"+version, onlyOurs, onlyTheirs)
	if len(onlyOurs)+len(onlyTheirs) > 0 {
		t.Errorf("only with this library:\n%s\nonly with go-cni:\n%s",
			strings.Join(onlyOurs, "\n"), strings.Join(onlyTheirs, "\n"))
	}
}

// library is what the two have in common. The strict one must also pass what
// only this library promises.
type library struct {
	strict bool
	setup  func(id, path string) (result any, err error)
	check  func(id, path string) error
	remove func(id, path string) error
}

func (h *realHost) ourLibrary(c *realCase, version string) library {
	opts := []cni.Opt{cni.WithStrictCapabilities()}
	conf := c.conf(c.network(version), version, h.path("ipam"))
	if c.lo {
		opts = append(opts, cni.WithLoNetwork)
	}
	if c.single(version) {
		opts = append(opts, cni.WithConf(conf))
	} else {
		opts = append(opts, cni.WithConfListBytes(conf))
	}
	r := h.real(opts...)
	ctx := context.Background()
	return library{
		strict: true,
		setup: func(id, path string) (any, error) {
			var given []cni.NamespaceOpts
			if c.ports != nil {
				given = append(given, cni.WithCapabilityPortMap(c.ports))
			}
			if c.bandwidth != (cni.BandWidth{}) {
				given = append(given, cni.WithCapabilityBandWidth(c.bandwidth))
			}
			result, err := r.Setup(ctx, id, path, given...)
			if err != nil {
				return nil, err
			}
			h.wantAsSaid(result, path, c)
			return []any{result.Interfaces, result.DNS, result.Routes, result.Raw()}, nil
		},
		check:  func(id, path string) error { return r.Check(ctx, id, path) },
		remove: func(id, path string) error { return r.Remove(ctx, id, path) },
	}
}

// goCNI uses SetupSerially, because go-cni's Setup runs plugins on any thread,
// in whatever namespace that is.
func (h *realHost) goCNI(c *realCase, version string) library {
	opts := []gocni.Opt{gocni.WithPluginDir([]string{referencePlugins(h.t)})}
	conf := c.conf(c.network(version), version, h.path("ipam"))
	if c.lo {
		opts = append(opts, gocni.WithLoNetwork)
	}
	if c.single(version) {
		opts = append(opts, gocni.WithConf(conf))
	} else {
		opts = append(opts, gocni.WithConfListBytes(conf))
	}
	r, err := gocni.New(opts...)
	if err != nil {
		h.t.Fatal(err)
	}
	var given []gocni.NamespaceOpts
	if c.ports != nil {
		var ports []gocni.PortMapping
		for _, p := range c.ports {
			ports = append(ports, gocni.PortMapping(p))
		}
		given = append(given, gocni.WithCapabilityPortMap(ports))
	}
	if c.bandwidth != (cni.BandWidth{}) {
		given = append(given, gocni.WithCapabilityBandWidth(gocni.BandWidth(c.bandwidth)))
	}
	ctx := context.Background()
	return library{
		setup: func(id, path string) (any, error) {
			result, err := r.SetupSerially(ctx, id, path, given...)
			if err != nil {
				return nil, err
			}
			return []any{result.Interfaces, result.DNS, result.Routes, result.Raw()}, nil
		},
		// Without the options of the setup, as this library does not need them.
		check:  func(id, path string) error { return r.Check(ctx, id, path) },
		remove: func(id, path string) error { return r.Remove(ctx, id, path) },
	}
}

// network is a name of its own for each case: go-cni has one cache for all.
func (c *realCase) network(version string) string {
	return strings.ReplaceAll(c.name, " ", "-") + "-" + version
}

// live attaches a container, checks, detaches twice, and returns everything
// that could be seen of it, in lines without what is random.
func (h *realHost) live(c *realCase, version string, lib library) []string {
	h.t.Helper()
	if c.prepare != nil {
		c.prepare(h)
	}
	path := h.container("c1")
	before := h.audit()
	result, err := lib.setup("c1", path)
	if err != nil {
		h.t.Fatal(err)
	}
	lines := flatten("result", result)
	made, _ := audit.Diff(before, h.audit())
	for _, l := range made.Without(h.private) {
		lines = append(lines, "made "+l)
	}
	lines = append(lines, "check "+h.checked(lib, version, path))
	if err := lib.remove("c1", path); err != nil {
		h.t.Fatal(err)
	}
	if lib.strict {
		h.wantClean(before)
	}
	left, gone := h.left(before)
	for _, l := range left {
		lines = append(lines, "left "+l)
	}
	for _, l := range gone {
		lines = append(lines, "gone "+l)
	}
	lines = append(lines, "remove again "+h.removedAgain(c, lib, path))
	return h.normalize(lines)
}

// private are the lines of this library's own state.
func (h *realHost) private(line string) bool { return strings.Contains(line, h.path("state")) }

const noCheck = "does not support the CHECK command"

func (h *realHost) checked(lib library, version, path string) string {
	h.t.Helper()
	err := lib.check("c1", path)
	switch {
	case lib.strict && version < "0.4.0" && (err == nil || !strings.Contains(err.Error(), noCheck)):
		h.t.Errorf("Check of %s: %v, want an error with %q", version, err, noCheck)
	case lib.strict && version >= "0.4.0" && err != nil:
		h.t.Errorf("Check: %v", err)
	case err == nil:
		return "passes"
	case strings.Contains(err.Error(), noCheck):
		return "is not supported"
	}
	return "fails"
}

// removedAgain removes what is removed.
func (h *realHost) removedAgain(c *realCase, lib library, path string) string {
	h.t.Helper()
	err := lib.remove("c1", path)
	switch {
	case err == nil:
		return "succeeds"
	case lib.strict:
		h.t.Errorf("Remove again: %v", err)
	}
	return "fails: " + err.Error()
}

// wantAsSaid compares the container with the result.
func (h *realHost) wantAsSaid(result *cni.Result, path string, c *realCase) {
	h.t.Helper()
	var said contents
	for i, raw := range result.Raw() {
		unsaid := c.link
		if unsaid.Name == "" {
			unsaid.Name = result.Networks[i].IfName
		}
		one := saidContents(raw, unsaid)
		said.Links = append(said.Links, one.Links...)
		said.Routes = append(said.Routes, one.Routes...)
	}
	said.Routes = append(said.Routes, c.routes...)
	said.sort()
	if got := h.kernelContents(path, said); !reflect.DeepEqual(got, said) {
		h.t.Errorf("in the container:\n%+v\nthe result says:\n%+v", got, said)
	}
}

// flatten renders a value as lines of path and scalar, in the order of paths.
func flatten(path string, value any) []string {
	data, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprint("results are made of what encodes: ", err))
	}
	var decoded any
	if err := json.Unmarshal(data, &decoded); err != nil {
		panic(fmt.Sprint("what was just encoded decodes: ", err))
	}
	return flattenDecoded(path, decoded)
}

func flattenDecoded(path string, value any) []string {
	var lines []string
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			lines = append(lines, flattenDecoded(path+"."+key, inner)...)
		}
	case []any:
		for i, inner := range v {
			lines = append(lines, flattenDecoded(fmt.Sprintf("%s[%d]", path, i), inner)...)
		}
	default:
		return []string{fmt.Sprintf("%s = %v", path, v)}
	}
	slices.Sort(lines)
	return lines
}

var (
	randomVeth = regexp.MustCompile(`\bveth[0-9a-f]{8}\b`)
	anyMAC     = regexp.MustCompile(`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`)
	// tuning keeps the hardware address that was there before.
	tuningFile = regexp.MustCompile(`(DIR/ipam/c1_eth0\.json) sha256:\w+`)
)

// normalize takes out what differs from one time to the next.
func (h *realHost) normalize(lines []string) []string {
	var normal []string
	for _, l := range lines {
		l = strings.ReplaceAll(l, h.dir, "DIR")
		l = randomVeth.ReplaceAllString(l, "vethRANDOM")
		l = tuningFile.ReplaceAllString(l, "$1")
		normal = append(normal, anyMAC.ReplaceAllString(l, "MAC"))
	}
	slices.Sort(normal)
	return normal
}
