package testhost

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/plugin"
)

// Idle is an in-process plugin that does nothing: ADD returns the previous
// result, or one with an interface that does not exist.
type Idle struct{}

func (Idle) Add(_ context.Context, r *plugin.Request) (*types100.Result, error) {
	if r.PrevResult != nil {
		return r.Chained()
	}
	return &types100.Result{Interfaces: []*types100.Interface{{Name: r.IfName, Sandbox: r.NetNS}}}, nil
}

func (Idle) Del(context.Context, *plugin.Request) error { return nil }

func (Idle) Check(context.Context, *plugin.Request) error { return nil }

// Acting is an in-process plugin that runs a test's function for a verb, by
// name.
type Acting struct {
	Idle
	On    map[string]Action
	Every func(ctx context.Context, verb string, r *plugin.Request) error // for the other verbs
}

func (a Acting) do(ctx context.Context, verb string, r *plugin.Request) error {
	if f := a.On[verb]; f != nil {
		return f(ctx, r)
	}
	if a.Every != nil {
		return a.Every(ctx, verb, r)
	}
	return nil
}

func (a Acting) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	if err := a.do(ctx, "ADD", r); err != nil {
		return nil, err
	}
	return a.Idle.Add(ctx, r)
}

func (a Acting) Del(ctx context.Context, r *plugin.Request) error { return a.do(ctx, "DEL", r) }

func (a Acting) Check(ctx context.Context, r *plugin.Request) error { return a.do(ctx, "CHECK", r) }

func (a Acting) Status(ctx context.Context, r *plugin.Request) error { return a.do(ctx, "STATUS", r) }

func (a Acting) GC(ctx context.Context, r *plugin.Request, valid []types.GCAttachment) error {
	return a.do(ctx, fmt.Sprint("GC ", valid), r)
}

// Action is a function of an [Acting] plugin.
type Action = func(ctx context.Context, r *plugin.Request) error

// ScriptOf returns the configuration of a scripted plugin with its script's
// path.
func (s *Stage) ScriptOf(typ string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": %q, "script": %q}`, typ, s.Path("script-"+typ)))
}

// Fails returns a plugin that fails at a verb.
func Fails(verb string, err error) Acting {
	return Acting{On: map[string]Action{verb: func(context.Context, *plugin.Request) error { return err }}}
}

// ListOfTypes returns a list of plugins that are not executables.
func ListOfTypes(name string, types ...string) cni.Opt {
	return cni.WithConfListBytes(Conflist(name, "1.1.0", nil, types...))
}
