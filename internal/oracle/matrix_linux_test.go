package oracle

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocni "github.com/containerd/go-cni"
	"github.com/sasha-s/go-deadlock"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestRealPluginsInEveryVersion attaches, checks and detaches a container with
// every reference plugin in every version of the specification that it
// supports. It compares the container with the result, the host with its
// earlier state, and all of it with go-cni under the same configuration.
func TestRealPluginsInEveryVersion(t *testing.T) {
	// Under the race detector go-cni has locks that search for deadlocks. With
	// an unknown version of Go they mistake all goroutines for one.
	deadlock.Opts.Disable = true
	testhost.LeavesNothingRunning(t)
	seen := &seenDifferences{}
	all := 0
	t.Run("group", func(t *testing.T) {
		for _, c := range realCases() {
			for _, version := range versions(&c) {
				all++
				t.Run(c.Name+"/"+version, func(t *testing.T) {
					t.Parallel()
					compareLives(t, &c, version, seen)
				})
			}
		}
	})
	if !t.Failed() && seen.compared == all { // otherwise -run has skipped some
		seen.wantAll(t)
	}
}

// compareLives runs a container's life with each library on a host of its own.
// Separate subtests give each library its own thread.
func compareLives(t *testing.T, c *testhost.Case, version string, seen *seenDifferences) {
	var ours, theirs []string
	t.Run("embedcni", func(t *testing.T) {
		h := &matrixHost{testhost.NewReal(t)}
		ours = h.live(c, version, h.ourLibrary(c, version))
	})
	t.Run("go-cni", func(t *testing.T) {
		h := &matrixHost{testhost.NewReal(t)}
		theirs = h.live(c, version, h.goCNI(c, version))
	})
	if t.Failed() {
		return // there is less to compare
	}
	onlyTheirs, onlyOurs := audit.Diff(ours, theirs)
	onlyOurs, onlyTheirs = seen.unlisted(c.Name+"/"+version, onlyOurs, onlyTheirs)
	expect.That(t, len(onlyOurs)+len(onlyTheirs) == 0, "only with this library:\n%s\nonly with go-cni:\n%s",
		strings.Join(onlyOurs, "\n"), strings.Join(onlyTheirs, "\n"))
}

// matrixHost is a host on which one of the two libraries attaches.
type matrixHost struct{ *testhost.RealHost }

// library holds the calls that both have. The strict one must also keep the
// promises that only this library makes.
type library struct {
	strict bool
	setup  func(id, path string) (result any, err error)
	check  func(id, path string) error
	remove func(id, path string) error
}

func (h *matrixHost) ourLibrary(c *testhost.Case, version string) library {
	opts := []cni.Opt{cni.WithStrictCapabilities()}
	conf := c.Conf(networkOf(c, version), version, h.Path("ipam"))
	if c.Lo {
		opts = append(opts, cni.WithLoNetwork)
	}
	if c.Single(version) {
		opts = append(opts, cni.WithConf(conf))
	} else {
		opts = append(opts, cni.WithConfListBytes(conf))
	}
	r := h.Real(opts...)
	ctx := context.Background()
	return library{
		strict: true,
		setup: func(id, path string) (any, error) {
			var given []cni.NamespaceOpts
			if c.Ports != nil {
				given = append(given, cni.WithCapabilityPortMap(c.Ports))
			}
			if c.Bandwidth != (cni.BandWidth{}) {
				given = append(given, cni.WithCapabilityBandWidth(c.Bandwidth))
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
// in any namespace.
func (h *matrixHost) goCNI(c *testhost.Case, version string) library {
	opts := []gocni.Opt{gocni.WithPluginDir([]string{testhost.ReferencePlugins(h.T)})}
	conf := c.Conf(networkOf(c, version), version, h.Path("ipam"))
	if c.Lo {
		opts = append(opts, gocni.WithLoNetwork)
	}
	if c.Single(version) {
		opts = append(opts, gocni.WithConf(conf))
	} else {
		opts = append(opts, gocni.WithConfListBytes(conf))
	}
	r := expect.Value(gocni.New(opts...))(h.T)
	var given []gocni.NamespaceOpts
	if c.Ports != nil {
		var ports []gocni.PortMapping
		for _, p := range c.Ports {
			ports = append(ports, gocni.PortMapping(p))
		}
		given = append(given, gocni.WithCapabilityPortMap(ports))
	}
	if c.Bandwidth != (cni.BandWidth{}) {
		given = append(given, gocni.WithCapabilityBandWidth(gocni.BandWidth(c.Bandwidth)))
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
		// Without the options of the setup, which this library does not need.
		check:  func(id, path string) error { return r.Check(ctx, id, path) },
		remove: func(id, path string) error { return r.Remove(ctx, id, path) },
	}
}

// networkOf returns a unique name for each case: go-cni has one cache for all.
func networkOf(c *testhost.Case, version string) string {
	return strings.ReplaceAll(c.Name, " ", "-") + "-" + version
}

// live attaches a container, checks it, detaches it twice, and returns every
// observation in lines without random parts.
func (h *matrixHost) live(c *testhost.Case, version string, lib library) []string {
	h.T.Helper()
	if c.Prepare != nil {
		c.Prepare(h.RealHost)
	}
	path := h.Container("c1")
	before := h.Audit()
	lines := flatten("result", expect.Value(lib.setup("c1", path))(h.T))
	made, _ := audit.Diff(before, h.Audit())
	for _, l := range made.Without(h.private) {
		lines = append(lines, "made "+l)
	}
	lines = append(lines, "check "+h.checked(lib, version, path))
	expect.NoError(h.T, lib.remove("c1", path))
	if lib.strict {
		h.WantClean(before)
	}
	left, gone := h.Left(before)
	for _, l := range left {
		lines = append(lines, "left "+l)
	}
	for _, l := range gone {
		lines = append(lines, "gone "+l)
	}
	lines = append(lines, "remove again "+h.removedAgain(c, lib, path))
	return h.Normalize(lines)
}

// private reports whether a line belongs to this library's own state.
func (h *matrixHost) private(line string) bool { return strings.Contains(line, h.Path("state")) }

const noCheck = "does not support the CHECK command"

func (h *matrixHost) checked(lib library, version, path string) string {
	h.T.Helper()
	err := lib.check("c1", path)
	switch {
	case lib.strict && version < "0.4.0" && (err == nil || !strings.Contains(err.Error(), noCheck)):
		h.T.Errorf("Check of %s: %v, want an error with %q", version, err, noCheck)
	case lib.strict && version >= "0.4.0" && err != nil:
		h.T.Errorf("Check: %v", err)
	case err == nil:
		return "passes"
	case strings.Contains(err.Error(), noCheck):
		return "is not supported"
	}
	return "fails"
}

// removedAgain removes a container that is already removed.
func (h *matrixHost) removedAgain(c *testhost.Case, lib library, path string) string {
	h.T.Helper()
	err := lib.remove("c1", path)
	switch {
	case err == nil:
		return "succeeds"
	case lib.strict:
		h.T.Errorf("Remove again: %v", err)
	}
	return "fails: " + err.Error()
}

// flatten renders a value as lines of path and scalar, sorted by path.
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
