package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestFault_F29_NothingIsReadFromTheLeadingThread: namespaces, mounts and
// descriptors belong to a thread, and /proc/self shows those of the leading
// one.
func TestFault_F29_NothingIsReadFromTheLeadingThread(t *testing.T) {
	// A process has only one user namespace, time namespace, executable and number.
	allowed := []string{"/proc/self/uid_map", "/proc/self/timens_offsets", "/proc/self/gid_map", "/proc/self/exe", "\"/proc/self\"", "/proc/self/ns/pid",
		"{\"/proc/self/\", "} // prefixes of paths that are not followed
	support := []string{"bench", "examples", "cnitest", "internal/audit", "internal/sandbox", "internal/scripted", "internal/faults", "internal/testhost"}
	expect.NoError(t, filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
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
				expect.That(t, !strings.Contains(code, process), "%s:%d: %s", path, number+1, strings.TrimSpace(line))
			}
		}
		return nil
	}))
}
