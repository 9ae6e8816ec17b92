package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
)

// exec is libcni's seam to the plugins for one verb, any but ADD, on one
// attachment. libcni is handed a stub for each plugin, with its position in it;
// what libcni adds to the stub (name, version, prevResult, runtimeConfig) is
// laid over the plugin's own configuration when it is run.
type exec struct {
	version.PluginDecoder

	run        Runner
	verb       string
	list       *libcni.NetworkConfigList // with stubs
	original   []*libcni.PluginConfig
	configArgs map[string]any

	prevResult json.RawMessage // DEL, CHECK: the one to use, rather than libcni's
	onEnd      func(ctx context.Context, verb string) error
	askAll     bool // DEL: go on after an error
	errs       []error
}

// positionKey marks a stub; the prefix is reserved to the runtime, so that no
// plugin's own key can be mistaken for it.
const positionKey = "cni.dev/position"

func (c *Chain) exec(a *Attachment, verb string) *exec {
	x := &exec{run: c.Run, verb: verb, original: c.List.Plugins, onEnd: c.OnEnd}
	if a != nil {
		x.configArgs = a.ConfigArgs
	}
	list := *c.List
	list.Plugins = make([]*libcni.PluginConfig, len(c.List.Plugins))
	for i, p := range c.List.Plugins {
		list.Plugins[i] = &libcni.PluginConfig{Network: p.Network, Bytes: stub(i, p)}
	}
	x.list = &list
	return x
}

// stubbed is what a stub says.
type stubbed struct {
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
	Position     int             `json:"cni.dev/position"` // positionKey
}

func stub(position int, p *libcni.PluginConfig) []byte {
	data, err := json.Marshal(stubbed{p.Network.Type, p.Network.Capabilities, position})
	if err != nil {
		panic(err) // strings, booleans and an int always encode
	}
	return data
}

func (x *exec) libcni(c *Chain) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(c.Path, c.CacheDir, x)
}

// FindInPath leaves the search to the Runner, which reports a missing plugin
// like any other failure of it.
func (x *exec) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

// ExecPlugin runs one plugin of the chain. environ ends with the CNI_*
// variables, which are all that is taken of it.
func (x *exec) ExecPlugin(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	position, request, err := x.request(stdin)
	if err != nil {
		return nil, err
	}
	call := Call{Verb: x.verb, Plugin: plugin, Stdin: request, Env: protocolEnv(environ)}
	out, err := x.run(ctx, call)
	if x.askAll {
		return x.gather(ctx, position, out.Stdout, err)
	}
	return out.Stdout, err
}

// end tells whoever wants to know that no plugin follows.
func (x *exec) end(ctx context.Context) error {
	if x.onEnd == nil {
		return nil
	}
	return x.onEnd(ctx, x.verb)
}

// gather keeps a DEL going: libcni hears of the errors only with the plugin
// that is asked last, when nobody is left behind it. It then keeps its cache.
func (x *exec) gather(ctx context.Context, position int, out []byte, err error) ([]byte, error) {
	if err != nil {
		x.errs = append(x.errs, err)
	}
	if position > 0 {
		return nil, nil
	}
	return out, errors.Join(append(x.errs, x.end(ctx))...)
}

// request derives the request configuration (CNI specification 1.1.0, section
// 3) from what libcni made of the stub.
func (x *exec) request(stdin []byte) (position int, request []byte, err error) {
	added, err := parseObject(stdin)
	if err != nil {
		return 0, nil, fmt.Errorf("request configuration: %w", err)
	}
	raw, ok := added.take(positionKey)
	if !ok {
		return 0, nil, fmt.Errorf("request configuration without %s", positionKey)
	}
	if position, err = strconv.Atoi(string(raw)); err != nil {
		return 0, nil, fmt.Errorf("request configuration: %s: %w", positionKey, err)
	}
	added.take("type")
	added.take("capabilities")
	if x.prevResult != nil {
		added.set("prevResult", x.prevResult)
	}
	request, err = derive(x.original[position].Bytes, added, x.configArgs)
	if err != nil && x.verb == "DEL" {
		// Its args are no object that the caller's could be written into, as the
		// ADD said, which it has not run for. The others have to be asked.
		request, err = derive(x.original[position].Bytes, added, nil)
	}
	return position, request, err
}

func protocolEnv(environ []string) []string {
	var env []string
	for _, name := range []string{"COMMAND", "CONTAINERID", "NETNS", "IFNAME", "ARGS", "PATH"} {
		prefix := "CNI_" + name + "="
		for _, kv := range environ {
			if strings.HasPrefix(kv, prefix) {
				env = append(env, kv)
			}
		}
	}
	return env
}
