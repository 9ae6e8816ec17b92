package cli

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

// TestEnvironmentOfCnitool attaches a container with cnitool's environment, and finds it as
// cnitool's.
func TestEnvironmentOfCnitool(t *testing.T) {
	s := newSession(t)
	s.host.WriteConf("20-vpc.conflist", `{"cniVersion": "1.0.0", "name": "vpc", "plugins": [{"type": "cloud", "capabilities": {"mac": true}}]}`)
	s.host.Plugin("cloud", cnitest.Script{})
	s.env["CNI_IFNAME"], s.env["CNI_ARGS"], s.env["CAP_ARGS"] = "net7", "K=v;IgnoreUnknown=1", `{"mac": "c2:11:22:33:44:55"}`
	path := cnitest.Container(t)
	stdout, _ := s.want(exitOK, "add", "vpc", path)
	var result struct{ CNIVersion string }
	if err := json.Unmarshal([]byte(stdout), &result); err != nil || result.CNIVersion != "1.0.0" {
		t.Errorf("the result is of version %q: %v", result.CNIVersion, err)
	}
	s.want(exitOK, "check", "vpc", path)
	s.want(exitOK, "del", "vpc", path)

	sum := sha512.Sum512([]byte(path))
	var calls []string
	for _, c := range s.host.Calls() {
		if c.Verb == "STATUS" {
			continue
		}
		var conf struct {
			RuntimeConfig map[string]any `json:"runtimeConfig"`
		}
		if err := json.Unmarshal(c.Stdin, &conf); err != nil {
			t.Error(err)
		}
		calls = append(calls, fmt.Sprint(c.Verb, c.ContainerID == fmt.Sprintf("cnitool-%x", sum[:10]), c.NetNS == path, c.IfName, c.Args, conf.RuntimeConfig))
	}
	request := "true truenet7IgnoreUnknown=1;K=vmap[mac:c2:11:22:33:44:55]" // the arguments are in order
	want := []string{"ADD" + request, "CHECK" + request, "DEL" + request}
	if !slices.Equal(calls, want) {
		t.Errorf("the plugin was called as\n%s\nnot\n%s", strings.Join(calls, "\n"), strings.Join(want, "\n"))
	}
}

// TestPortsOfCnitool forwards a port as cnitool's users write it. It is on record, so that no
// other container gets it.
func TestPortsOfCnitool(t *testing.T) {
	s := newSession(t)
	s.env["CAP_ARGS"] = `{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}`
	s.want(exitOK, "add", "pods", cnitest.Container(t), "--id", "web-1")
	if stdout, _ := s.want(exitOK, "list"); !strings.Contains(stdout, " 8080->80/tcp ") {
		t.Errorf("list prints\n%s", stdout)
	}
	_, stderr := s.want(exitFailed, "add", "pods", cnitest.Container(t), "--id", "web-2")
	if !strings.Contains(stderr, "web-1") {
		t.Errorf("the error does not say who has the port: %s", stderr)
	}
}

// TestDelOfCnitools detaches a container that libcni has attached, as cnitool does.
func TestDelOfCnitools(t *testing.T) {
	s := newSession(t)
	s.host.WriteConf("20-vpc.conflist", cloud)
	s.host.Plugin("cloud", cnitest.Script{})
	path := cnitest.Container(t)
	sum := sha512.Sum512([]byte(path))
	list, err := libcni.LoadNetworkConf(s.host.ConfDir, "vpc")
	if err != nil {
		t.Fatal(err)
	}
	tool := libcni.NewCNIConfigWithCacheDir([]string{s.host.PluginDir}, s.host.StateDir, nil)
	rt := &libcni.RuntimeConf{ContainerID: fmt.Sprintf("cnitool-%x", sum[:10]), NetNS: path, IfName: "eth0"}
	if _, err := tool.AddNetworkList(t.Context(), list, rt); err != nil {
		t.Fatal(err)
	}
	s.want(exitOK, "del", "vpc", path)
	var verbs []string
	for _, c := range s.host.Calls() {
		verbs = append(verbs, c.Verb)
	}
	if want := []string{"ADD", "DEL"}; !slices.Equal(verbs, want) {
		t.Errorf("the plugin was asked for %v, not %v", verbs, want)
	}
}

// TestCompletion is about what a shell offers behind a command.
func TestCompletion(t *testing.T) {
	s := newSession(t)
	for _, id := range []string{"web-1", "web-2"} {
		s.want(exitOK, "add", "pods", cnitest.Container(t), "--id", id)
	}
	s.want(exitOK, "add", "pods", cnitest.Container(t), "--id", "db-1", "--owner", "nomad")
	for line, want := range map[string][]string{
		"show ":                 {"db-1", "web-1", "web-2"},
		"remove ":               {"web-1", "web-2"},
		"remove web-1 ":         {"web-2"},
		"remove --owner=nomad ": {"db-1"},
		"add ":                  {"pods"},
		"list --owner ":         {"nomad", "embedcni"},
		"list --color ":         {"auto", "always", "never"},
	} {
		// The hidden command ends with the word that is to be completed.
		words := strings.Split(line, " ")
		args := append([]string{"__complete", "--state-dir", s.host.StateDir}, words...)
		stdout, _, _ := s.program(args...)
		var got []string
		for _, offered := range strings.Split(stdout, "\n") {
			if offered != "" && !strings.HasPrefix(offered, ":") {
				got = append(got, offered)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("behind %q a shell offers %q, not %q", line, got, want)
		}
	}
}

// TestHealthInRed is about what a terminal shows of a broken container.
func TestHealthInRed(t *testing.T) {
	s := newSession(t)
	s.want(exitOK, "add", "pods", cnitest.Container(t), "--id", "web")
	s.on("ip link del pods0")
	s.terminal = true
	stdout, _ := s.want(exitBad, "health")
	if !regexp.MustCompile(`(?m)^web +\x1b\[31mbroken\x1b\[0m +pods +\x1b\[31mbridge pods0 is missing\x1b\[0m$`).MatchString(stdout) {
		t.Errorf("health prints\n%q", stdout)
	}
	if _, stderr := s.want(exitFailed, "show", "none"); !strings.HasPrefix(stderr, "\x1b[31membedcni show:\x1b[0m ") {
		t.Errorf("the error is %q", stderr)
	}
}

// TestTimeout is about a plugin that hangs, and a person who waits on a terminal.
func TestTimeout(t *testing.T) {
	s := newSession(t)
	s.host.WriteConf("20-vpc.conflist", cloud)
	s.host.Plugin("cloud", cnitest.Script{"ADD": {Hang: true}})
	s.terminal, s.ticks = true, make(chan time.Time, 1)
	shown := regexp.MustCompile(`(?s)^\r\x1b\[Kadd, \d+ s.*\r\x1b\[K\x1b\[31membedcni add:\x1b\[0m .*\n  Give it more time with --timeout\.\n$`)
	var stderr string
	expect.Limited(200*time.Millisecond, func(limit time.Duration) bool { // until then the line must be there
		if len(s.ticks) == 0 {
			s.ticks <- time.Now()
		}
		_, stderr = s.want(exitFailed, "add", "vpc", cnitest.Container(t), "--id", "web", "--timeout", limit.String())
		return !shown.MatchString(stderr)
	})
	expect.That(t, shown.MatchString(stderr), "stderr has\n%q", stderr)
	if stdout, _ := s.want(exitOK, "list", "--json"); stdout != "[]\n" {
		t.Errorf("on record is still\n%s", stdout)
	}
}

// TestSeveralErrorsStandInOneLine: those of a container with two attachments.
func TestSeveralErrorsStandInOneLine(t *testing.T) {
	s := newSession(t)
	s.host.WriteConf("20-vpc.conflist", cloud)
	s.host.Plugin("cloud", cnitest.Script{})
	path := cnitest.Container(t)
	s.want(exitOK, "add", "pods", path, "--id", "web")
	s.env["CNI_IFNAME"] = "eth1"
	s.want(exitOK, "add", "vpc", path, "--id", "web")
	_, stderr := s.want(exitFailed, "cleanup", "web", "--timeout", "1ns")
	expect.Same(t, "stderr", stderr, `embedcni cleanup: clean up interface "eth0" of container "web" on network "pods": lock "barrier" and 1 more: context deadline exceeded; `+
		`clean up interface "eth1" of container "web" on network "vpc": lock "barrier" and 1 more: context deadline exceeded
  Give it more time with --timeout.
`)
}
