package behaviour_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

var allVersions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// noResults are outputs of a successful ADD that are not a result of the
// version. %q is the version.
func noResults(version string) map[string]string {
	const c1 = `"interfaces":[{"name":"eth0","sandbox":"/x"}]`
	outputs := map[string]string{
		"unknown version":       `{"cniVersion":"9.9.9","ips":[{"version":"4","address":"10.0.0.1/24"}]}`,
		"version is a number":   `{"cniVersion":1,"ips":[{"version":"4","address":"10.0.0.1/24"}]}`,
		"version is no version": `{"cniVersion":"latest","ips":[]}`,
		"null":                  `null`,
		"nothing":               ``,
		"white space":           " \n",
		"array":                 `[]`,
		"number":                `42`,
		"string":                `"ok"`,
		"HTML":                  `<html><body>502 Bad Gateway</body></html>`,
		"two results":           `{"cniVersion":%q} {"cniVersion":%q}`,
		"cut off":               `{"cniVersion":%q,"ips":[{"addr`,
		"log line before":       "configuring…\n" + `{"cniVersion":%q}`,
	}
	lists := map[string]string{
		"index == length":        `{"cniVersion":%q,` + c1 + `,"ips":[{"version":"4","address":"10.0.0.1/24","interface":1}]}`,
		"index without any":      `{"cniVersion":%q,"ips":[{"version":"4","address":"10.0.0.1/24","interface":0}]}`,
		"negative index":         `{"cniVersion":%q,` + c1 + `,"ips":[{"version":"4","address":"10.0.0.1/24","interface":-1}]}`,
		"huge index":             `{"cniVersion":%q,` + c1 + `,"ips":[{"version":"4","address":"10.0.0.1/24","interface":99999999999999999999999}]}`,
		"index that is a float":  `{"cniVersion":%q,` + c1 + `,"ips":[{"version":"4","address":"10.0.0.1/24","interface":1e99}]}`,
		"null interface":         `{"cniVersion":%q,"interfaces":[null],"ips":[]}`,
		"null address":           `{"cniVersion":%q,"ips":[null]}`,
		"null route":             `{"cniVersion":%q,"ips":[],"routes":[null]}`,
		"no address":             `{"cniVersion":%q,"ips":[{"version":"4","gateway":"10.0.0.1"}]}`,
		"address that is none":   `{"cniVersion":%q,"ips":[{"version":"4","address":"10.0.0/24"}]}`,
		"interfaces is a string": `{"cniVersion":%q,"interfaces":"eth0"}`,
	}
	if version == "0.1.0" || version == "0.2.0" { // these versions have one address of each family
		lists = map[string]string{
			"no address":           `{"cniVersion":%q,"ip4":{"gateway":"10.0.0.1"}}`,
			"null address":         `{"cniVersion":%q,"ip6":{"ip":null}}`,
			"address that is none": `{"cniVersion":%q,"ip4":{"ip":"10.0.0/24"}}`,
			"null route":           `{"cniVersion":%q,"ip4":{"ip":"10.0.0.1/24","routes":[null]}}`,
			"a list":               `{"cniVersion":%q,"ip4":[]}`,
		}
	}
	maps.Copy(outputs, lists)
	return outputs
}

// shellPlugins are plugins that cost a tenth of the test binary. They print the
// file <type>.out at ADD, and append "ADD p" to the file lines.
func (s *stage) shellPlugins(types ...string) {
	s.T.Helper()
	for _, typ := range types {
		path := s.Write("bin/"+typ, fmt.Sprintf("#!/bin/sh\necho \"$CNI_COMMAND %s\" >> %s\n"+
			"[ $CNI_COMMAND != ADD ] || exec cat \"$0.out\"\n", typ, s.Path("lines")))
		expect.NoError(s.T, os.Chmod(path, 0o755))
	}
}

func (s *stage) takeLines() string {
	s.T.Helper()
	data, err := os.ReadFile(s.Path("lines"))
	expect.NoError(s.T, err)
	expect.NoError(s.T, os.Remove(s.Path("lines")))
	return strings.ReplaceAll(strings.TrimSpace(string(data)), "\n", ", ")
}

func TestFault_F10_AResultThatIsNoneIsATypedErrorAndRolledBack(t *testing.T) {
	s := newStage(t)
	s.shellPlugins("p", "q")
	calls := map[string]string{"p": "ADD p, DEL q, DEL p", "q": "ADD p, ADD q, DEL q, DEL p"}
	path := s.Container("c1")
	for _, version := range []string{"0.2.0", "0.4.0", "1.1.0"} { // one of each form
		r := s.Runtime(cni.WithConfListBytes(testhost.Conflist("net", version, nil, "p", "q")))
		for what, format := range noResults(version) {
			bad := []string{"p", "q"}[len(what)%2]
			s.Write("bin/p.out", "{}")
			s.Write("bin/"+bad+".out", strings.ReplaceAll(format, "%q", fmt.Sprintf("%q", version)))
			_, err := r.Setup(t.Context(), "c1", path)
			where := fmt.Sprintf("version %s, plugin %s, %s", version, bad, what)
			if !errors.Is(err, cni.ErrInvalidResult) {
				t.Errorf("%s: error %v, want one that is %q", where, err, cni.ErrInvalidResult)
			} else if e := testhost.AsError(t, err); e.Plugin != bad || strings.Contains(err.Error(), "panic") {
				t.Errorf("%s: error of plugin %q: %v", where, e.Plugin, err)
			}
			expect.Same(t, where+": calls", s.takeLines(), calls[bad])
			expect.Same(t, where+": cache", s.Cached(), []string{})
		}
	}
}

func TestFault_F10_AResultWithoutAVersionIsOfTheConfigurations(t *testing.T) {
	s := newStage(t)
	for _, version := range allVersions {
		r := s.Runtime(cni.WithConfListBytes(s.Network("net-"+version, version, "p", "q")))
		out := `{"ips":[{"version":"4","address":"10.0.0.1/24"}]}`
		if version == "0.1.0" || version == "0.2.0" {
			out = `{"ip4":{"ip":"10.0.0.1/24"}}`
		}
		s.On("p", "ADD", scripted.Action{Stdout: &out})
		s.On("q", "ADD", scripted.Action{})
		res, err := r.Setup(t.Context(), "c1", s.Container("c-"+version))
		if err != nil {
			t.Errorf("version %s: %v", version, err)
			continue
		}
		expect.Same(t, "address with version "+version, res.IPv4().Prefix.String(), "10.0.0.1/24")
		s.RemoveNetNS("c-" + version)
		expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	}
}

func TestFault_F10_AnErrorInsteadOfAResultIsThePlugins(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	path := s.Container("c1")
	for what, tt := range map[string]struct {
		action scripted.Action
		text   string
	}{
		"exit without a word":     {scripted.Action{Exit: 1, Stdout: new(string)}, "exit status 1"},
		"exit with garbage":       {scripted.Action{Exit: 2, Stdout: ref("<html>")}, "what it printed is no error: \"<html>\""},
		"exit with an empty one":  {scripted.Action{Exit: 1, Stdout: ref("{}")}, "what it printed is no error: \"{}\""},
		"exit with null":          {scripted.Action{Exit: 1, Stdout: ref("null")}, "what it printed is no error: \"null\""},
		"exit with a huge number": {scripted.Action{Exit: 1, Stdout: ref(`{"code":1e99,"msg":"x"}`)}, "what it printed is no error"},
		"killed":                  {scripted.Action{Signal: 15}, "killed by signal 15"},
	} {
		s.On("p", "ADD", tt.action)
		_, err := r.Setup(t.Context(), "c1", path)
		if e := testhost.AsError(t, err); e.Plugin != "p" || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %q in it", what, err, tt.text)
		}
		expect.Same(t, what+": calls", s.Took(), []string{"ADD p c1/eth0", "DEL p c1/eth0"})
	}
}

func ref(s string) *string { return &s }

func TestFault_F19_InterfacesOfOneNameStayApart(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("one", "1.0.0", "p")), cni.WithConfListBytes(s.Network("two", "1.0.0", "q")))
	result := func(address string) scripted.Action {
		return scripted.Action{Stdout: ref(fmt.Sprintf(`{"cniVersion":"1.0.0",
			"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:99"},{"name":"eth0","sandbox":"/x"}],
			"ips":[{"interface":1,"address":%q}]}`, address))}
	}
	s.On("p", "ADD", result("10.0.0.1/24"))
	s.On("q", "ADD", result("10.0.1.1/24"))
	res, err := r.Setup(t.Context(), "c1", s.Container("c1"))
	expect.NoError(t, err)
	var got []string
	for _, n := range res.Networks {
		for _, i := range n.Interfaces {
			got = append(got, fmt.Sprint(i.Network, " ", i.Name, " ", i.Sandbox, " ", i.Mac, " ", len(i.Addresses)))
		}
	}
	expect.Same(t, "interfaces", got, []string{"one eth0  02:00:00:00:00:99 0", "one eth0 /x  1", "two eth0  02:00:00:00:00:99 0", "two eth0 /x  1"})
	expect.Same(t, "addresses in the map", len(res.Interfaces["eth0"].IPConfigs), 2)
	expect.Same(t, "sandbox in the map", res.Interfaces["eth0"].Sandbox, "/x")
}
