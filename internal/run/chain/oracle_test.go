package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/expect"
)

// libcniExec connects libcni to a recorder.
type libcniExec struct {
	version.PluginDecoder
	r *recorder
}

func (*libcniExec) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

func (e *libcniExec) ExecPlugin(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	call := Call{Plugin: plugin, Stdin: stdin}
	for _, name := range []string{"COMMAND", "CONTAINERID", "NETNS", "IFNAME", "ARGS", "PATH"} {
		for _, kv := range environ {
			if value, ok := strings.CutPrefix(kv, "CNI_"+name+"="); ok {
				call.Env = append(call.Env, kv)
				if name == "COMMAND" {
					call.Verb = value
				}
			}
		}
	}
	out, err := e.r.run(ctx, call)
	return out.Stdout, err
}

// decoded makes JSON comparable.
func decoded(t *testing.T, data []byte) (v any) {
	t.Helper()
	err := json.Unmarshal(data, &v)
	expect.Must(t, err == nil, "%s: %v", data, err)
	return v
}

// comparison runs one network with this package and with libcni.
type comparison struct {
	ours, theirs *recorder
	c            *Chain
	libcni       *libcni.CNIConfig
	dir          string // libcni's cache
	fails        string // "VERB plugin"
	answer       string
}

func compare(t *testing.T, list, answer string) *comparison {
	x := &comparison{ours: &recorder{}, theirs: &recorder{}, dir: t.TempDir(), answer: answer}
	x.c = newChain(t, x.ours, list)
	x.libcni = libcni.NewCNIConfigWithCacheDir(x.c.Path, x.dir, &libcniExec{r: x.theirs})
	x.ours.answer = func(call Call) ([]byte, error) {
		switch {
		case call.Verb+" "+call.Plugin == x.fails:
			return nil, types.NewError(100, "boom", call.Plugin)
		case call.Verb == "ADD":
			return []byte(x.answer), nil
		}
		return nil, nil
	}
	x.theirs.answer = x.ours.answer
	return x
}

// run runs a verb both ways and compares everything that plugins and callers
// see.
func (x *comparison) run(t *testing.T, verb string, a *Attachment) (failed bool) {
	t.Helper()
	x.ours.calls, x.theirs.calls = nil, nil
	var err, want error
	ctx, valid := t.Context(), []types.GCAttachment{{ContainerID: a.ContainerID, IfName: a.IfName}}
	switch verb {
	case "ADD":
		var got, expected any
		got, expected, err, want = x.add(ctx, a)
		expect.Same(t, "result, beside libcni", got, expected)
	case "DEL":
		err, want = x.c.Del(ctx, a, nil), x.libcni.DelNetworkList(ctx, x.c.List, &a.RuntimeConf)
	case "CHECK":
		err, want = x.c.Check(ctx, a, nil), x.libcni.CheckNetworkList(ctx, x.c.List, &a.RuntimeConf)
	case "STATUS":
		err, want = x.c.Status(ctx), x.libcni.GetStatusNetworkList(ctx, x.c.List)
	case "GC":
		err, want = x.c.GC(ctx, valid), x.libcni.GCNetworkList(ctx, x.c.List, &libcni.GCArgs{ValidAttachments: valid})
	}
	expect.That(t, fmt.Sprint(err) == fmt.Sprint(want), "%s: error %v, libcni's %v", verb, err, want)
	calls := x.ours.calls
	if verb == "DEL" && err != nil {
		calls = calls[:min(len(calls), len(x.theirs.calls))] // libcni stops at the first error
	}
	expect.Must(t, len(calls) == len(x.theirs.calls), "%s: calls %q, libcni's %q", verb, x.ours.names(), x.theirs.names())
	for i, call := range calls {
		x.compareCall(t, call, x.theirs.calls[i])
	}
	x.compareCache(t, a)
	return err != nil
}

func (x *comparison) add(ctx context.Context, a *Attachment) (got, want any, err, wantErr error) {
	ours, _, err := x.c.Add(ctx, a, nil)
	theirs, wantErr := x.libcni.AddNetworkList(ctx, x.c.List, &a.RuntimeConf)
	if err != nil || wantErr != nil {
		return nil, nil, err, wantErr
	}
	want, err = theirs.GetAsVersion(ours.CNIVersion)
	return ours, want, err, nil
}

func (x *comparison) compareCall(t *testing.T, call, libcnis Call) {
	t.Helper()
	got, want := decoded(t, call.Stdin).(map[string]any), decoded(t, libcnis.Stdin).(map[string]any)
	delete(want, "capabilities") // those that a plugin declares are meant for the runtime
	if _, ok := want["prevResult"]; !ok && call.Verb == "DEL" && !x.c.CanCheck() {
		delete(got, "prevResult") // a DEL of an old version gets the result too
	}
	expect.That(t, reflect.DeepEqual(got, want) && call.Verb == libcnis.Verb && call.Plugin == libcnis.Plugin && slices.Equal(call.Env, libcnis.Env),
		"%s %s: %v %q\nlibcni's %s %s: %v %q", call.Verb, call.Plugin, got, call.Env, libcnis.Verb, libcnis.Plugin, want, libcnis.Env)
}

func (x *comparison) compareCache(t *testing.T, a *Attachment) {
	t.Helper()
	read := func(c *Chain) any {
		data, err := os.ReadFile(c.cached(a).path())
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		expect.NoError(t, err)
		info, err := os.Stat(c.cached(a).path())
		expect.That(t, err == nil && info.Mode() == 0o600, "mode %v, %v, want 0600", info.Mode(), err)
		return decoded(t, data)
	}
	expect.Same(t, "cached, beside libcni", read(x.c), read(&Chain{List: x.c.List, CacheDir: x.dir}))
}

// TestVerbsAreThoseOfLibcni compares every verb with libcni, for every version
// of the specification: requests, environment, results, errors, and the cache.
// Each verb runs without an ADD, then after one. Each plugin fails once.
func TestVerbsAreThoseOfLibcni(t *testing.T) {
	answers := map[string]string{
		"full": `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/ns","unknown":1}],
			"ips":[{"interface":0,"address":"10.0.0.2/24","gateway":"10.0.0.1"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"domain":"<&>"}}`,
		"old":        `{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.2/24"}]}`,
		"older":      `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`,
		"no version": `{"ips":[{"address":"10.0.0.2/24","version":"4"}]}`,
		"empty":      `{}`,
	}
	attachments := map[string]*Attachment{
		"plain": container("eth0"),
		"everything": {RuntimeConf: libcni.RuntimeConf{
			ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "net1",
			Args:           [][2]string{{"IgnoreUnknown", "1"}, {"K", "<v>"}},
			CapabilityArgs: map[string]any{"portMappings": []map[string]any{{"hostPort": 80}}, "undeclared": "<&>", "big": 1 << 60},
		}},
	}
	for _, cniVersion := range version.All.SupportedVersions() {
		for _, options := range []string{"", `"disableCheck": true, "disableGC": true,`} {
			list := fmt.Sprintf(`{"cniVersion": %q, "name": "net", %s "plugins": [{"type": "a"},
				{"type": "b", "name": "n", "capabilities": {"portMappings": true, "big": false}}, {"type": "c"}]}`, cniVersion, options)
			for what, answer := range answers {
				for of, a := range attachments {
					t.Run(strings.Join([]string{cniVersion, options, what, of}, "/"), func(t *testing.T) { compareVerbs(t, list, answer, a) })
				}
			}
		}
	}
}

func compareVerbs(t *testing.T, list, answer string, a *Attachment) {
	x := compare(t, list, answer)
	for _, verb := range []string{"STATUS", "GC", "DEL"} {
		x.run(t, verb, a)
	}
	for _, x.fails = range []string{"ADD a", "ADD c", ""} {
		if x.run(t, "ADD", a) && x.fails == "" {
			return // the answer is not a result of this version
		}
	}
	for _, verb := range []string{"CHECK", "STATUS", "GC", "DEL"} {
		for _, plugin := range []string{"a", "b", "c"} {
			x.fails = verb + " " + plugin
			x.run(t, verb, a)
		}
	}
	x.fails = ""
	for _, verb := range []string{"CHECK", "STATUS", "GC", "DEL", "DEL"} {
		x.run(t, verb, a)
	}
}

// TestCacheOfOthersIsRead compares CHECK and DEL of an attachment whose cache
// file another program wrote.
func TestCacheOfOthersIsRead(t *testing.T) {
	const head = `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","config":"e30="`
	for name, content := range map[string]string{
		"result of an older version": head + `,"result":{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}]}}`,
		"unknown keys":               head + `,"later":1,"result":{"cniVersion":"1.0.0","later":2,"dns":{}}}`,
		"no result":                  head + `}`,
		"bare result":                `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`,
		"unknown version":            head + `,"result":{"cniVersion":"9.0.0"}}`,
		"no JSON":                    `{`,
		"empty":                      ``,
	} {
		t.Run(name, func(t *testing.T) {
			x, a := compare(t, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}]}`, ""), container("eth0")
			for _, c := range []*Chain{x.c, {List: x.c.List, CacheDir: x.dir}} {
				expect.NoError(t, os.MkdirAll(c.CacheDir+"/results", 0o700))
				expect.NoError(t, os.WriteFile(c.cached(a).path(), []byte(content), 0o600))
			}
			if _, err := x.c.cached(a).added(); err == nil { // otherwise ours refuses the CHECK
				x.run(t, "CHECK", a)
			}
			x.run(t, "DEL", a)
		})
	}
}
