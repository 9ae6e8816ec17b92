//go:build unix

package scripted

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// delegating has the plugins to which a plugin with a configuration delegates, as they are
// written in the field:
//
//	"ipam": {"type": "host-local"}            runs with the plugin's own configuration
//	"delegate": {"hairpinMode": true}         is flannel's: a configuration, of bridge if it names no type
//	"delegates": [{"plugins": [{…}]}, {…}]    are Multus': networks, one after the other
type delegating struct {
	CNIVersion string
	Name       string
	IPAM       struct{ Type string }
	Delegate   map[string]any
	Delegates  []map[string]any
}

// delegate runs the delegates, which follow the scripts beside them. It returns the result
// of the last that makes interfaces, nil if there is none. An IPAM plugin has none: it is run
// with the configuration that names itself.
func delegate(stdin []byte) (result json.RawMessage, err error) {
	var d delegating
	if err := json.Unmarshal(stdin, &d); err != nil {
		return nil, fmt.Errorf("delegates: %w", err)
	}
	if d.IPAM.Type == filepath.Base(os.Args[0]) {
		return nil, nil
	}
	if d.IPAM.Type != "" {
		if _, err := runDelegate(d.IPAM.Type, stdin); err != nil {
			return nil, err
		}
	}
	if d.Delegate != nil {
		if result, err = d.runPlugin(d.flannels(), nil); err != nil {
			return nil, err
		}
	}
	for _, network := range d.Delegates {
		if result, err = runNetwork(network); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// flannels returns the configuration that flannel delegates.
func (d delegating) flannels() map[string]any {
	if d.Delegate["type"] == nil {
		d.Delegate["type"] = "bridge"
	}
	if d.Delegate["ipam"] == nil {
		d.Delegate["ipam"] = map[string]any{"type": "host-local"}
	}
	return d.Delegate
}

// runNetwork runs the plugins of a list, or the plugin that the network is.
func runNetwork(network map[string]any) (result json.RawMessage, err error) {
	version, _ := network["cniVersion"].(string)
	name, _ := network["name"].(string)
	of := delegating{CNIVersion: version, Name: name}
	plugins, ok := network["plugins"].([]any)
	if !ok {
		plugins = []any{network}
	}
	for _, plugin := range plugins {
		config, _ := plugin.(map[string]any)
		if result, err = of.runPlugin(config, result); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// runPlugin runs a plugin in the network, behind one with the result prev.
func (d delegating) runPlugin(config map[string]any, prev json.RawMessage) (json.RawMessage, error) {
	typ, _ := config["type"].(string)
	config["name"], config["cniVersion"] = d.Name, d.CNIVersion
	if len(prev) > 0 {
		config["prevResult"] = prev
	}
	stdin, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	return runDelegate(typ, stdin)
}

// runDelegate runs the plugin of a type in CNI_PATH, for the verb of this call.
func runDelegate(typ string, stdin []byte) (stdout []byte, err error) {
	err = fmt.Errorf("plugin %q is not in CNI_PATH", typ)
	for _, dir := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		path := filepath.Join(dir, typ)
		if _, serr := os.Stat(path); serr != nil {
			err = errors.Join(err, serr)
			continue
		}
		cmd := exec.Command(path)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), os.Stderr
		if stdout, err = cmd.Output(); err != nil {
			err = fmt.Errorf("plugin %q: %w: %s", typ, err, stdout)
		}
		return stdout, err
	}
	return nil, err
}
