package chain

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// Call is the call of one plugin for one verb.
type Call struct {
	Verb   string   // CNI_COMMAND: ADD, DEL, CHECK, STATUS, GC
	Plugin string   // the type
	Stdin  []byte   // the request configuration
	Env    []string // the CNI_* variables
	Parsed *Parsed  // parts of Stdin; nil if they are not known
}

// Parsed has the parts of a request that every in-process plugin would decode from it.
type Parsed struct {
	Name, CNIVersion string
	Prev             func() (*types100.Result, error) // shared by the plugins of a chain
}

// Parse reads the parts of a request.
func Parse(request []byte) (*Parsed, error) {
	var conf struct {
		Name       string          `json:"name"`
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	err := json.Unmarshal(request, &conf)
	return &Parsed{conf.Name, conf.CNIVersion, func() (*types100.Result, error) {
		return DecodeGiven(conf.CNIVersion, conf.PrevResult)
	}}, err
}

// previous is the result that requests contain.
type previous struct {
	encoded Partial
	decoded func() (*types100.Result, error)
}

func (c *Chain) previous(result Partial) previous {
	return previous{result, sync.OnceValues(func() (*types100.Result, error) {
		return DecodeGiven(c.List.CNIVersion, json.RawMessage(result))
	})}
}

// recorded is previous for the result of an ADD, as CHECK and DEL get it: in the version of
// the configuration, as from libcni, since plugins read it as that. A result of that version
// stays as it was printed, and so does one that cannot be converted.
func (c *Chain) recorded(result Partial) previous {
	var printed struct {
		CNIVersion string `json:"cniVersion"`
	}
	err := json.Unmarshal(result, &printed)
	if err == nil && printed.CNIVersion != "" && printed.CNIVersion != c.List.CNIVersion {
		if converted, err := Previous(result, c.List.CNIVersion); err == nil {
			result = converted
		}
	}
	return c.previous(result)
}

// call returns the call of a plugin of the list. Its request has more keys, depending on
// the verb.
func (c *Chain) call(verb string, position int, a *Attachment, prev previous, more ...member) (Call, error) {
	if prev.encoded != nil {
		more = append(more, member{"prevResult", json.RawMessage(prev.encoded)})
	}
	request, err := c.request(position, a, more...)
	return Call{
		Verb: verb, Plugin: c.List.Plugins[position].Network.Type, Stdin: request, Env: c.env(verb, a),
		Parsed: &Parsed{c.List.Name, c.List.CNIVersion, prev.decoded},
	}, err
}

// env returns the parameters of the protocol (CNI specification 1.1.0, section
// 2, "Parameters").
func (c *Chain) env(verb string, a *Attachment) []string {
	return []string{
		"CNI_COMMAND=" + verb,
		"CNI_CONTAINERID=" + a.ContainerID,
		"CNI_NETNS=" + a.NetNS,
		"CNI_IFNAME=" + a.IfName,
		"CNI_ARGS=" + a.CNIArgs(),
		"CNI_PATH=" + strings.Join(c.Path, string(os.PathListSeparator)),
	}
}

// CNIArgs returns the arguments as they are in CNI_ARGS: "K=V;K=V".
func (a *Attachment) CNIArgs() string {
	args := make([]string, len(a.Args))
	for i, arg := range a.Args {
		args[i] = arg[0] + "=" + arg[1]
	}
	return strings.Join(args, ";")
}

// Request returns the request configuration of a plugin of the list, without a
// result.
func (c *Chain) Request(position int, a *Attachment) ([]byte, error) { return c.request(position, a) }

// request returns the request configuration of a plugin: its own configuration,
// the runtime's additions (section 3, "Deriving request configuration from
// plugin configuration"), and more keys.
func (c *Chain) request(position int, a *Attachment, more ...member) ([]byte, error) {
	p := c.List.Plugins[position]
	added := append(object{{"cniVersion", quoted(c.List.CNIVersion)}, {"name", quoted(c.List.Name)}}, more...)
	given := map[string]any{}
	for capability, declared := range p.Network.Capabilities {
		if value, ok := a.CapabilityArgs[capability]; ok && declared {
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
	return derive(p.Bytes, added, a.ConfigArgs)
}

// derive adds the runtime's keys to a plugin's configuration. It first drops the
// keys that only the runtime may write, so that a file cannot forge a result or
// a capability.
func derive(plugin []byte, added object, configArgs map[string]any) ([]byte, error) {
	config, err := parseObject(plugin)
	if err != nil {
		return nil, fmt.Errorf("plugin configuration: %w", err)
	}
	config = slices.DeleteFunc(config, func(m member) bool { return reserved(m.key) })
	if len(configArgs) > 0 {
		args, _ := config.get("args")
		merged, err := mergeArgs(args, configArgs)
		if err != nil {
			return nil, err
		}
		config.set("args", merged)
	}
	for _, m := range added {
		config.set(m.key, m.value)
	}
	return config.bytes(), nil
}

// Match reserved keys in any case, as a plugin written in Go does.
func reserved(key string) bool {
	const prefix = "cni.dev/"
	return slices.ContainsFunc([]string{"runtimeConfig", "prevResult", "capabilities"}, func(own string) bool { return strings.EqualFold(key, own) }) ||
		len(key) >= len(prefix) && strings.EqualFold(key[:len(prefix)], prefix)
}

// mergeArgs merges the caller's values into {"cni": {…}} of the configuration's
// args. The caller's values win.
func mergeArgs(args json.RawMessage, given map[string]any) (json.RawMessage, error) {
	outer, err := parseObject(args)
	if err != nil {
		return nil, fmt.Errorf("args: %w", err)
	}
	cni, _ := outer.get("cni")
	inner, err := parseObject(cni)
	if err != nil {
		return nil, fmt.Errorf("args.cni: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		value, err := json.Marshal(given[key])
		if err != nil {
			return nil, fmt.Errorf("args.cni.%s: %w", key, err)
		}
		inner.set(key, value)
	}
	outer.set("cni", inner.bytes())
	return outer.bytes(), nil
}

// WithoutAddresses returns a call without some of the addresses in its previous
// result:
//
//	{"prevResult": {"ips": [{"address": "10.1.0.2/24"}]}}
func (c Call) WithoutAddresses(taken []netip.Addr) (Call, error) {
	var outer, result map[string]json.RawMessage
	var ips []json.RawMessage
	if err := json.Unmarshal(c.Stdin, &outer); err != nil || outer["prevResult"] == nil {
		return c, err
	}
	if err := json.Unmarshal(outer["prevResult"], &result); err != nil || result["ips"] == nil {
		return c, err
	}
	if err := json.Unmarshal(result["ips"], &ips); err != nil {
		return c, err
	}
	kept := slices.DeleteFunc(slices.Clone(ips), func(raw json.RawMessage) bool {
		var ip struct {
			Address netip.Prefix `json:"address"`
		}
		return json.Unmarshal(raw, &ip) == nil && slices.Contains(taken, ip.Address.Addr().Unmap())
	})
	if len(kept) == len(ips) {
		return c, nil
	}
	var errs [3]error
	result["ips"], errs[0] = json.Marshal(kept)
	outer["prevResult"], errs[1] = json.Marshal(result)
	c.Stdin, errs[2] = json.Marshal(outer)
	c.Parsed = nil
	return c, joined.Errors(errs[:]...)
}
