package multus

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
)

// documented returns what docs/operating.md says of each key of Multus' configurations:
// honoured, refused or ignored.
func documented(t *testing.T) map[string]string {
	t.Helper()
	text := string(expect.Value(os.ReadFile("../../docs/operating.md"))(t))
	found := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (honoured|refused|ignored) \\|").FindAllStringSubmatch(text, -1) {
		found[row[1]] = row[2]
	}
	return found
}

// keysOfMultus returns the keys that Multus itself has, and the kinds of their values.
func keysOfMultus(t *testing.T) (keys map[string]map[string]string) {
	t.Helper()
	out := expect.Value(exec.Command(os.Getenv(parserVar), "keys").Output())(t)
	expect.NoError(t, json.Unmarshal(out, &keys))
	return keys
}

// valueOf returns a value of a key, which asks for something.
func valueOf(t *testing.T, key, kind string) any {
	t.Helper()
	switch key {
	case "cniVersion":
		return "1.1.0"
	case "name":
		return "multus-cni-network"
	case "readinessindicatorfile":
		return os.Args[0] // it exists
	case "daemonSocketDir":
		return runDir
	case "delegates":
		return []object{primaryNetwork}
	case "cni.dev/valid-attachments":
		return []object{}
	case "prevResult":
		return object{"cniVersion": "1.1.0"}
	}
	values := map[string]any{"string": "x", "bool": true, "int": 1, "slice": []string{"x"}, "map": object{"x": true}, "struct": object{"x": "y"}}
	if values[kind] == nil {
		t.Fatalf("%s: no value of kind %s", key, kind)
	}
	return values[kind]
}

// lines is a log that a daemon writes and a test reads.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// TestEachKeyOfMultusIsHonouredRefusedOrLogged: the documentation has all keys of Multus'
// configurations, and a daemon that gets them does what it says.
func TestEachKeyOfMultusIsHonouredRefusedOrLogged(t *testing.T) {
	kinds, treated := keysOfMultus(t)["configuration"], documented(t)
	expect.Same(t, "documented keys", slices.Sorted(maps.Keys(treated)), slices.Sorted(maps.Keys(kinds)))
	newPod(t)
	dir := t.TempDir()
	primary := filepath.Join(dir, "10-primary.conflist")
	expect.NoError(t, os.WriteFile(primary, []byte(rendered(t, primaryNetwork)), 0o600), os.Symlink(refplugins.Scripted(), filepath.Join(dir, "scripted")),
		scripted.Script{Log: filepath.Join(dir, "calls")}.Save(filepath.Join(dir, "scripted"+scripted.Beside)))
	o, log := newCluster(t).options(), &lines{}
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	startOurs(t, o, primary, dir)
	send := func(verb, key string) (status int, body []byte) {
		config := object{"cniVersion": "1.1.0", "name": "multus-cni-network", "type": "multus-shim"}
		config[key] = valueOf(t, key, kinds[key])
		env := object{"CNI_COMMAND": verb, "CNI_CONTAINERID": containerID, "CNI_NETNS": podNetNS, "CNI_IFNAME": "eth0", "CNI_ARGS": podArgs}
		answer := response(t, exchange(t, newCall(rendered(t, object{"env": env, "config": config}))))
		return answer.StatusCode, expect.Value(io.ReadAll(answer.Body))(t)
	}
	for _, key := range slices.Sorted(maps.Keys(kinds)) {
		t.Run(key, func(t *testing.T) {
			if treated[key] == "refused" {
				for _, verb := range []string{"ADD", "STATUS"} {
					status, body := send(verb, key)
					var said types.Error
					expect.NoError(t, strictJSON(body, &said))
					expect.Same(t, "status", status, http.StatusBadRequest)
					expect.Same(t, "code", said.Code, types.ErrInvalidNetworkConfig)
					expect.That(t, strings.HasPrefix(said.Details, key+" is not supported: "), "details %q", said.Details)
				}
				return
			}
			logged := map[string]int{"honoured": 0, "ignored": 1}[treated[key]]
			for range 2 {
				if status, body := send("STATUS", key); status != http.StatusOK {
					t.Errorf("status %d: %s", status, body)
				}
			}
			text := log.take()
			expect.Same(t, fmt.Sprintf("lines about the key in %q", text), strings.Count(text, "a key of the configuration has no effect"), logged)
		})
	}
}

// TestEachKeyOfAnElementIsKnown: what Multus reads of an element of the annotation, the
// documentation has.
func TestEachKeyOfAnElementIsKnown(t *testing.T) {
	text := string(expect.Value(os.ReadFile("../../docs/operating.md"))(t))
	_, text, found := strings.Cut(text, "| of a pod's networks | here |")
	expect.That(t, found, "docs/operating.md has no table of the keys")
	text, _, _ = strings.Cut(text, "\n\n")
	for key := range keysOfMultus(t)["element"] {
		expect.That(t, strings.Contains(text, "`"+key+"`"), "the table lacks %s", key)
	}
}
