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
			packages := loadAPIs(t, goos, ".", goCNI, ours)
			before, now := packages[goCNI], packages[ours]
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

// TestAPIOfTheModuleGocni: it has each name of go-cni, with an assignable type. Options that are
// functions of a type without a name there are variables here.
func TestAPIOfTheModuleGocni(t *testing.T) {
	for _, goos := range []string{"linux", "windows", "darwin"} {
		t.Run(goos, func(t *testing.T) {
			before := loadAPIs(t, goos, ".", goCNI)[goCNI].Scope()
			packages := loadAPIs(t, goos, "../../gocni", goCNI, ours)
			now, same := packages[goCNI].Scope(), packages[ours].Scope()
			for _, name := range before.Names() {
				switch was, is := before.Lookup(name), now.Lookup(name); {
				case !was.Exported():
				case is == nil:
					t.Errorf("%s is missing", name)
				case name == "New":
					if want := "func(config ..." + goCNI + ".Opt) (" + goCNI + ".CNI, error)"; is.Type().String() != want {
						t.Errorf("New is a %s, want a %s", is.Type(), want)
					}
				case !types.AssignableTo(same.Lookup(name).Type(), is.Type()):
					t.Errorf("%s is a %s there, and a %s in %s", name, is.Type(), same.Lookup(name).Type(), ours)
				}
			}
			if n := len(before.Names()); n < 50 {
				t.Errorf("only %d names compared: go-cni exports more", n)
			}
		})
	}
}

// loadAPIs reads packages from the go command's export data, as the module in dir sees them. One
// importer reads all of them, so that a third package's type is the same in each.
func loadAPIs(t *testing.T, goos, dir string, paths ...string) map[string]*types.Package {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, paths...)...)
	cmd.Dir = dir
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
	loaded := map[string]*types.Package{}
	for _, path := range paths {
		loaded[path], err = imp.Import(path)
		expect.NoError(t, err)
	}
	return loaded
}
