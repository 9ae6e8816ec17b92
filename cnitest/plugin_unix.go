//go:build unix

package cnitest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
)

// actAsPlugin never returns if a runtime has started this process as a plugin.
func actAsPlugin() {
	if scripted.IsPlugin() {
		scripted.Main()
	}
}

// Plugin installs an executable plugin that follows the script. It is this test binary,
// which Main makes a plugin. Another call replaces the script, also of plugins that are
// in use. Without an Answer for a verb the plugin succeeds: ADD returns the previous
// result, or one with the interface of the request and an address, neither of which
// exists.
func (h *TestHost) Plugin(typ string, s Script) {
	h.t.Helper()
	path := filepath.Join(h.PluginDir, typ)
	script := scripted.Script{Log: filepath.Join(h.Dir, "calls"), Verbs: map[string]scripted.Action{}}
	for verb, answer := range s {
		script.Verbs[verb] = answer.action()
	}
	exe, err := os.Executable()
	if err == nil {
		err = script.Save(path + scripted.Beside)
	}
	if err == nil {
		err = os.Symlink(exe, path)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		h.t.Fatalf("install plugin %q: %v", typ, err)
	}
}

func (a Answer) action() scripted.Action {
	act := scripted.Action{Stderr: a.Stderr, Hang: a.Hang}
	if a.Killed {
		act.Signal = int(unix.SIGKILL)
	}
	if a.Result != "" {
		act.Stdout = &a.Result
	}
	if a.Err != nil {
		data, err := json.Marshal(a.Err)
		if err != nil {
			data = []byte(fmt.Sprintf(`{"code": 999, "msg": %q}`, err))
		}
		text := string(data)
		act.Stdout, act.Exit = &text, 1
	}
	return act
}

// Calls returns the calls of the plugins that Plugin has installed, in order.
func (h *TestHost) Calls() []PluginCall {
	h.t.Helper()
	var all []PluginCall
	for _, c := range expect.Value(scripted.Calls(filepath.Join(h.Dir, "calls")))(h.t) {
		all = append(all, PluginCall{
			Verb: c.Verb, Type: c.Type, ContainerID: c.ContainerID, NetNS: c.NetNS, IfName: c.IfName, Args: c.Args, Stdin: c.Stdin,
		})
	}
	return all
}
