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
	return expect.Value(scripted.Calls(h.Path("calls")))(h.T)
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
