package cni_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// acting is an in-process plugin that does what a test says, and else nothing.
type acting struct {
	idle
	on map[string]func(ctx context.Context, r *plugin.Request) error
}

func (a acting) do(ctx context.Context, verb string, r *plugin.Request) error {
	if f := a.on[verb]; f != nil {
		return f(ctx, r)
	}
	return nil
}

func (a acting) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	if err := a.do(ctx, "ADD", r); err != nil {
		return nil, err
	}
	return a.idle.Add(ctx, r)
}
func (a acting) Del(ctx context.Context, r *plugin.Request) error    { return a.do(ctx, "DEL", r) }
func (a acting) Check(ctx context.Context, r *plugin.Request) error  { return a.do(ctx, "CHECK", r) }
func (a acting) Status(ctx context.Context, r *plugin.Request) error { return a.do(ctx, "STATUS", r) }
func (a acting) GC(ctx context.Context, r *plugin.Request, valid []types.GCAttachment) error {
	return a.do(ctx, fmt.Sprint("GC ", valid), r)
}

type action = func(ctx context.Context, r *plugin.Request) error

// scriptOf is a configuration that a scripted plugin finds its script by.
func (s *stage) scriptOf(typ string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": %q, "script": %q}`, typ, s.path("script-"+typ)))
}

// fails is a plugin that fails at a verb.
func fails(verb string, err error) acting {
	return acting{on: map[string]action{verb: func(context.Context, *plugin.Request) error { return err }}}
}

// listOfTypes is a list of plugins that are not executables.
func listOfTypes(name string, types ...string) cni.Opt {
	return cni.WithConfListBytes(conflist(name, "1.1.0", nil, types...))
}

func TestRegisteredPluginIsOneOfTheChain(t *testing.T) {
	s := newStage(t)
	path := s.container("c1")
	before := s.audit()
	var told []string
	note := func(verb string) action {
		return func(_ context.Context, r *plugin.Request) error {
			prev := "nothing"
			if r.PrevResult != nil {
				prev = r.PrevResult.Interfaces[0].Name
			}
			told = append(told, fmt.Sprintf("%s %s of %s/%s after %s, %v", verb, r.Type, r.ContainerID, r.IfName, prev, r.Host.ID() != r.Container.ID()))
			return nil
		}
	}
	p := acting{on: map[string]action{"ADD": note("ADD"), "DEL": note("DEL"), "CHECK": note("CHECK")}}
	r := s.runtime(cni.WithPlugin("own", p), cni.WithConfListBytes(s.network("net", "1.0.0", "first", "own", "last")))
	result, err := r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	wantNil(t, r.Check(t.Context(), "c1", path))
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantSame(t, "told", told, []string{
		"ADD own of c1/eth0 after eth0, true", "CHECK own of c1/eth0 after eth0, true", "DEL own of c1/eth0 after eth0, true"})
	wantSame(t, "executed", s.took(), []string{"ADD first c1/eth0", "ADD last c1/eth0", "CHECK first c1/eth0", "CHECK last c1/eth0",
		"DEL last c1/eth0", "DEL first c1/eth0"})
	wantSame(t, "result", result.Networks[0].Interfaces[0].Name, "eth0")
	s.wantClean(before)
}

func TestInProcessErrorSaysSoAndKeepsItsCause(t *testing.T) {
	s := newStage(t)
	cause := errors.New("cause")
	p := fails("ADD", plugin.Errorf(11, "no more: %w", cause))
	builtIn := cni.WithBuiltins(map[string]plugin.Plugin{"p": p})
	for kind, opt := range map[cni.PluginKind]cni.Opt{cni.PluginBuiltIn: builtIn, cni.PluginRegistered: cni.WithPlugin("p", p)} {
		_, err := s.runtime(opt, listOfTypes("net", "p")).Setup(t.Context(), "c1", s.container("c-"+string(kind)))
		wantIs(t, err, cause)
		wantSame(t, "error", err.Error(), fmt.Sprintf(
			`add network "net" of container c1, interface eth0: plugin type="p" (%s) failed (add): no more: cause (code 11); the plugin asks to be tried again later`, kind))
		got := *asError(t, err)
		got.Err = nil
		wantSame(t, "error", got, cni.Error{Op: "ADD", Network: "net", Plugin: "p", PluginKind: kind, ContainerID: "c1", IfName: "eth0",
			Code: 11, Msg: "no more: cause"})
	}
}

func TestPanicOfAPluginIsItsError(t *testing.T) {
	s := newStage(t)
	path := s.container("c1")
	before := s.audit()
	p := acting{on: map[string]action{"ADD": func(context.Context, *plugin.Request) error { panic("oh no") }}}
	r := s.runtime(cni.WithPlugin("p", p), listOfTypes("net", "p"))
	_, err := r.Setup(t.Context(), "c1", path)
	e := asError(t, err)
	wantSame(t, "code and message", fmt.Sprint(e.Code, " ", e.Msg), `999 plugin "p" panicked: oh no`)
	if !strings.Contains(e.Details, "TestPanicOfAPluginIsItsError") {
		t.Errorf("the details do not say where: %s", e.Details)
	}
	s.wantClean(before)
}

// TestInProcessPluginIsStoppedAtItsDeadline: the error is the library's bound,
// with what the plugin said about it.
func TestInProcessPluginIsStoppedAtItsDeadline(t *testing.T) {
	s := newStage(t)
	const limit = 50 * time.Millisecond
	for said, answer := range map[string]func(context.Context) error{
		"":                                     context.Context.Err,
		": halfway: context deadline exceeded": func(ctx context.Context) error { return fmt.Errorf("halfway: %w", ctx.Err()) },
	} {
		p := acting{on: map[string]action{"ADD": func(ctx context.Context, _ *plugin.Request) error {
			<-ctx.Done()
			return answer(ctx)
		}}}
		r := s.runtime(cni.WithPlugin("p", p), listOfTypes("net", "p"), cni.WithTimeouts(cni.Timeouts{Add: limit}))
		_, err := r.Setup(t.Context(), "c1", s.container(fmt.Sprint("c", len(said))))
		wantIs(t, err, context.DeadlineExceeded)
		wantSame(t, "error", err.Error(), `add network "net" of container c1, interface eth0: plugin type="p" (registered) failed (add): `+
			`stopped: took longer than the 50ms that a plugin has for ADD (see WithTimeouts)`+said)
		wantSame(t, "code", asError(t, err).Code, uint(0))
	}
}

func TestInProcessPluginIsNotStartedWhenTheCallIsOver(t *testing.T) {
	s := newStage(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("changed my mind")
	first := acting{on: map[string]action{"ADD": func(context.Context, *plugin.Request) error { cancel(reason); return nil }}}
	second := acting{on: map[string]action{"ADD": func(context.Context, *plugin.Request) error { t.Error("called"); return nil }}}
	_, err := s.runtime(cni.WithPlugin("a", first), cni.WithPlugin("b", second), listOfTypes("net", "a", "b")).Setup(ctx, "c1", s.container("c1"))
	wantIs(t, err, reason)
	wantSame(t, "plugin", asError(t, err).Plugin, "b")
}

func TestObserverIsToldWhichKindRan(t *testing.T) {
	s := newStage(t)
	var o observer
	s.network("unused", "1.1.0", "disk")
	r := s.runtime(cni.WithObserver(o.observe), cni.WithPlugin("own", acting{}), cni.WithBuiltins(map[string]plugin.Plugin{"ours": acting{}}),
		listOfTypes("net", "own", "ours", "disk", "none"))
	wantIs(t, r.Status(), cni.ErrPluginNotFound)
	got := map[string]cni.PluginKind{}
	for _, e := range o.events {
		got[e.Plugin] = e.PluginKind
	}
	wantSame(t, "kinds", got, map[string]cni.PluginKind{
		"own": cni.PluginRegistered, "ours": cni.PluginBuiltIn, "disk": cni.PluginExecutable, "none": ""})
}

// TestStatusAndGCAreAskedInProcess: GC with what is attached.
func TestStatusAndGCAreAskedInProcess(t *testing.T) {
	s := newStage(t)
	var asked []string
	note := func(what string) action {
		return func(context.Context, *plugin.Request) error { asked = append(asked, what); return nil }
	}
	p := acting{on: map[string]action{"STATUS": note("STATUS"), "GC [{c1 eth0}]": note("GC")}}
	r := s.runtime(cni.WithPlugin("p", p), listOfTypes("net", "p"))
	wantNil(t, r.Status())
	_, err := r.Setup(t.Context(), "c1", s.container("c1"))
	wantNil(t, err)
	_, err = r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}})
	wantNil(t, err)
	wantSame(t, "asked", asked, []string{"STATUS", "GC"})
}

// TestLoopbackWithoutPlugins: what the one attaches the other detaches, in
// process or on disk.
func TestLoopbackWithoutPlugins(t *testing.T) {
	h := newRealHost(t)
	onDisk := func() *cni.Runtime { return h.real(cni.WithLoNetwork, cni.WithoutBuiltinPlugins()) }
	inProcess := func() *cni.Runtime { return h.runtime(cni.WithLoNetwork, cni.WithPluginDir(nil)) }
	var results []string
	for name, pair := range map[string][2]func() *cni.Runtime{
		"in process": {inProcess, inProcess}, "then on disk": {inProcess, onDisk}, "then in process": {onDisk, inProcess},
	} {
		path := h.container(name)
		before := h.audit()
		first, second := pair[0](), pair[1]()
		result, err := first.Setup(t.Context(), "c1", path)
		wantNil(t, err)
		said := must(json.Marshal(result))(t)
		results = append(results, strings.ReplaceAll(string(said), path, "PATH"))
		wantSame(t, name+": kernel", h.kernelContents(path, saidContents(result.Raw()[0], contentLink{})), saidContents(result.Raw()[0], contentLink{}))
		wantNil(t, first.Check(t.Context(), "c1", path))
		h.forgetKinds("c1") // or the one that attached would run again
		wantNil(t, second.Check(t.Context(), "c1", path))
		wantNil(t, second.Remove(t.Context(), "c1", path))
		h.wantClean(before)
	}
	wantSame(t, "results", results[1:], []string{results[0], results[0]})
}

// TestDelegateIsChosenLikeAnyPlugin, and gets the same parameters but for the
// verb, in the host's namespace, with the container's lock.
func TestDelegateIsChosenLikeAnyPlugin(t *testing.T) {
	s := newStage(t)
	address := `{"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.7/24"}]}`
	s.on("disk", "ADD", scripted.Action{Stdout: &address})
	var inner []string
	ipam := acting{on: map[string]action{}}
	for _, verb := range []string{"ADD", "DEL"} {
		ipam.on[verb] = func(_ context.Context, r *plugin.Request) error {
			inner = append(inner, fmt.Sprintf("%s %s %s/%s %s", verb, r.Type, r.ContainerID, r.IfName, r.Config))
			return nil
		}
	}
	main := acting{on: map[string]action{
		"ADD": func(ctx context.Context, r *plugin.Request) error {
			result, err := r.Delegate(ctx, "ADD", "disk", s.scriptOf("disk"))
			if err == nil {
				wantSame(t, "delegated result", fmt.Sprint(result.IPs[0].Address.String()), "10.0.0.7/24")
				result, err = r.Delegate(ctx, "ADD", "own", json.RawMessage(`{"cniVersion": "0.3.1", "name": "x"}`))
			}
			if err == nil {
				wantSame(t, "delegated result in process", result.Interfaces[0].Name, "eth0")
			}
			return err
		},
		"DEL": func(ctx context.Context, r *plugin.Request) error {
			result, err := r.Delegate(ctx, "DEL", "disk", s.scriptOf("disk"))
			wantSame(t, "result of a DEL", result, nil)
			_, err2 := r.Delegate(ctx, "DEL", "own", json.RawMessage(`{"cniVersion": "0.3.1", "name": "x"}`))
			return errors.Join(err, err2)
		},
	}}
	s.on("disk", "DEL", says(3, "unknown: nothing to clean"))
	r := s.runtime(cni.WithPlugin("main", main), cni.WithPlugin("own", ipam), listOfTypes("net", "main"))
	path := s.container("c1")
	_, err := r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantSame(t, "in process", inner, []string{
		`ADD own c1/eth0 {"cniVersion": "0.3.1", "name": "x"}`, `DEL own c1/eth0 {"cniVersion": "0.3.1", "name": "x"}`})
	host := must(netns.CurrentID())(t)
	for i, c := range s.takeCalls() {
		wantSame(t, "executed", fmt.Sprint(c.Verb, " ", c.Type, " ", c.ContainerID, "/", c.IfName, " ", c.NetNS == path, " ", c.NetNo, " ", c.Fds),
			fmt.Sprintf("%s disk c1/eth0 true net:[%d] 1", []string{"ADD", "DEL"}[i], host.Ino))
	}
}

func TestDelegatesErrorsAreItsOwn(t *testing.T) {
	s := newStage(t)
	s.on("disk", "ADD", says(11, "no more addresses"))
	s.on("silent", "ADD", scripted.Action{Exit: 2, Stderr: "last words"})
	junk := `{"ips": [null]}`
	s.on("junk", "ADD", scripted.Action{Stdout: &junk})
	own := fails("ADD", &types.Error{Code: 12, Msg: "own", Details: "why"})
	for typ, want := range map[string]string{
		"disk":   `ipam: no more addresses (code 11); the plugin asks to be tried again later`,
		"own":    `ipam: own; why (code 12)`,
		"silent": `ipam: plugin type="silent" failed (add): ended without an error message: ` + s.path("bin", "silent") + `: exit status 2 (code 999); stderr: last words`,
		"junk":   `ipam: result of plugin "junk": invalid result: ips[0] is null (code 6)`,
		"none":   `ipam: failed to find plugin "none" in path [` + s.path("bin") + `] (code 999); install it there, or name its directory with WithPluginDir`,
		"main":   `ipam: ipam: ipam: ipam: ipam: ipam: ipam: ipam: ipam: delegate to plugin "main": plugin "main" is the 8th that delegates (code 999)`,
	} {
		main := acting{on: map[string]action{"ADD": func(ctx context.Context, r *plugin.Request) error {
			if _, err := r.Delegate(ctx, "ADD", typ, s.scriptOf(typ)); err != nil {
				return fmt.Errorf("ipam: %w", err)
			}
			return nil
		}}}
		r := s.runtime(cni.WithPlugin("main", main), cni.WithPlugin("own", own), listOfTypes("net", "main"))
		_, err := r.Setup(t.Context(), "c1", s.container("c-"+typ))
		wantSame(t, typ, fmt.Sprint(err), `add network "net" of container c1, interface eth0: plugin type="main" (registered) failed (add): `+want)
		wantSame(t, typ+": not found", errors.Is(err, cni.ErrPluginNotFound), typ == "none")
	}
	p := acting{on: map[string]action{"ADD": func(ctx context.Context, r *plugin.Request) error {
		_, err := r.Delegate(ctx, "VERSION", "disk", r.Config)
		return err
	}}}
	_, err := s.runtime(cni.WithPlugin("main", p), listOfTypes("net", "main")).Setup(t.Context(), "c1", s.container("c-verb"))
	wantSame(t, "message", asError(t, err).Msg, `delegate to plugin "disk": unknown verb "VERSION"`)
}

// TestPluginThatRanIsAskedToDelete, also where another one that it delegates to
// could not be found: of itself it may have left something.
func TestPluginThatRanIsAskedToDelete(t *testing.T) {
	s := newStage(t)
	failure := errors.New("cannot delete")
	main := acting{on: map[string]action{
		"ADD": func(ctx context.Context, r *plugin.Request) error {
			_, err := r.Delegate(ctx, "ADD", "none", r.Config)
			return err
		},
		"DEL": func(ctx context.Context, r *plugin.Request) error {
			_, err := r.Delegate(ctx, "DEL", "none", r.Config)
			return errors.Join(err, failure)
		},
	}}
	_, err := s.runtime(cni.WithPlugin("main", main), listOfTypes("net", "main")).Setup(t.Context(), "c1", s.container("c1"))
	wantIs(t, err, failure, cni.ErrPluginNotFound)
}

// TestDelegateHasNoMoreTimeThanThePlugin, whatever context it is called with.
func TestDelegateHasNoMoreTimeThanThePlugin(t *testing.T) {
	s := newStage(t)
	s.on("disk", "ADD", scripted.Action{Hang: true})
	main := acting{on: map[string]action{"ADD": func(ctx context.Context, r *plugin.Request) error {
		_, err := r.Delegate(context.WithoutCancel(ctx), "ADD", "disk", s.scriptOf("disk"))
		return err
	}}}
	r := s.runtime(cni.WithPlugin("main", main), listOfTypes("net", "main"), cni.WithTimeouts(cni.Timeouts{Add: 300 * time.Millisecond}))
	path := s.container("c1")
	err := await(t, "Setup", begin(setUp(t.Context(), r, "c1", path)))
	wantIs(t, err, context.DeadlineExceeded)
}

// TestCallersPluginIsNotSwept: what it leaves is known to nobody, so that its
// failed DEL stays a failure, whatever it is called.
func TestCallersPluginIsNotSwept(t *testing.T) {
	s := newStage(t)
	failure := errors.New("cannot delete")
	for kind, opt := range map[cni.PluginKind]cni.Opt{
		cni.PluginRegistered: cni.WithPlugin("portmap", fails("DEL", failure)),
		cni.PluginBuiltIn:    cni.WithBuiltins(map[string]plugin.Plugin{"portmap": fails("DEL", failure)}),
	} {
		id := strings.ReplaceAll(string(kind), " ", "-")
		r := s.runtime(opt, listOfTypes("net", "portmap"))
		path := s.container(id)
		wantNil(t, setUp(t.Context(), r, id, path)())
		err := r.Remove(t.Context(), id, path)
		wantSame(t, "failure of the "+string(kind), errors.Is(err, failure), kind == cni.PluginRegistered)
	}
}
