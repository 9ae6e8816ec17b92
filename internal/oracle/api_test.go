package oracle

import (
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/exp/apidiff"

	"github.com/embedcni/cni/internal/expect"
)

const (
	goCNI = "github.com/containerd/go-cni"
	ours  = "github.com/embedcni/cni"
)

// TestAPIHasAllOfGoCNI loads both packages for each platform that importers build for, and
// compares their exports. What New returns has the methods that go-cni's had, and is the
// interface that go-cni's was; nobody can name the type behind that. JSON is compared by
// the tests of COMPAT 3.
func TestAPIHasAllOfGoCNI(t *testing.T) {
	for _, goos := range []string{"linux", "windows", "darwin"} {
		t.Run(goos, func(t *testing.T) {
			before, now := loadAPIs(t, goos)
			runtime := types.NewPointer(now.Scope().Lookup("Runtime").Type())
			expect.That(t, types.AssignableTo(runtime, now.Scope().Lookup("CNI").Type()), "*Runtime is no CNI")
			methods := 0
			for _, c := range apidiff.Changes(before, now).Changes {
				name, hidden := strings.CutPrefix(strings.TrimSuffix(c.Message, ": removed"), "(*libcni).")
				switch {
				case c.Compatible, c.Message == "New: changed from func(...Opt) (CNI, error) to func(...Opt) (*Runtime, error)",
					strings.HasPrefix(c.Message, "libcni.RWMutex: "), strings.HasPrefix(c.Message, "sync.(*RWMutex)."):
				case hidden && types.NewMethodSet(runtime).Lookup(now, name) != nil:
					methods++
				default:
					t.Error(c.Message)
				}
			}
			n := len(before.Scope().Names())
			expect.That(t, n >= 50 && methods >= 9, "only %d names and %d methods compared: go-cni exports more", n, methods)
		})
	}
}

// loadAPIs reads both packages from the go command's export data. One importer
// reads both, so that a third package's type is the same in both.
func loadAPIs(t *testing.T, goos string) (before, now *types.Package) {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", goCNI, ours)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH=amd64", "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	expect.Must(t, err == nil, "%v: %s", err, stderr.String())
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	imp := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(files[path])
	})
	for path, pkg := range map[string]**types.Package{goCNI: &before, ours: &now} {
		*pkg, err = imp.Import(path)
		expect.NoError(t, err)
	}
	return before, now
}
