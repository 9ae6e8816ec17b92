package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cmd/embedcni/internal/audit"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// audited returns what audit finds.
func (s *session) audited(code int, args ...string) (found []audit.Finding) {
	s.t.Helper()
	stdout, stderr := s.want(code, append([]string{"audit", "--json", "--netns-dir", s.netnsDir(), "--proc", s.procDir()}, args...)...)
	expect.Same(s.t, "stderr", stderr, "")
	expect.NoError(s.t, json.Unmarshal([]byte(stdout), &found))
	return found
}

func (s *session) netnsDir() string {
	dir := filepath.Join(s.host.Dir, "names")
	expect.NoError(s.t, os.MkdirAll(dir, 0o755))
	return dir
}

// procDir has this process alone, as the first of a host: those of the machine cannot be
// seen from here.
func (s *session) procDir() string {
	dir := filepath.Join(s.host.Dir, "proc")
	expect.NoError(s.t, os.MkdirAll(filepath.Join(dir, "1/ns"), 0o755))
	for name, to := range map[string]string{"net": "/proc/self/ns/net", "pid": "pid:[4026531836]"} {
		if err := os.Symlink(to, filepath.Join(dir, "1/ns", name)); !errors.Is(err, fs.ErrExist) {
			expect.NoError(s.t, err)
		}
	}
	return dir
}

func (s *session) write(path, content string) {
	s.t.Helper()
	expect.NoError(s.t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600))
}

// lose takes from a container its records, as a disk that was restored does. The namespace
// that the library keeps stays.
func (s *session) lose(id string) {
	s.t.Helper()
	for _, pattern := range []string{"embedcni/attachments/*.json", "results/*"} {
		files, err := filepath.Glob(filepath.Join(s.host.StateDir, pattern))
		expect.NoError(s.t, err)
		for _, file := range files {
			data, err := os.ReadFile(file)
			expect.NoError(s.t, err)
			if strings.Contains(string(data), `"`+id+`"`) {
				expect.NoError(s.t, os.Remove(file))
			}
		}
	}
}

// brief has a line for each finding, without the words for people.
func (s *session) brief(all []audit.Finding) string {
	var lines []string
	for _, f := range all {
		line := strings.TrimSpace(fmt.Sprintf("%s: %s %s %s", f.Whose, f.Kind, f.Object, f.ContainerID))
		line = regexp.MustCompile(`[0-9a-f]{16}-[0-9a-f]{16}`).ReplaceAllString(line, "KEY")
		lines = append(lines, strings.ReplaceAll(line, s.host.Dir+"/", ""))
	}
	return strings.Join(lines, "\n")
}

// Of living containers nothing is nobody's.
func TestAuditOfLivingContainers(t *testing.T) {
	s := newSession(t)
	s.attach("web-1", "web-2")
	expect.Empty(t, "findings", s.audited(exitOK))
	stdout, _ := s.want(exitOK, "audit", "--netns-dir", s.netnsDir(), "--proc", s.procDir())
	expect.Same(t, "text", stdout, "Nothing is nobody's.\n")

	// Those of another program are not, if its state directory is named.
	own := t.TempDir()
	rt := s.host.Runtime(cni.WithDefaultConf, cni.WithStateDir(own), cni.WithoutReaping())
	_, err := rt.Setup(t.Context(), "other", cnitest.Container(t))
	expect.NoError(t, err)
	expect.That(t, strings.Contains(s.brief(s.audited(exitBad)), "nobody's: reservation 10.1.0.4 in ipam/pods other"), "what a program with another state directory has is not found")
	expect.Empty(t, "findings", s.audited(exitOK, "--also-state-dir", own))
	expect.NoError(t, rt.Remove(t.Context(), "other", ""))
}

// A container without its records leaves all of these, and the mends remove them. What
// another program has, which libcni's cache says, is told apart.
func TestAudit(t *testing.T) {
	s := newSession(t)
	s.attach("web-1", "ghost")
	end, port := s.hostEnd("ghost"), s.portOf("ghost")
	s.lose("ghost")
	result := `{"kind": "cniCacheV1", "containerId": %q, "ifName": "eth0", "networkName": "pods", "netns": %q,
		"result": {"cniVersion": "1.0.0", "interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/x"}], "ips": [{"address": %q}]}}`
	s.write(filepath.Join(s.host.StateDir, "results/pods-lost-eth0"), fmt.Sprintf(result, "lost", "/run/netns/lost", "10.1.0.66/24"))
	s.write(filepath.Join(s.host.StateDir, "results/pods-theirs-eth0"), fmt.Sprintf(result, "theirs", cnitest.Container(t), "10.1.0.77/24"))
	s.write(filepath.Join(s.host.Dir, "ipam/pods/10.1.0.77"), "theirs\r\neth0")
	s.write(filepath.Join(s.netnsDir(), "empty"), "")
	s.on("iptables-nft -N CNI-FORWARD; iptables-nft -N CNI-ADMIN; iptables-nft -A CNI-ADMIN -s 192.0.2.1 -j DROP")
	s.on("iptables-nft -A CNI-FORWARD -s 10.1.0.77/32 -j ACCEPT; iptables-nft -A CNI-FORWARD -d 10.1.0.2/32 -j ACCEPT")
	s.on("iptables-nft -A CNI-FORWARD -s 10.9.9.9/32 -j ACCEPT")

	got := s.audited(exitBad)
	stray := slices.IndexFunc(got, func(f audit.Finding) bool {
		return f.Kind == "namespace" && strings.HasPrefix(f.Object, s.host.StateDir)
	})
	expect.Must(t, stray >= 0, "the namespace that was kept is not found: %+v", got)
	pin := got[stray].Object
	got[stray].Object = "kept"
	slices.SortFunc(got, func(a, b audit.Finding) int {
		return strings.Compare(s.brief([]audit.Finding{a}), s.brief([]audit.Finding{b}))
	})
	comment := ` comment "KEY, net: pods, if: eth0, id: ghost"`
	want := []string{
		"another owner's: cached result state/results/pods-theirs-eth0 theirs",
		"another owner's: reservation 10.1.0.77 in ipam/pods theirs",
		"another owner's: rule iptables-nft filter -A CNI-FORWARD -s 10.1.0.77/32 -j ACCEPT theirs",
		"nobody's: cached result state/results/pods-lost-eth0 lost",
		"nobody's: interface " + end + " on pods0",
		"nobody's: namespace kept",
		"nobody's: namespace names/empty",
		"nobody's: reservation 10.1.0.3 in ipam/pods ghost",
		"nobody's: rule iptables-nft filter -A CNI-FORWARD -s 10.9.9.9/32 -j ACCEPT",
		"nobody's: rule nft element inet embedcni containers4 10.1.0.3" + comment + " ghost",
		"nobody's: rule nft element inet embedcni hairpin4_24 10.1.0.3 . 10.1.0.0" + comment + " ghost",
		"nobody's: rule nft element inet embedcni hairpin4_8 10.1.0.3 . 127.0.0.0" + comment + " ghost",
		"nobody's: rule nft element inet embedcni hostports4 tcp . " + port + comment + " : 10.1.0.3 . 80 ghost",
		"nobody's: rule nft element inet embedcni subnets4_24 10.1.0.3 . 10.1.0.0" + comment + " ghost",
	}
	expect.Same(t, "findings", s.brief(got), strings.Join(want, "\n"))
	i := slices.IndexFunc(got, func(f audit.Finding) bool { return f.Kind == "reservation" && f.ContainerID == "ghost" })
	mend := "embedcni cleanup ghost pods eth0 --state-dir " + s.host.StateDir + " --host-netns " + s.host.NetNS
	expect.Same(t, "reservation", got[i], audit.Finding{Whose: audit.Nobody, Kind: "reservation", Object: "10.1.0.3 in " + s.host.Dir + "/ipam/pods",
		ContainerID: "ghost", Network: "pods", IfName: "eth0", Detail: "its container is on no record, and no namespace in use has its address", Mend: mend})
	text, _ := s.want(exitBad, "audit", "--netns-dir", s.netnsDir(), "--proc", s.procDir())
	expect.Contains(t, "text", text, "WHOSE ", "another owner's ", "\nMend:\n", " "+mend+"\n", "\n11 things are nobody's. 3 another owner's.\n")

	for _, id := range []string{"ghost", "lost"} {
		s.want(exitOK, "cleanup", id, "pods", "eth0", "--yes")
	}
	s.deleteLink(end)
	s.on("umount %s && rm %s %s/empty", pin, pin, s.netnsDir())
	s.on("iptables-nft -D CNI-FORWARD -s 10.9.9.9/32 -j ACCEPT")
	expect.Same(t, "after the mends", s.brief(s.audited(exitOK)), strings.Join(want[:3], "\n"))
	s.want(exitOK, "cleanup", "theirs", "pods", "eth0", "--yes")
	s.on("iptables-nft -F; iptables-nft -X")
}

// portOf returns the port of the host that a container has.
func (s *session) portOf(id string) string {
	s.t.Helper()
	all, err := s.host.Runtime().Attachments(id)
	expect.NoError(s.t, err)
	expect.Must(s.t, len(all) == 1 && len(all[0].Ports) == 1, "attachments of %s: %+v", id, all)
	return fmt.Sprint(all[0].Ports[0].HostPort)
}

// Records of containers that are gone are nobody's, or another owner's; of a damaged one
// nobody knows whose it is.
func TestAuditOfRecords(t *testing.T) {
	s := newSession(t)
	s.attach("web-1", "web-2")
	other := s.host.Runtime(cni.WithDefaultConf, cni.WithOwner("nomad"), cni.WithoutReaping())
	_, err := other.Setup(t.Context(), "db", cnitest.Container(t))
	expect.NoError(t, err)
	all, err := other.Attachments("web-2", "db")
	expect.NoError(t, err)
	for _, at := range all {
		s.letGo(at.ContainerID, at.NetNS)
	}
	s.write(filepath.Join(s.host.StateDir, "embedcni/attachments/0123.json"), "damaged")
	found := s.audited(exitBad)
	flags := " --state-dir " + s.host.StateDir + " --host-netns " + s.host.NetNS
	var records []audit.Finding
	for _, f := range found {
		if f.Kind == "record" {
			records = append(records, f)
		}
	}
	expect.Must(t, len(records) == 3, "records: %+v", records)
	expect.Same(t, "own", records[0], audit.Finding{Whose: audit.Nobody, Kind: "record", Object: "eth0 on pods", ContainerID: "web-2", Network: "pods", IfName: "eth0",
		Owner: "embedcni", Detail: "its network namespace is gone", Mend: "embedcni release web-2" + flags})
	expect.Same(t, "another's", records[1], audit.Finding{Whose: audit.Another, Kind: "record", Object: "eth0 on pods", ContainerID: "db", Network: "pods", IfName: "eth0",
		Owner: "nomad", Detail: "its network namespace is gone", Mend: "embedcni release db" + flags + " --owner nomad"})
	expect.Same(t, "damaged", records[2].Whose, audit.NotAsked)
	expect.Contains(t, "damaged", records[2].Detail, "damaged attachment record")
	expect.NoError(t, os.Remove(filepath.Join(s.host.StateDir, "embedcni/attachments/0123.json")))
}

// A container that has lost its records and lives is not nobody's, nor is one of which it
// cannot be seen whether it lives: no mend is said that would harm it.
func TestAuditHarmsNoLivingContainer(t *testing.T) {
	s := newSession(t)
	name := filepath.Join(s.netnsDir(), "ghost")
	h, err := netns.Create(name)
	expect.NoError(t, err)
	expect.NoError(t, h.Close())
	defer func() { expect.NoError(t, netns.Remove(name)) }()
	s.want(exitOK, "add", "pods", name, "--id", "ghost", "--publish", "8080:80")
	end := s.hostEnd("ghost")
	s.lose("ghost")
	kinds := map[string]bool{}
	for _, f := range s.audited(exitOK) { // by its name
		kinds[f.Kind] = true
		expect.That(t, f.Whose == audit.Another && f.Mend == "", "of a container that lives there is %+v", f)
	}
	expect.Same(t, "kinds", kinds, map[string]bool{"interface": true, "namespace": true, "reservation": true, "rule": true})

	elsewhere := filepath.Join(t.TempDir(), "ghost")
	expect.NoError(t, os.WriteFile(elsewhere, nil, 0o600))
	s.on("mount --bind %s %s && umount %s && rm %s", name, elsewhere, name, name)
	defer func() { expect.NoError(t, netns.Remove(elsewhere)) }()
	sleep := exec.Command("sleep", "600") // by its process
	expect.NoError(t, netns.Do(elsewhere, sleep.Start))
	expect.NoError(t, os.Symlink(fmt.Sprintf("/proc/%d", sleep.Process.Pid), filepath.Join(s.procDir(), "2")))
	for _, f := range s.audited(exitOK) {
		expect.That(t, f.Whose == audit.Another && f.Mend == "", "of a container that lives there is %+v", f)
	}
	expect.NoError(t, sleep.Process.Kill())
	expect.Fails(t, "sleep was not killed", sleep.Wait())

	for _, f := range s.audited(exitBad, "--proc", "/proc") { // other users' processes are hidden here
		expect.That(t, f.Whose == audit.NotAsked && f.Mend == "", "of a container that may live there is %+v", f)
	}
	s.want(exitOK, "cleanup", "ghost", "pods", "eth0", "--yes")
	s.deleteLink(end)
	pins, err := netns.List(filepath.Join(s.host.StateDir, "embedcni/attachments/netns"))
	expect.NoError(t, err)
	for _, p := range pins {
		expect.NoError(t, netns.Remove(p.Path))
	}
}
