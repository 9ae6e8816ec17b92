package cni_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
)

// wholeLife sets up, checks and removes container c1, and returns the calls.
func (s *stage) wholeLife(r *cni.Runtime, opts ...cni.NamespaceOpts) []scripted.Call {
	s.t.Helper()
	path := s.container("c1")
	ctx := s.t.Context()
	if _, err := r.Setup(ctx, "c1", path, opts...); err != nil {
		s.t.Fatal(err)
	}
	wantNil(s.t, r.Check(ctx, "c1", path, opts...))
	wantNil(s.t, r.Remove(ctx, "c1", path, opts...))
	return s.takeCalls()
}

// only is a list of version 1.0.0 with one scripted plugin, to whose
// configuration more is added.
func (s *stage) only(more string) cni.Opt {
	s.t.Helper()
	script := s.plugin(s.scripts["p"], "p")
	return cni.WithConfListBytes(fmt.Appendf(nil,
		`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type":"p","script":%q,%s}]}`, script, more))
}

func TestDuty_R10_UnknownFieldsReachThePluginToTheByte(t *testing.T) {
	s := newStage(t)
	const more = `"z":{"b":1,"a":[1.0,1e3,  9007199254740993]},"big":18446744073709551617,"html":"<>&\u00e9","none":null`
	r := s.runtime(s.only(more))
	calls := s.wholeLife(r)
	wantSame(t, "calls", rendered(calls), []string{"ADD p c1/eth0", "CHECK p c1/eth0", "DEL p c1/eth0"})
	config := fmt.Sprintf(`{"type":"p","script":%q,%s,`, s.path("script-p"), more)
	for _, c := range calls {
		if !strings.HasPrefix(c.Exact, config) {
			t.Errorf("%s read\n%s\nwant it to begin with\n%s", c.Verb, c.Exact, config)
		}
	}
	wantSame(t, "ADD's request", calls[0].Exact, config+`"cniVersion":"1.0.0","name":"net"}`)
}

// keysOfADD are the keys of what a plugin read whose configuration has more.
func keysOfADD(t *testing.T, more string) []string {
	t.Helper()
	s := newStage(t)
	calls := s.wholeLife(s.runtime(s.only(more)))
	return slices.Sorted(maps.Keys(request(t, calls[0])))
}

func TestDuty_R11_KeysOfTheRuntimeAreDroppedFromTheConfiguration(t *testing.T) {
	got := keysOfADD(t, `"runtimeConfig":{"portMappings":[{"hostPort":1}]},
		"cni.dev/valid-attachments":[],"cni.dev/position":7,"cni.dev/x":1,"kept":1`)
	wantSame(t, "keys", got, []string{"cniVersion", "kept", "name", "script", "type"})
}

func TestDuty_R38_CapabilitiesAreNotPassedToThePlugin(t *testing.T) {
	got := keysOfADD(t, `"capabilities":{"portMappings":true},"kept":1`)
	wantSame(t, "keys", got, []string{"cniVersion", "kept", "name", "script", "type"})
}

func TestDuty_R39_TheFirstADDHasNoPrevResult(t *testing.T) {
	got := keysOfADD(t, `"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"6.6.6.6/24"}]},"kept":1`)
	wantSame(t, "keys", got, []string{"cniVersion", "kept", "name", "script", "type"})
}

func TestDuty_R36_EveryRequestHasTheNetworksNameAndVersion(t *testing.T) {
	s := newStage(t)
	script := s.plugin(scripted.Script{}, "p", "q")
	r := s.runtime(cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "net", "plugins": [
		{"type": "p", "script": %q, "name": "other", "cniVersion": "0.1.0"}, {"type": "q", "script": %q}]}`, script, script)))
	wantNil(t, r.Status())
	calls := append(s.takeCalls(), s.wholeLife(r)...)
	wantSame(t, "calls", rendered(calls), []string{"STATUS p /", "STATUS q /", "ADD p c1/eth0", "ADD q c1/eth0",
		"CHECK p c1/eth0", "CHECK q c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"})
	for _, c := range calls {
		keys := request(t, c)
		wantSame(t, c.Verb+" "+c.Type, []string{keys["name"], keys["cniVersion"]}, []string{`"net"`, `"1.1.0"`})
	}
}

// protocol are the CNI_* variables of a call.
func protocol(c scripted.Call) []string {
	return slices.DeleteFunc(slices.Clone(c.Env), func(kv string) bool { return !strings.HasPrefix(kv, "CNI_") })
}

func TestDuty_R14_VariablesOfEachVerb(t *testing.T) {
	s := newStage(t)
	t.Setenv("CNI_IFNAME", "of-another-request")
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.1.0", "p")))
	wantNil(t, r.Status())
	calls := append(s.takeCalls(), s.wholeLife(r, cni.WithArgs("K", "v"))...)
	about := func(verb string) []string {
		return []string{"CNI_ARGS=K=v", "CNI_COMMAND=" + verb, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0",
			"CNI_NETNS=" + s.path("netns", "c1"), "CNI_PATH=" + s.path("bin")}
	}
	want := [][]string{
		{"CNI_ARGS=", "CNI_COMMAND=STATUS", "CNI_CONTAINERID=", "CNI_IFNAME=", "CNI_NETNS=", "CNI_PATH=" + s.path("bin")},
		about("ADD"), about("CHECK"), about("DEL"),
	}
	var got [][]string
	for _, c := range calls {
		got = append(got, protocol(c))
	}
	wantSame(t, "variables", got, want)
}

func TestDuty_R15_ArgumentsHaveAStableOrder(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	const want = "A=2;K8S_POD_NAME=x;Z=1;b=4;ignored=true;k.1/2=v v"
	for range 3 {
		calls := s.wholeLife(r, cni.WithArgs("b", "4"), cni.WithArgs("Z", "0"), cni.WithLabels(map[string]string{
			"Z": "1", "A": "2", "K8S_POD_NAME": "x", "ignored": "true", "k.1/2": "v v"}))
		for _, c := range calls {
			wantSame(t, c.Verb, c.Args, want)
		}
		s.forget("c1")
	}
}

func TestDuty_R15_WhatCannotBeCarriedIsRefusedBeforeAnythingRuns(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	path := s.container("c1")
	for _, kv := range [][2]string{{"x", "x;IP=10.0.0.9"}, {"x;y", "1"}, {"x", "a=b"}, {"x=", ""},
		{"x", "a\x00b"}, {"x", "a\nb"}, {"", "v"}} {
		for verb, err := range s.everyVerb(r, "c1", path, cni.WithArgs(kv[0], kv[1])) {
			if err == nil {
				t.Errorf("%s with %q: no error", verb, kv)
			}
			wantIs(t, err, cni.ErrInvalidArgument)
		}
	}
	wantSame(t, "calls", s.took(), []string{})
}

// everyVerb calls Setup, SetupSerially, Check and Remove.
func (s *stage) everyVerb(r *cni.Runtime, id, path string, opts ...cni.NamespaceOpts) map[string]error {
	ctx := s.t.Context()
	_, setup := r.Setup(ctx, id, path, opts...)
	_, serially := r.SetupSerially(ctx, id, path, opts...)
	return map[string]error{"Setup": setup, "SetupSerially": serially,
		"Check": r.Check(ctx, id, path, opts...), "Remove": r.Remove(ctx, id, path, opts...)}
}

func TestDuty_R30_PluginsAreFoundAlongThePathThatTheyAreTold(t *testing.T) {
	s := newStage(t)
	conf := s.network("net", "1.0.0", "p")
	s.write("first/other", "not a plugin")
	exe, err := os.Executable()
	wantNil(t, err)
	wantNil(t, os.MkdirAll(s.path("third"), 0o755))
	wantNil(t, os.Symlink(exe, s.path("third", "p")))
	dirs := []string{s.path("first"), s.path("missing"), s.path("bin"), s.path("third")}
	for _, c := range s.wholeLife(s.runtime(cni.WithPluginDir(dirs), cni.WithConfListBytes(conf))) {
		wantSame(t, c.Verb+": CNI_PATH", c.Path, strings.Join(dirs, ":"))
	}
	wantNil(t, os.Remove(s.path("bin", "p")))
	r := s.runtime(cni.WithPluginPath(strings.Join(dirs[:3], ":")), cni.WithConfListBytes(conf))
	_, err = r.Setup(t.Context(), "c2", s.container("c2"))
	wantIs(t, err, cni.ErrPluginNotFound)
	if want := fmt.Sprintf("failed to find plugin %q in path %s", "p", dirs[:3]); !strings.Contains(err.Error(), want) {
		t.Errorf("error %q, want %q in it", err, want)
	}
}
