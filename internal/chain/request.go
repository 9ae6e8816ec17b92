package chain

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
)

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
// plugin configuration"), and more keys, depending on the verb.
func (c *Chain) request(position int, a *Attachment, more ...member) ([]byte, error) {
	p := c.List.Plugins[position]
	var added object
	for _, m := range []struct{ key, value string }{{"cniVersion", c.List.CNIVersion}, {"name", c.List.Name}} {
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, fmt.Errorf("request configuration: %s: %w", m.key, err)
		}
		added = append(added, member{m.key, value})
	}
	added = append(added, more...)
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

// prevResult returns a result as a key of a request; nil if there is none.
func prevResult(result Partial) []member {
	if result == nil {
		return nil
	}
	return []member{{"prevResult", json.RawMessage(result)}}
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
	return config.bytes()
}

// Match reserved keys in any case, as a plugin written in Go does.
func reserved(key string) bool {
	for _, own := range []string{"runtimeConfig", "prevResult", "capabilities"} {
		if strings.EqualFold(key, own) {
			return true
		}
	}
	const prefix = "cni.dev/"
	return len(key) >= len(prefix) && strings.EqualFold(key[:len(prefix)], prefix)
}

// mergeArgs merges the caller's values into {"cni": {…}} of the configuration's
// args. The caller's values win.
func mergeArgs(args json.RawMessage, given map[string]any) (json.RawMessage, error) {
	outer, err := objectOrEmpty(args)
	if err != nil {
		return nil, fmt.Errorf("args: %w", err)
	}
	cni, _ := outer.get("cni")
	inner, err := objectOrEmpty(cni)
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
	merged, err := inner.bytes()
	if err != nil {
		return nil, err
	}
	outer.set("cni", merged)
	return outer.bytes()
}

// WithoutAddresses returns a request without some of the addresses in its previous
// result:
//
//	{"prevResult": {"ips": [{"address": "10.1.0.2/24"}]}}
func WithoutAddresses(request []byte, taken []netip.Addr) ([]byte, error) {
	var outer, result map[string]json.RawMessage
	var ips []json.RawMessage
	if err := json.Unmarshal(request, &outer); err != nil || outer["prevResult"] == nil {
		return request, err
	}
	if err := json.Unmarshal(outer["prevResult"], &result); err != nil || result["ips"] == nil {
		return request, err
	}
	if err := json.Unmarshal(result["ips"], &ips); err != nil {
		return request, err
	}
	kept := slices.DeleteFunc(slices.Clone(ips), func(raw json.RawMessage) bool {
		var ip struct {
			Address netip.Prefix `json:"address"`
		}
		return json.Unmarshal(raw, &ip) == nil && slices.Contains(taken, ip.Address.Addr().Unmap())
	})
	if len(kept) == len(ips) {
		return request, nil
	}
	var err error
	if result["ips"], err = json.Marshal(kept); err != nil {
		return nil, err
	}
	if outer["prevResult"], err = json.Marshal(result); err != nil {
		return nil, err
	}
	return json.Marshal(outer)
}
