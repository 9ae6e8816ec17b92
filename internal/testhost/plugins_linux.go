package testhost

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
)

// Plugin makes scripted plugins of these types, which log their calls and
// follow the script. It returns the script's path.
func (h *Host) Plugin(script scripted.Script, types ...string) string {
	h.T.Helper()
	expect.NoError(h.T, os.MkdirAll(h.Path("bin"), 0o755))
	for _, typ := range types {
		if err := os.Symlink(refplugins.Scripted(), h.Path("bin", typ)); err != nil && !os.IsExist(err) {
			h.T.Fatal(err)
		}
	}
	script.Log = h.Path("calls")
	path := h.Path("script-" + strings.Join(types, "-"))
	expect.NoError(h.T, script.Save(path))
	return path
}

// Calls returns all calls of scripted plugins.
func (h *Host) Calls() []scripted.Call {
	h.T.Helper()
	calls, err := scripted.Calls(h.Path("calls"))
	expect.NoError(h.T, err)
	return calls
}

// TakeCalls returns the calls since the last TakeCalls.
func (h *Host) TakeCalls() []scripted.Call {
	h.T.Helper()
	calls := h.Calls()
	if err := os.Remove(h.Path("calls")); err != nil && !os.IsNotExist(err) {
		h.T.Fatal(err)
	}
	return calls
}

// Verbs renders calls as "ADD a", "DEL a": verb and plugin type in order.
func Verbs(calls []scripted.Call) []string {
	var s []string
	for _, c := range calls {
		s = append(s, c.Verb+" "+c.Type)
	}
	return s
}

// ScriptedList returns the configuration of a network of plugins that all
// follow the script.
func (h *Host) ScriptedList(name, version string, script scripted.Script, types ...string) []byte {
	h.T.Helper()
	path := h.Plugin(script, types...)
	scripts := map[string]string{}
	for _, typ := range types {
		scripts[typ] = path
	}
	return Conflist(name, version, scripts, types...)
}

// Answering returns a script that prints answer for a verb and exits with code.
func Answering(verb, answer string, code int) scripted.Script {
	return scripted.Script{Verbs: map[string]scripted.Action{verb: {Stdout: &answer, Exit: code}}}
}

// Refusing returns a script that fails a verb with a plugin's error.
func Refusing(verb, msg string) scripted.Script {
	return Answering(verb, `{"cniVersion": "1.0.0", "code": 100, "msg": "`+msg+`"}`, 1)
}

// Conflist makes a list of scripted plugins: each of types with its script.
func Conflist(name, version string, scripts map[string]string, types ...string) []byte {
	var plugins []map[string]any
	for _, typ := range types {
		plugins = append(plugins, map[string]any{
			"type": typ, "script": scripts[typ],
			"capabilities": map[string]bool{"portMappings": true, "bandwidth": true, "dns": true, "ipRanges": true},
		})
	}
	data, err := json.Marshal(map[string]any{"cniVersion": version, "name": name, "plugins": plugins})
	if err != nil {
		panic(fmt.Sprint("a map of strings always encodes: ", err))
	}
	return data
}
