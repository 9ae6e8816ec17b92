package behaviour_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/boot"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// refusal is a container that go-cni could not remove completely.
type refusal struct {
	name    string
	opts    func(h *realHost) []cni.Opt // of the runtime that attaches; nil means named
	setup   []cni.NamespaceOpts         // nil means portOf(1)
	spoil   func(h *realHost)           // runs after Setup
	release func(h *realHost) []cni.Opt // of the runtime that releases; nil means opts
	as      string                      // the container's ID in the report; empty means c1
	is      error                       // sentinel of the refusal
	says    string                      // its text
	mend    func(h *realHost)           // runs before the final Remove
}

// builtIn attaches with built-in plugins to a network with these backends.
func builtIn(masq, portmap, firewall string) func(h *realHost) []cni.Opt {
	return func(h *realHost) []cni.Opt {
		return []cni.Opt{h.podnet(masq, portmap, firewall), cni.WithBuiltinPlugins()}
	}
}

// executables is a network of executables.
func executables(masq, portmap, firewall string) func(h *realHost) []cni.Opt {
	return func(h *realHost) []cni.Opt { return []cni.Opt{h.podnet(masq, portmap, firewall)} }
}

// and loads another network beside the named one.
func and(list string) func(h *realHost) []cni.Opt {
	return func(h *realHost) []cni.Opt { return []cni.Opt{h.named(), cni.WithConfListBytes([]byte(list))} }
}

func sameBoot(r *record.Record) { r.Boot, _ = boot.ID() }

func attachmentOf(change func(n *record.Attachment)) func(h *realHost) {
	return rerecorded(func(r *record.Record) { change(&r.Attachments[0]) })
}

func rerecorded(change func(r *record.Record)) func(h *realHost) {
	return func(h *realHost) { h.ChangeRecord("c1", change) }
}

func without(path ...string) func(h *realHost) {
	return func(h *realHost) { expect.NoError(h.T, os.Remove(h.Path(path...))) }
}

func damaged(base string) func(h *realHost) {
	sum := sha256.Sum256([]byte(base))
	return func(h *realHost) { h.SpoilBase("c1", hex.EncodeToString(sum[:8])+" "+base) }
}

func cached(content string) func(h *realHost) {
	return func(h *realHost) { h.Write("state/results/podnet-c1-eth0", content) }
}

func (h *realHost) replaceInCache(old, by string) {
	h.T.Helper()
	data, err := os.ReadFile(h.Path("state", "results", "podnet-c1-eth0"))
	expect.NoError(h.T, err)
	now := strings.ReplaceAll(string(data), old, by)
	if now == string(data) {
		h.T.Fatalf("there is no %q in the cache: %s", old, data)
	}
	cached(now)(h)
}

const (
	masqNamed     = `"ipMasq": true, "ipMasqBackend": "iptables", `
	portmapNamed  = `"backend": "iptables", `
	firewallNamed = `, "backend": "iptables"`
)

// pluginRefusals depend on the plugins.
func pluginRefusals() []refusal {
	return []refusal{
		{name: "masquerading in our table", opts: builtIn(`"ipMasq": true, `, portmapNamed, firewallNamed),
			says: `plugin "bridge" has its rules in this module's form`},
		{name: "ports in our table", opts: builtIn(masqNamed, ``, firewallNamed),
			says: `plugin "portmap" has its rules in this module's form`},
		{name: "a network's accept", opts: builtIn(masqNamed, portmapNamed, ``), says: `plugin "firewall" has its rules in this module's form`},
		{name: "an older record, perhaps with our table", opts: func(h *realHost) []cni.Opt { return []cni.Opt{h.unnamedBackends()} },
			spoil: func(h *realHost) { h.ForgetKinds("c1") }, says: `plugin "portmap" has its rules in this module's form`},
		{name: "a type that is not installed", spoil: without("bin", "portmap"),
			is: cni.ErrPluginNotFound, says: `failed to find plugin "portmap" in path`},
		{name: "IPAM that is not installed", opts: builtIn(masqNamed, portmapNamed, firewallNamed), spoil: without("bin", "host-local"),
			is: cni.ErrPluginNotFound, says: `failed to find plugin "host-local" in path`},
		{name: "an executable that may not be executed", spoil: func(h *realHost) {
			without("bin", "firewall")(h)
			h.Write("bin/firewall", "")
		}, is: cni.ErrPluginNotFound, says: "not executable"},
		{name: "a network beside it that is not installed", is: cni.ErrPluginNotFound,
			release: and(`{"cniVersion": "1.0.0", "name": "beside", "plugins": [{"type": "absent"}]}`),
			says:    `go-cni asks network "beside" too: failed to find plugin "absent"`},
		{name: "a registered plugin", opts: func(h *realHost) []cni.Opt {
			return []cni.Opt{h.named(), cni.WithPlugin("portmap", testhost.Idle{})}
		}, says: `plugin "portmap" is the program's own, registered with WithPlugin`},
		{name: "arguments that go-cni cannot give", setup: []cni.NamespaceOpts{cni.WithConfigArgs("labels", "x")},
			opts: func(h *realHost) []cni.Opt {
				h.Write("bin/own", "#!/bin/sh\ncat >&2\n[ $CNI_COMMAND != ADD ] || echo '{\"cniVersion\": \"1.0.0\"}'\n")
				expect.NoError(h.T, os.Chmod(h.Path("bin", "own"), 0o755))
				return []cni.Opt{cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "podnet", "plugins": [{"type": "own"}]}`))}
			}, says: `plugin "own" was given args by WithConfigArgs`},
		{name: "no program that deletes rules", spoil: func(h *realHost) { h.T.(*testing.T).Setenv("PATH", h.Path("bin")) },
			says: `plugin "portmap": its executable deletes rules by the program iptables`},
	}
}

// recordRefusals depend on the container as a whole and its record.
func recordRefusals() []refusal {
	newer := damaged(fmt.Sprintf(`{"format":3,"record":{"containerID":"c1","owner":%q}}`, filepath.Base(os.Args[0])))
	return []refusal{
		{name: "its path is gone", spoil: func(h *realHost) { expect.NoError(h.T, netns.Remove(h.Path("netns", "c1"))) },
			is: cni.ErrInvalidNetNS, says: "no longer leads to its namespace"},
		{name: "dead since a reboot", spoil: rerecorded(func(r *record.Record) { r.Boot = "another" }),
			says: "it ended when the host was rebooted", mend: rerecorded(sameBoot)},
		{name: "attached from another host namespace", spoil: rerecorded(func(r *record.Record) { r.Host += "1" }),
			is: cni.ErrHostNetNS, says: "its plugins ran in network namespace",
			mend: rerecorded(func(r *record.Record) { r.Host = strings.TrimSuffix(r.Host, "1") })},
		{name: "attached in part", spoil: attachmentOf(func(n *record.Attachment) { n.State = record.Planned }), says: "it is attached in part"},
		{name: "removed in part", spoil: attachmentOf(func(n *record.Attachment) { n.State = record.Deleting }), says: "a removal has begun"},
		{name: "a removal that failed", spoil: attachmentOf(func(n *record.Attachment) { n.Failures, n.LastError = 2, "no luck" }),
			says: "a removal has begun (2 failures, the last: no luck)"},
		{name: "a damaged record", spoil: func(h *realHost) { h.SpoilBase("c1", "damaged") }, is: record.ErrBad, says: "its record is damaged"},
		{name: "a record of format 1", spoil: damaged(`{"format":1,"record":{"containerID":"c1"}}`),
			is: record.ErrBad, says: "format 1, known is 2"},
		{name: "a newer version's record", spoil: newer, is: record.ErrNewer, says: "use the version that wrote it",
			mend: func(h *realHost) { h.SpoilBase("c1", "damaged") }},
		{name: "a record that a newer version has added to", spoil: func(h *realHost) { h.addToRecord("c1", `"later":{"x":1},`) },
			says: "a newer version has added to its record"},
		{name: "a record that cannot be read", spoil: func(h *realHost) {
			expect.NoError(h.T, os.Rename(h.RecordFile("c1")+".json", h.Path("aside")))
			expect.NoError(h.T, os.Mkdir(h.RecordFile("c1")+".json", 0o700))
		}, as: "record " + testhost.Hashed("c1"), is: record.ErrUnread, says: "is a directory", mend: func(h *realHost) {
			expect.NoError(h.T, os.Remove(h.RecordFile("c1")+".json"))
			expect.NoError(h.T, os.Rename(h.Path("aside"), h.RecordFile("c1")+".json"))
		}},
	}
}

// addToRecord inserts members before the first one of a record.
func (h *realHost) addToRecord(id, members string) {
	h.T.Helper()
	data, err := os.ReadFile(h.RecordFile(id) + ".json")
	expect.NoError(h.T, err)
	base, _, _ := strings.Cut(string(data), "\n")
	damaged(strings.Replace(base[17:], `"record":{`, `"record":{`+members, 1))(h)
}

// networkRefusals depend on the loaded networks and libcni's cache.
func networkRefusals() []refusal {
	const noCache = "not in libcni's cache: podnet-c1-eth0: "
	return []refusal{
		{name: "not loaded", release: func(*realHost) []cni.Opt { return []cni.Opt{cni.WithLoNetwork} },
			is: cni.ErrNotFound, says: `network "podnet", interface eth0: it is not loaded under that interface name`},
		{name: "loaded under another interface name", release: func(h *realHost) []cni.Opt { return []cni.Opt{cni.WithLoNetwork, h.named()} },
			is: cni.ErrNotFound, says: "it is not loaded under that interface name"},
		{name: "another configuration", release: func(h *realHost) []cni.Opt { return []cni.Opt{h.podnet(``, portmapNamed, firewallNamed)} },
			says: "it is loaded with another configuration"},
		{name: "no cached result", spoil: without("state", "results", "podnet-c1-eth0"), says: noCache + "there is no such file"},
		{name: "half a cached result", spoil: func(h *realHost) {
			expect.NoError(h.T, os.Truncate(h.Path("state", "results", "podnet-c1-eth0"), 100))
		}, says: noCache},
		{name: "another's cached result", spoil: cached(`{"kind": "cniCacheV1", "containerId": "c1-eth0", "networkName": "pod"}`),
			says: noCache + "the file is another attachment's", mend: without("state", "results", "podnet-c1-eth0")},
		{name: "another kind of file", spoil: func(h *realHost) { h.replaceInCache("cniCacheV1", "cniCacheV9") }, says: noCache},
		{name: "another result", spoil: func(h *realHost) { h.replaceInCache("10.77.0.2/", "10.77.0.3/") },
			says: noCache + "it has another result than the record"},
		{name: "a cache that go-cni does not look into", spoil: func(h *realHost) {
			expect.NoError(h.T, os.Remove(goCNIState))
			expect.NoError(h.T, os.Mkdir(goCNIState, 0o755))
		}, says: "go-cni looks there: make /var/lib/cni a link to"},
		{name: "options for one network", opts: and(`{"cniVersion": "1.0.0", "name": "beside", "plugins": [{"type": "loopback"}]}`),
			setup: []cni.NamespaceOpts{cni.WithNetwork("podnet", portOf(1)), cni.WithNetwork("beside")},
			says:  `network "beside" was given other arguments or capabilities than "podnet"`},
		{name: "its interface is gone", spoil: func(h *realHost) {
			h.Inside(h.Path("netns", "c1"), func() error { return deleteLink("eth0") })
		}, is: cni.ErrNotAttached, says: "there is no such interface in the container"},
	}
}

func deleteLink(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

// TestFault_F34_ReleaseRefusesContainersThatGoCNICouldNotRemove without changing
// anything, and Remove can still remove it.
func TestFault_F34_ReleaseRefusesContainersThatGoCNICouldNotRemove(t *testing.T) {
	for _, tt := range slices.Concat(pluginRefusals(), recordRefusals(), networkRefusals()) {
		t.Run(tt.name, func(t *testing.T) {
			h := newReleasing(t)
			if tt.opts == nil {
				tt.opts = func(h *realHost) []cni.Opt { return []cni.Opt{h.named()} }
			}
			if tt.setup == nil {
				tt.setup = []cni.NamespaceOpts{portOf(1)}
			}
			if tt.release == nil {
				tt.release = tt.opts
			}
			if tt.as == "" {
				tt.as = "c1"
			}
			path := h.Container("c1")
			before := h.Audit()
			r := h.Runtime(tt.opts(h)...)
			_, err := r.Setup(t.Context(), "c1", path, tt.setup...)
			expect.NoError(t, err)
			if tt.spoil != nil {
				tt.spoil(h)
			}
			h.wantRefused(h.Runtime(tt.release(h)...), tt.as, tt.is, tt.says)
			if tt.mend != nil {
				tt.mend(h)
			}
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			h.WantClean(before)
		})
	}
}
