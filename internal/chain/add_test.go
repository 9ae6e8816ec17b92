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
	"github.com/containernetworking/cni/pkg/version"
)

// libcniExec is libcni's seam for a recorder, to which nothing is put right.
type libcniExec struct {
	version.PluginDecoder
	r *recorder
}

func (*libcniExec) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

func (e *libcniExec) ExecPlugin(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	out, err := e.r.run(ctx, Call{Verb: "ADD", Plugin: plugin, Stdin: stdin, Env: protocolEnv(environ)})
	return out.Stdout, err
}

// decoded makes what is JSON comparable.
func decoded(t *testing.T, data []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return v
}

// TestAddIsThatOfLibcni: what plugins are sent, what is said of one that fails,
// what comes out, and what is cached.
func TestAddIsThatOfLibcni(t *testing.T) {
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
	for _, cniVersion := range []string{"0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		list := fmt.Sprintf(`{"cniVersion": %q, "name": "net", "plugins": [{"type": "a"},
			{"type": "b", "capabilities": {"portMappings": true, "big": false}}, {"type": "c"}]}`, cniVersion)
		for what, answer := range answers {
			for of, a := range attachments {
				for _, fails := range []string{"", "a", "c"} {
					t.Run(strings.Join([]string{cniVersion, what, of, fails}, "/"), func(t *testing.T) {
						compareAdd(t, list, answer, a, fails)
					})
				}
			}
		}
	}
}

func compareAdd(t *testing.T, list, answer string, a *Attachment, fails string) {
	answers := func(call Call) ([]byte, error) {
		if call.Plugin == fails {
			return nil, errors.New("boom")
		}
		return []byte(answer), nil
	}
	ours, theirs := &recorder{answer: answers}, &recorder{answer: answers}
	c := newChain(t, ours, list)
	dir := t.TempDir()
	got, _, err := c.Add(t.Context(), a)
	want, wantErr := libcni.NewCNIConfigWithCacheDir(c.Path, dir, &libcniExec{r: theirs}).AddNetworkList(t.Context(), c.List, &a.RuntimeConf)
	if fmt.Sprint(err) != fmt.Sprint(wantErr) {
		t.Fatalf("error %v, libcni's %v", err, wantErr)
	}
	if len(ours.calls) != len(theirs.calls) {
		t.Fatalf("calls %q, libcni's %q", ours.names(), theirs.names())
	}
	for i, call := range ours.calls {
		// The capabilities a plugin declares are the runtime's, and not sent.
		sent := decoded(t, theirs.calls[i].Stdin).(map[string]any)
		delete(sent, "capabilities")
		if !reflect.DeepEqual(decoded(t, call.Stdin), any(sent)) || !slices.Equal(call.Env, theirs.calls[i].Env) {
			t.Errorf("call %d: %s %q\nlibcni's: %s %q", i, call.Stdin, call.Env, theirs.calls[i].Stdin, theirs.calls[i].Env)
		}
	}
	if err != nil {
		if _, err := os.Stat(c.cacheFile(a)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("cached, although a plugin failed: %v", err)
		}
		return
	}
	converted, err := want.GetAsVersion(got.CNIVersion)
	if err != nil || !reflect.DeepEqual(any(got), converted) {
		t.Errorf("result %v, libcni's %v, %v", got, converted, err)
	}
	compareCache(t, c, a, dir)
}

func compareCache(t *testing.T, c *Chain, a *Attachment, dir string) {
	t.Helper()
	read := func(c *Chain) any {
		data, err := os.ReadFile(c.cacheFile(a))
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(c.cacheFile(a))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
		}
		return decoded(t, data)
	}
	if got, want := read(c), read(&Chain{List: c.List, CacheDir: dir}); !reflect.DeepEqual(got, want) {
		t.Errorf("cached\n%v\nlibcni's\n%v", got, want)
	}
}

// TestAPartIsCachedWithTheLast: an attachment that is made in two steps is none
// before the second.
func TestAPartIsCachedWithTheLast(t *testing.T) {
	r := &recorder{}
	c := newChain(t, r, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}, {"type": "b"}]}`)
	var ended []string
	c.OnEnd = func(_ context.Context, verb string) error { ended = append(ended, verb); return nil }
	a := container("eth0")
	_, partial, err := c.AddPart(t.Context(), a, Part{To: 1})
	if err != nil {
		t.Fatal(err)
	}
	if cached, err := c.Cached(a); cached != nil || err != nil {
		t.Errorf("the first step cached %v, %v", cached, err)
	}
	result, _, err := c.AddPart(t.Context(), a, Part{From: 1, To: 2, Result: partial})
	if err != nil || result.IPs[0].Address.String() != "10.0.0.2/24" {
		t.Errorf("got %v, %v", result, err)
	}
	if got, want := r.names(), []string{"ADD a", "ADD b"}; !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	if prev := decoded(t, r.calls[1].Stdin).(map[string]any)["prevResult"]; !reflect.DeepEqual(prev, decoded(t, partial)) {
		t.Errorf("b got %v, want %s", prev, partial)
	}
	if cached, err := c.Cached(a); cached == nil || err != nil {
		t.Errorf("the second step cached %v, %v", cached, err)
	}
	if want := []string{"ADD", "ADD"}; !slices.Equal(ended, want) {
		t.Errorf("ends %q, want %q", ended, want)
	}
}

// TestAResultThatIsNoneLeavesTheOneBefore, for the DEL.
func TestAResultThatIsNoneLeavesTheOneBefore(t *testing.T) {
	const ofA = `{"cniVersion":"1.0.0"}`
	r := &recorder{answer: func(call Call) ([]byte, error) {
		return []byte(map[string]string{"a": ofA, "b": `{"interfaces":[null]}`}[call.Plugin]), nil
	}}
	c := newChain(t, r, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}, {"type": "b"}]}`)
	_, partial, err := c.Add(t.Context(), container("eth0"))
	var bad *ResultError
	if !errors.As(err, &bad) || bad.Plugin != "b" || !errors.Is(err, ErrInvalidResult) || string(partial) != ofA {
		t.Errorf("got %s, %v", partial, err)
	}
}
