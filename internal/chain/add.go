package chain

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// adding is an ADD under way (CNI specification 1.1.0, section 3, "Add an
// attachment"). It sends the plugins what libcni's AddNetworkList would, and
// says the same of one that fails.
type adding struct {
	c    *Chain
	a    *Attachment
	last json.RawMessage // the result so far, as it was printed
	prev json.RawMessage // the same, as the next plugin gets it
}

// run runs the plugins of a part, and caches the result behind the last one.
func (x *adding) run(ctx context.Context, part Part) (*types100.Result, error) {
	env := x.env()
	for i := part.From; i < part.To; i++ {
		err := x.add(ctx, i, env)
		if err == nil && i == part.To-1 && x.c.OnEnd != nil {
			err = x.c.OnEnd(ctx, "ADD")
		}
		if err != nil {
			return nil, fmt.Errorf("plugin %s failed (add): %w", describe(x.c.List.Plugins[i].Network), err)
		}
	}
	if part.To == len(x.c.List.Plugins) {
		if err := x.c.cache(x.a, x.prev); err != nil {
			return nil, fmt.Errorf("failed to set network %q cached result: %w", x.c.List.Name, err)
		}
	}
	r, err := create.CreateFromBytes(x.prev)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	result, err := types100.NewResultFromResult(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	return result, nil
}

// add runs one plugin.
func (x *adding) add(ctx context.Context, position int, env []string) error {
	request, err := x.request(position)
	if err != nil {
		return err
	}
	plugin := x.c.List.Plugins[position].Network.Type
	out, err := x.c.Run(ctx, Call{Verb: "ADD", Plugin: plugin, Stdin: request, Env: env})
	if err != nil {
		return err
	}
	last, prev, err := x.c.added(out)
	if err != nil {
		return &ResultError{Plugin: plugin, Err: err}
	}
	x.last, x.prev = last, prev
	if x.c.OnResult == nil {
		return nil
	}
	return x.c.OnResult(x.last)
}

// added takes the result of a plugin that succeeded. What the next one gets has,
// as with libcni, only what the result's version knows.
func (c *Chain) added(out Output) (last, prev json.RawMessage, err error) {
	if out.Valid {
		return out.Stdout, out.Stdout, nil
	}
	if err := ValidateResult(out.Stdout, c.List.CNIVersion); err != nil {
		return nil, nil, err
	}
	last = withVersion(out.Stdout, c.List.CNIVersion)
	known, err := create.CreateFromBytes(last)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	prev, err = json.Marshal(known)
	return last, prev, err
}

// request is the configuration of a plugin with what the runtime adds.
func (x *adding) request(position int) ([]byte, error) {
	list, p := x.c.List, x.c.List.Plugins[position]
	var added object
	for _, m := range []struct{ key, value string }{{"cniVersion", list.CNIVersion}, {"name", list.Name}} {
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, fmt.Errorf("request configuration: %s: %w", m.key, err)
		}
		added = append(added, member{m.key, value})
	}
	if x.prev != nil {
		added = append(added, member{"prevResult", x.prev})
	}
	given := map[string]any{}
	for capability, declared := range p.Network.Capabilities {
		if value, ok := x.a.CapabilityArgs[capability]; ok && declared {
			given[capability] = value
		}
	}
	if len(given) > 0 {
		value, err := json.Marshal(given)
		if err != nil {
			return nil, fmt.Errorf("request configuration: runtimeConfig: %w", err)
		}
		added = append(added, member{"runtimeConfig", value})
	}
	return derive(p.Bytes, added, x.a.ConfigArgs)
}

// env are the parameters of the protocol (section 2, "Parameters").
func (x *adding) env() []string {
	args := make([]string, len(x.a.Args))
	for i, arg := range x.a.Args {
		args[i] = arg[0] + "=" + arg[1]
	}
	return []string{
		"CNI_COMMAND=ADD",
		"CNI_CONTAINERID=" + x.a.ContainerID,
		"CNI_NETNS=" + x.a.NetNS,
		"CNI_IFNAME=" + x.a.IfName,
		"CNI_ARGS=" + strings.Join(args, ";"),
		"CNI_PATH=" + strings.Join(x.c.Path, string(os.PathListSeparator)),
	}
}

// describe names a plugin as libcni does.
func describe(p *types.PluginConf) string {
	if p.Name == "" {
		return fmt.Sprintf("type=%q", p.Type)
	}
	return fmt.Sprintf("type=%q name=%q", p.Type, p.Name)
}
