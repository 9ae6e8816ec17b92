package refplugins

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/embedcni/cni/internal/sandbox"
)

// tool is a program that a go.mod of the checkout lists as a tool.
type tool struct {
	variable string // of the environment, with its path
	folder   string // of the go.mod, in the checkout
	pkg      string
}

var (
	scripted = tool{"EMBEDCNI_TEST_SCRIPTED", "", checkout + "/internal/scripted/plugin"}
	// The last version of the reference plugins that has flannel, which moved to a module of
	// its own then. It knows the versions of CNI up to 0.4.0.
	flannel = tool{"EMBEDCNI_TEST_FLANNEL", mains + "/flannel", module + "/plugins/meta/flannel"}
)

// WithScripted has Main build the scripted plugin of package scripted outside, too. It is
// a program of its own because each start of a test binary, which has thousands of
// functions and the race detector, costs several times a plain program's.
func WithScripted() sandbox.Option { return scripted.before() }

// WithFlannel has Main build the reference plugin flannel outside, too.
func WithFlannel() sandbox.Option { return flannel.before() }

// Scripted returns the path of the scripted plugin. It panics if TestMain lacks WithScripted.
func Scripted() string { return scripted.path("WithScripted") }

// Flannel returns the path of the reference plugin. It panics if TestMain lacks WithFlannel.
func Flannel() string { return flannel.path("WithFlannel") }

func (p tool) before() sandbox.Option {
	return sandbox.Before(func() ([]string, error) {
		path, err := p.build(context.Background())
		return []string{p.variable + "=" + path}, err
	})
}

func (p tool) path(option string) string {
	path := os.Getenv(p.variable)
	if path == "" {
		panic("TestMain does not pass refplugins." + option + ": there is no " + p.pkg)
	}
	return path
}

// build returns the path of the tool in the go command's cache, where it is built unless it
// is there. The path stays valid when a changed tool is built.
func (p tool) build(ctx context.Context) (string, error) {
	if path := os.Getenv(p.variable); path != "" {
		return path, nil
	}
	root, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}", checkout)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", p.pkg, err)
	}
	path, err := goCommand(ctx, filepath.Join(strings.TrimSpace(root), p.folder), "tool", "-n", p.pkg)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", p.pkg, err)
	}
	return strings.TrimSpace(path), nil
}
