package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/netns"
)

// TestTheFirstProcesssNamespaceIsThatOfItsThreads, whichever its leading one is
// in.
func TestTheFirstProcesssNamespaceIsThatOfItsThreads(t *testing.T) {
	file := func(name string) (path string, id netns.ID) {
		path = filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		id, _ = netNSAt(path)
		return path, id
	}
	host, want := file("host")
	container, other := file("container")
	const missing = "missing"
	for what, test := range map[string]struct {
		threads map[string]string
		want    netns.ID
		ok      bool
	}{
		"one thread":                    {map[string]string{"1": host}, want, true},
		"all in one":                    {map[string]string{"1": host, "2": host, "3": host}, want, true},
		"the leading one parked":        {map[string]string{"1": container, "2": host, "3": host}, want, true},
		"one at work":                   {map[string]string{"1": host, "2": container, "3": host}, want, true},
		"one that may not be asked":     {map[string]string{"1": missing, "2": container}, other, true},
		"none that may be asked":        {map[string]string{"1": missing, "2": missing}, netns.ID{}, false},
		"a process that cannot be seen": {nil, netns.ID{}, false},
	} {
		links := map[string]string{}
		for tid, to := range test.threads {
			links["1/task/"+tid+"/ns/net"] = to
		}
		if got, ok := firstNetNS(proc(t, links, nil)); got != test.want || ok != test.ok {
			t.Errorf("%s: got %v, %v, want %v, %v", what, got, ok, test.want, test.ok)
		}
	}
}

// TestFault_F29_NothingIsReadFromTheLeadingThread: namespaces, mounts and
// descriptors are a thread's, and /proc/self shows the leading one's.
func TestFault_F29_NothingIsReadFromTheLeadingThread(t *testing.T) {
	// A process has one user namespace, one executable and one number.
	allowed := []string{"/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/exe", "\"/proc/self\"", "/proc/self/ns/pid",
		"{\"/proc/self/\", "} // beginnings of paths that are not followed
	support := []string{"bench", "examples", "cnitest", "internal/audit", "internal/sandbox", "internal/scripted", "internal/faults"}
	err := filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, dir := range support {
			if path == filepath.FromSlash(dir) {
				return filepath.SkipDir
			}
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for number, line := range strings.Split(string(data), "\n") {
			code, _, _ := strings.Cut(line, "//")
			for _, a := range allowed {
				code = strings.ReplaceAll(code, a, "")
			}
			for _, process := range []string{"/proc/self", "ns/net\", os.Getpid()", "/proc/[0-9]*/ns"} {
				if strings.Contains(code, process) {
					t.Errorf("%s:%d: %s", path, number+1, strings.TrimSpace(line))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
