package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
)

func TestMain(m *testing.M) { os.Exit(cnitest.Main(m)) }

var update = flag.Bool("update", false, "write the transcripts in testdata anew")

// pods has the address pool in the host's directory, so that tests do not share it.
const pods = `{"cniVersion": "1.1.0", "name": "pods", "plugins": [
	{"type": "bridge", "bridge": "pods0", "isDefaultGateway": true, "ipMasq": true,
	 "ipam": {"type": "host-local", "dataDir": "DIR/ipam", "ranges": [[{"subnet": "10.1.0.0/24"}]]}},
	{"type": "portmap", "capabilities": {"portMappings": true}}]}`

// session is what a person does with the program, and sees of it.
type session struct {
	t        *testing.T
	host     *cnitest.TestHost
	env      map[string]string
	terminal bool
	ticks    chan time.Time
	text     strings.Builder
}

func newSession(t *testing.T) *session {
	host := cnitest.Host(t)
	host.WriteConf("10-pods.conflist", strings.ReplaceAll(pods, "DIR", host.Dir))
	s := &session{t: t, host: host, env: map[string]string{"NETCONFPATH": host.ConfDir, "CNI_PATH": host.PluginDir}}
	t.Cleanup(s.removeAll)
	return s
}

// removeAll removes the containers that are left, so that the host can be audited.
func (s *session) removeAll() {
	all, err := s.host.Runtime().Attachments()
	if err != nil {
		s.t.Error(err)
	}
	for _, at := range all {
		if err := s.host.Runtime(cni.WithoutReaping()).Remove(context.Background(), at.ContainerID, ""); err != nil {
			s.t.Error(err)
		}
	}
}

// run runs the program on the host of the session.
func (s *session) run(args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	return s.program(append(args, "--state-dir", s.host.StateDir, "--host-netns", s.host.NetNS)...)
}

// program runs the program with these arguments alone.
func (s *session) program(args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	streams := Streams{
		In: strings.NewReader(""), Out: &out, Err: &errs,
		Getenv: func(name string) string { return s.env[name] },
		Now:    func() time.Time { return time.Now().Add(5 * time.Minute) },
		Columns: func(io.Writer) int {
			if s.terminal {
				return 200
			}
			return 0
		},
		Seconds: func() (<-chan time.Time, func()) { return s.ticks, func() {} },
	}
	code = Run(s.t.Context(), args, streams)
	return out.String(), errs.String(), code
}

// want runs the program, and ends the test unless it exits so.
func (s *session) want(code int, args ...string) (stdout, stderr string) {
	s.t.Helper()
	stdout, stderr, got := s.run(args...)
	if got != code {
		s.t.Fatalf("embedcni %s: exit code %d, not %d\n%s%s", strings.Join(args, " "), got, code, stdout, stderr)
	}
	return stdout, stderr
}

// say writes the run of a program into the transcript.
func (s *session) say(line string) {
	s.t.Helper()
	stdout, stderr, code := s.run(strings.Fields(line)...)
	fmt.Fprintf(&s.text, "$ embedcni %s\n%s", line, stdout)
	if stderr != "" {
		fmt.Fprintf(&s.text, "[stderr]\n%s", stderr)
	}
	if code != 0 {
		fmt.Fprintf(&s.text, "[exit code %d]\n", code)
	}
	s.text.WriteByte('\n')
}

// note writes what somebody else does into the transcript.
func (s *session) note(format string, args ...any) { fmt.Fprintf(&s.text, "# "+format+"\n\n", args...) }

// What differs from run to run, and a word for it.
var variable = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(regexp.QuoteMeta(os.TempDir()) + `/Test\w+/\d+/netns`), "/run/netns/container"},
	{regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}`), "aa:bb:cc:dd:ee:ff"},
	{regexp.MustCompile(`veth[0-9a-f]{8}`), "veth01234567"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "2026-01-02T03:04:05Z"},
}

// compare compares the transcript with the one in testdata.
func (s *session) compare(name string) {
	s.t.Helper()
	got := strings.ReplaceAll(s.text.String(), s.host.Dir+"/", "/host/")
	for _, v := range variable {
		got = v.pattern.ReplaceAllString(got, v.word)
	}
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	if got != string(want) {
		s.t.Errorf("the session is not that of %s (-update writes it anew):\n%s", file, got)
	}
}

// hostEnd returns the name of the host's end of a container's interface.
func (s *session) hostEnd(id string) string {
	s.t.Helper()
	var shown showView
	stdout, _ := s.want(exitOK, "show", id, "--json")
	if err := json.Unmarshal([]byte(stdout), &shown); err != nil {
		s.t.Fatal(err)
	}
	for _, i := range shown.Interfaces {
		if i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") {
			return i.Name
		}
	}
	s.t.Fatalf("container %s has no interface on the host: %s", id, stdout)
	return ""
}
