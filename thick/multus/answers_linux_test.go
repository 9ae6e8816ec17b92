package multus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
)

// newCall returns a request of testdata with another body, as a client would send it.
func newCall(body string) []byte {
	return fmt.Appendf(nil, "POST /cni HTTP/1.1\r\nHost: dummy\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body)
}

// answers are requests to a daemon, and the file of testdata that has Multus' answer. They
// are sent in order.
func answers(t *testing.T, version string) []exchanged {
	t.Helper()
	read := func(name string) []byte { return readData(t, version, name+".request") }
	plain := func(method, path string) []byte {
		return []byte(method + " " + path + " HTTP/1.1\r\nHost: dummy\r\n\r\n")
	}
	return []exchanged{
		{"readiness", read("readiness"), nil},
		{"add", read("add"), nil},
		{"check", read("check"), nil},
		{"status", read("status"), nil},
		{"gc", read("gc"), nil},
		{"del", read("del"), nil},
		{"status-fails", read("status"), map[string]scripted.Action{"STATUS": fails(`{"cniVersion": "1.1.0", "code": 51, "msg": "limited", "details": "no pool"}`)}},
		{"add-fails", read("add"), map[string]scripted.Action{"ADD": fails(`{"cniVersion": "1.1.0", "code": 11, "msg": "later"}`)}},
		{"no-body", newCall(""), nil},
		{"no-command", newCall(`{"env":{},"config":"e30="}`), nil},
		{"unknown-command", newCall(`{"env":{"CNI_COMMAND":"FLY","CNI_CONTAINERID":"c","CNI_NETNS":"/n","CNI_ARGS":"K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;K8S_POD_UID=u"},"config":"e30="}`), nil},
		{"no-arguments", newCall(`{"env":{"CNI_COMMAND":"ADD","CNI_CONTAINERID":"c","CNI_NETNS":"/n"},"config":"e30="}`), nil},
		{"no-pod", newCall(`{"env":{"CNI_COMMAND":"ADD","CNI_CONTAINERID":"c","CNI_NETNS":"/n","CNI_ARGS":"A=1"},"config":"e30="}`), nil},
		{"no-namespace", newCall(`{"env":{"CNI_COMMAND":"DEL","CNI_CONTAINERID":"c","CNI_ARGS":"A=1"},"config":"e30="}`), nil},
		{"get", plain("GET", "/cni"), nil},
		{"readyz", plain("GET", "/readyz"), nil}, // later versions have it
		{"healthz", plain("GET", "/healthz"), nil},
		{"healthz-put", plain("PUT", "/healthz"), nil},
		{"unknown-path", plain("GET", "/nowhere"), nil},
	}
}

// exchanged is a request to a daemon whose plugin acts by a script.
type exchanged struct {
	name    string
	request []byte
	verbs   map[string]scripted.Action
}

// fails is the action of a plugin that prints an error object.
func fails(object string) scripted.Action { return scripted.Action{Stdout: &object, Exit: 1} }

var date = regexp.MustCompile(`(?m)^Date: .*\r$`)

// TestAnswers keeps the answers of Multus' daemon to the byte.
func TestAnswers(t *testing.T) {
	v := version(t, os.Getenv(daemonVar))
	newPod(t)
	c := newCluster(t)
	c.addPod(nil)
	d := startDaemon(t, c, "", nil)
	for _, e := range answers(t, v) {
		t.Run(e.name, func(t *testing.T) {
			d.script(t, e.verbs)
			answer := date.ReplaceAll(exchange(t, e.request), []byte("Date: now\r"))
			golden(t, v, e.name+".answer", bytes.ReplaceAll(answer, []byte(d.dir), []byte("/DIR")))
		})
	}
	expect.Same(t, "network status of the pod", compact(t, c.networkStatus(t)),
		`[{"name":"primary","interface":"eth0","ips":["10.9.0.2"],"mac":"02:00:00:00:00:01","default":true,"dns":{},"gateway":["10.9.0.1"]}]`)
}

// compact removes the indentation of JSON.
func compact(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	expect.NoError(t, json.Compact(&out, []byte(text)))
	return out.String()
}
