package refplugins

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/embedcni/cni/internal/sandbox"
)

const (
	// scriptedVariable is the environment variable with the path of the scripted plugin.
	scriptedVariable = "EMBEDCNI_TEST_SCRIPTED"
	// scriptedTool is a tool of the checkout's go.mod.
	scriptedTool = checkout + "/internal/scripted/plugin"
)

// WithScripted has Main build the scripted plugin of package scripted outside, too. It is
// a program of its own because each start of a test binary, which has thousands of
// functions and the race detector, costs several times a plain program's.
func WithScripted() sandbox.Option {
	return sandbox.Before(func() ([]string, error) {
		path, err := buildScripted(context.Background())
		return []string{scriptedVariable + "=" + path}, err
	})
}

// Scripted returns the path of the scripted plugin. It panics if TestMain lacks WithScripted.
func Scripted() string {
	path := os.Getenv(scriptedVariable)
	if path == "" {
		panic("TestMain does not pass refplugins.WithScripted: there is no scripted plugin")
	}
	return path
}

// buildScripted returns the path of the plugin in the go command's cache, where it is
// built unless it is there. The path stays valid when a changed plugin is built.
func buildScripted(ctx context.Context) (string, error) {
	if path := os.Getenv(scriptedVariable); path != "" {
		return path, nil
	}
	root, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}", checkout)
	if err != nil {
		return "", fmt.Errorf("find the scripted plugin: %w", err)
	}
	path, err := goCommand(ctx, strings.TrimSpace(root), "tool", "-n", scriptedTool)
	if err != nil {
		return "", fmt.Errorf("build the scripted plugin: %w", err)
	}
	return strings.TrimSpace(path), nil
}
