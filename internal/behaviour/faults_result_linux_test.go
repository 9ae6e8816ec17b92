package behaviour_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// noResults are outputs of a successful ADD that are not a result. %q is the
// configuration's version. The table of internal/chain has more.
var noResults = map[string]string{
	"unknown version":       `{"cniVersion":"9.9.9","ips":[{"version":"4","address":"10.0.0.1/24"}]}`,
	"version is a number":   `{"cniVersion":1,"ips":[{"version":"4","address":"10.0.0.1/24"}]}`,
	"version is no version": `{"cniVersion":"latest","ips":[]}`,
	"null":                  `null`,
	"nothing":               ``,
	"HTML":                  `<html><body>502 Bad Gateway</body></html>`,
	"two results":           `{"cniVersion":%q} {"cniVersion":%q}`,
	"cut off":               `{"cniVersion":%q,"ips":[{"addr`,
	"log line before":       "configuring…\n" + `{"cniVersion":%q}`,
	"null route":            `{"cniVersion":%q,"ip4":{"ip":"10.0.0.1/24","routes":[null]},"routes":[null]}`,
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
	data := expect.Value(os.ReadFile(s.Path("lines")))(s.T)
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
		for what, format := range noResults {
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
