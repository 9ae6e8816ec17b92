package interchange

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/invoke"
	process "github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/conflist"
)

// side selects the plugins that run in process. The others are executed.
type side struct {
	name string
	ours func(typ string) bool
}

func theirs() side { return side{"theirs", func(string) bool { return false }} }

// ours selects all built-in plugins.
func ours() side { return side{"ours", func(typ string) bool { return builtin.New()(typ) != nil }} }

// oursOnly selects the built-in plugins of these types.
func oursOnly(name string, types ...string) side {
	return side{name, func(typ string) bool { return slices.Contains(types, typ) && builtin.New()(typ) != nil }}
}

// runner runs libcni's plugins in a test.
type runner struct {
	version.PluginDecoder
	side  side
	host  *host
	batch thread.Batch
}

func (r *runner) FindInPath(typ string, _ []string) (string, error) {
	if typ == conflist.Flannel {
		return refplugins.Flannel(), nil
	}
	return filepath.Join(r.host.plugins, typ), nil
}

// ExecPlugin runs the plugin that would be found at path.
func (r *runner) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	typ := filepath.Base(path)
	if r.side.ours(typ) {
		return r.inProcess(ctx, typ, stdin, env)
	}
	// An executable needs the deferred work of earlier plugins.
	if err := r.batch.Flush(ctx); err != nil {
		return nil, err
	}
	if r.host.bus != "" {
		env = append(slices.Clone(env), firewalld.Variable+"="+r.host.bus)
	}
	out, err := invoke.Run(ctx, invoke.Request{Path: path, Env: env, Stdin: stdin, In: r.host.ns.Do}, invoke.Limits{})
	if exit := (*invoke.ExitError)(nil); errors.As(err, &exit) {
		return nil, printed(out, err)
	}
	return out.Stdout, err
}

// printed returns the error that a plugin printed, or err if it printed none.
func printed(out invoke.Output, err error) error {
	e := &types.Error{}
	if json.Unmarshal(out.Stdout, e) != nil || e.Code == 0 {
		return fmt.Errorf("%w: %s%s", err, out.Stdout, out.Stderr)
	}
	return e
}

func (r *runner) inProcess(ctx context.Context, typ string, stdin []byte, env []string) ([]byte, error) {
	ctx = contract.With(ctx, contract.Given{Batch: &r.batch, Bus: firewalld.Open(r.host.bus)})
	call := chain.Call{Verb: variable(env, "CNI_COMMAND"), Plugin: typ, Env: env, Stdin: stdin}
	delegate := func(ctx context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error) {
		out, err := r.ExecPlugin(ctx, filepath.Join(r.host.plugins, typ), config, withVariable(env, "CNI_COMMAND", verb))
		if err != nil || verb != "ADD" {
			return nil, err
		}
		result, err := create.CreateFromBytes(out)
		if err != nil {
			return nil, err
		}
		return types100.NewResultFromResult(result)
	}
	return process.InProcess(ctx, r.host.builtin(typ), call, r.host.ns, delegate)
}

func variable(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

func withVariable(env []string, name, value string) []string {
	rest := slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	return append(rest, name+"="+value)
}
