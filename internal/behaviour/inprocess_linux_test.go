package behaviour_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

func TestRegisteredPluginIsOneOfTheChain(t *testing.T) {
	s := newStage(t)
	path := s.Container("c1")
	before := s.Audit()
	var told []string
	p := testhost.Acting{Every: func(_ context.Context, verb string, r *plugin.Request) error {
		prev := "nothing"
		if r.PrevResult != nil {
			prev = r.PrevResult.Interfaces[0].Name
		}
		told = append(told, fmt.Sprintf("%s %s of %s/%s after %s, %v", verb, r.Type, r.ContainerID, r.IfName, prev, r.Host.ID() != r.Container.ID()))
		return nil
	}}
	r := s.Runtime(cni.WithPlugin("own", p), cni.WithConfListBytes(s.Network("net", "1.0.0", "first", "own", "last")))
	result := testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, r.Check(t.Context(), "c1", path))
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "told", told, []string{
		"ADD own of c1/eth0 after eth0, true", "CHECK own of c1/eth0 after eth0, true", "DEL own of c1/eth0 after eth0, true"})
	expect.Same(t, "executed", s.Took(), []string{"ADD first c1/eth0", "ADD last c1/eth0", "CHECK first c1/eth0", "CHECK last c1/eth0",
		"DEL last c1/eth0", "DEL first c1/eth0"})
	expect.Same(t, "result", result.Networks[0].Interfaces[0].Name, "eth0")
	s.WantClean(before)
}

func TestPanicOfAPluginIsItsError(t *testing.T) {
	s := newStage(t)
	path := s.Container("c1")
	before := s.Audit()
	p := testhost.Acting{On: map[string]testhost.Action{"ADD": func(context.Context, *plugin.Request) error { panic("oh no") }}}
	_, err := s.Runtime(cni.WithPlugin("p", p), testhost.ListOfTypes("net", "p")).Setup(t.Context(), "c1", path)
	e := testhost.AsError(t, err)
	expect.Same(t, "code and message", fmt.Sprint(e.Code, " ", e.Msg), `999 plugin "p" panicked: oh no`)
	expect.Contains(t, "the details, which say where", e.Details, "TestPanicOfAPluginIsItsError")
	s.WantClean(before)
}

// TestInProcessPluginIsStoppedAtItsDeadline: the error names the library's time
// limit and includes the plugin's own error.
func TestInProcessPluginIsStoppedAtItsDeadline(t *testing.T) {
	s := newStage(t)
	const limit = 50 * time.Millisecond
	for said, answer := range map[string]func(context.Context) error{
		"":                                     context.Context.Err,
		": halfway: context deadline exceeded": func(ctx context.Context) error { return fmt.Errorf("halfway: %w", ctx.Err()) },
	} {
		p := testhost.Acting{On: map[string]testhost.Action{"ADD": func(ctx context.Context, _ *plugin.Request) error {
			<-ctx.Done()
			return answer(ctx)
		}}}
		r := s.Runtime(cni.WithPlugin("p", p), testhost.ListOfTypes("net", "p"), cni.WithTimeouts(cni.Timeouts{Add: limit}))
		_, err := r.Setup(t.Context(), "c1", s.Container(fmt.Sprint("c", len(said))))
		expect.Is(t, err, context.DeadlineExceeded)
		expect.Same(t, "error", err.Error(), `add network "net" of container c1, interface eth0: plugin type="p" (registered) failed (add): `+
			`stopped: took longer than the 50ms that a plugin has for ADD (see WithTimeouts)`+said)
		expect.Same(t, "code", testhost.AsError(t, err).Code, uint(0))
	}
}

// TestStatusAndGCAreAskedInProcess: GC gets the attachments.
func TestStatusAndGCAreAskedInProcess(t *testing.T) {
	s := newStage(t)
	var asked []string
	note := func(what string) testhost.Action {
		return func(context.Context, *plugin.Request) error { asked = append(asked, what); return nil }
	}
	p := testhost.Acting{On: map[string]testhost.Action{"STATUS": note("STATUS"), "GC [{c1 eth0}]": note("GC")}}
	r := s.Runtime(cni.WithPlugin("p", p), testhost.ListOfTypes("net", "p"))
	expect.NoError(t, r.Status())
	testhost.MustSetUp(t, r, "c1", s.Container("c1"))
	expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}}))(t)
	expect.Same(t, "asked", asked, []string{"STATUS", "GC"})
}

// TestDelegateIsChosenLikeAnyPlugin: it gets the same parameters except the
// verb, and runs in the host's namespace under the container's lock.
func TestDelegateIsChosenLikeAnyPlugin(t *testing.T) {
	s := newStage(t)
	address := `{"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.7/24"}]}`
	s.On("disk", "ADD", scripted.Action{Stdout: &address})
	var inner []string
	ipam := testhost.Acting{Every: func(_ context.Context, verb string, r *plugin.Request) error {
		inner = append(inner, fmt.Sprintf("%s %s %s/%s %s", verb, r.Type, r.ContainerID, r.IfName, r.Config))
		return nil
	}}
	main := testhost.Acting{On: map[string]testhost.Action{
		"ADD": func(ctx context.Context, r *plugin.Request) error {
			result, err := r.Delegate(ctx, "ADD", "disk", s.ScriptOf("disk"))
			if err == nil {
				expect.Same(t, "delegated result", fmt.Sprint(result.IPs[0].Address.String()), "10.0.0.7/24")
				result, err = r.Delegate(ctx, "ADD", "own", json.RawMessage(`{"cniVersion": "0.3.1", "name": "x"}`))
			}
			if err == nil {
				expect.Same(t, "delegated result in process", result.Interfaces[0].Name, "eth0")
			}
			return err
		},
		"DEL": func(ctx context.Context, r *plugin.Request) error {
			result, err := r.Delegate(ctx, "DEL", "disk", s.ScriptOf("disk"))
			expect.Same(t, "result of a DEL", result, nil)
			_, err2 := r.Delegate(ctx, "DEL", "own", json.RawMessage(`{"cniVersion": "0.3.1", "name": "x"}`))
			return errors.Join(err, err2)
		},
	}}
	s.On("disk", "DEL", testhost.Says(3, "unknown: nothing to clean"))
	r := s.Runtime(cni.WithPlugin("main", main), cni.WithPlugin("own", ipam), testhost.ListOfTypes("net", "main"))
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "in process", inner, []string{
		`ADD own c1/eth0 {"cniVersion": "0.3.1", "name": "x"}`, `DEL own c1/eth0 {"cniVersion": "0.3.1", "name": "x"}`})
	host := expect.Value(netns.CurrentID())(t)
	for i, c := range s.TakeCalls() {
		expect.Same(t, "executed", fmt.Sprint(c.Verb, " ", c.Type, " ", c.ContainerID, "/", c.IfName, " ", c.NetNS == path, " ", c.NetNo, " ", c.Fds),
			fmt.Sprintf("%s disk c1/eth0 true net:[%d] 1", []string{"ADD", "DEL"}[i], host.Ino))
	}
}

func TestDelegatesErrorsAreItsOwn(t *testing.T) {
	s := newStage(t)
	s.On("disk", "ADD", testhost.Says(11, "no more addresses"))
	s.On("silent", "ADD", scripted.Action{Exit: 2, Stderr: "last words"})
	junk := `{"ips": [null]}`
	s.On("junk", "ADD", scripted.Action{Stdout: &junk})
	own := testhost.Fails("ADD", &types.Error{Code: 12, Msg: "own", Details: "why"})
	for typ, want := range map[string]string{
		"disk":   `ipam: no more addresses (code 11); the plugin asks to be tried again later`,
		"own":    `ipam: own; why (code 12)`,
		"silent": `ipam: plugin type="silent" failed (add): ended without an error message: ` + s.Path("bin", "silent") + `: exit status 2 (code 999); stderr: last words`,
		"junk":   `ipam: result of plugin "junk": invalid result: ips[0] is null (code 6)`,
		"none":   `ipam: failed to find plugin "none" in path [` + s.Path("bin") + `] (code 999); install it there, or name its directory with WithPluginDir`,
		"main":   `ipam: ipam: ipam: ipam: ipam: ipam: ipam: ipam: ipam: delegate to plugin "main": plugin "main" is the 8th that delegates (code 999)`,
	} {
		main := testhost.Acting{On: map[string]testhost.Action{"ADD": func(ctx context.Context, r *plugin.Request) error {
			if _, err := r.Delegate(ctx, "ADD", typ, s.ScriptOf(typ)); err != nil {
				return fmt.Errorf("ipam: %w", err)
			}
			return nil
		}}}
		r := s.Runtime(cni.WithPlugin("main", main), cni.WithPlugin("own", own), testhost.ListOfTypes("net", "main"))
		_, err := r.Setup(t.Context(), "c1", s.Container("c-"+typ))
		expect.Same(t, typ, fmt.Sprint(err), `add network "net" of container c1, interface eth0: plugin type="main" (registered) failed (add): `+want)
		expect.Same(t, typ+": not found", errors.Is(err, cni.ErrPluginNotFound), typ == "none")
	}
	p := testhost.Acting{On: map[string]testhost.Action{"ADD": func(ctx context.Context, r *plugin.Request) error {
		_, err := r.Delegate(ctx, "VERSION", "disk", r.Config)
		return err
	}}}
	_, err := s.Runtime(cni.WithPlugin("main", p), testhost.ListOfTypes("net", "main")).Setup(t.Context(), "c1", s.Container("c-verb"))
	expect.Same(t, "message", testhost.AsError(t, err).Msg, `delegate to plugin "disk": unknown verb "VERSION"`)
}

// TestPluginThatRanIsAskedToDelete even if the plugin that it delegates to was
// not found: it may have left something itself.
func TestPluginThatRanIsAskedToDelete(t *testing.T) {
	s := newStage(t)
	failure := errors.New("cannot delete")
	main := testhost.Acting{On: map[string]testhost.Action{
		"ADD": func(ctx context.Context, r *plugin.Request) error {
			return errOf(r.Delegate(ctx, "ADD", "none", r.Config))
		},
		"DEL": func(ctx context.Context, r *plugin.Request) error {
			_, err := r.Delegate(ctx, "DEL", "none", r.Config)
			return errors.Join(err, failure)
		},
	}}
	_, err := s.Runtime(cni.WithPlugin("main", main), testhost.ListOfTypes("net", "main")).Setup(t.Context(), "c1", s.Container("c1"))
	expect.Is(t, err, failure, cni.ErrPluginNotFound)
}

// TestDelegateHasNoMoreTimeThanThePlugin, whatever context it gets.
func TestDelegateHasNoMoreTimeThanThePlugin(t *testing.T) {
	s := newStage(t)
	s.On("disk", "ADD", scripted.Action{Hang: true})
	main := testhost.Acting{On: map[string]testhost.Action{"ADD": func(ctx context.Context, r *plugin.Request) error {
		_, err := r.Delegate(context.WithoutCancel(ctx), "ADD", "disk", s.ScriptOf("disk"))
		return err
	}}}
	r := s.Runtime(cni.WithPlugin("main", main), testhost.ListOfTypes("net", "main"), cni.WithTimeouts(cni.Timeouts{Add: 300 * time.Millisecond}))
	path := s.Container("c1")
	expect.Is(t, expect.Await(t, "Setup", testhost.Begin(testhost.SetUp(t.Context(), r, "c1", path))), context.DeadlineExceeded)
}
