package cni_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestCompat_12_PathIsOpaqueOffLinux: the code that opens a path is not
// compiled there. How the rest treats a path is tested where it runs.
func TestCompat_12_PathIsOpaqueOffLinux(t *testing.T) {
	const dir = "./internal/engine/container"
	for _, files := range [][2]string{{"host_linux.go", "host_other.go"}, {"netns_linux.go", "container_other.go"}} {
		for _, goos := range platforms {
			for _, p := range goList(t, goos, dir) {
				linux, other := slices.Contains(p.GoFiles, files[0]), slices.Contains(p.GoFiles, files[1])
				expect.That(t, linux == (goos == "linux") && other != linux, "%s: compiled are %v", goos, p.GoFiles)
			}
		}
	}
}

// TestCompat_13_NothingBeforeNew: a program that imports the package has one
// goroutine before and after New and Load. See also
// TestImportGraphHoldsNothingThatADaemonWouldNotWant.
func TestCompat_13_NothingBeforeNew(t *testing.T) {
	const program = `package main
import ("fmt"; "runtime"; "github.com/embedcni/cni")
func main() {
	before := runtime.NumGoroutine()
	r, err := cni.New(cni.WithLoNetwork)
	if err == nil { err = r.Load(cni.WithLoNetwork) }
	fmt.Print(before, runtime.NumGoroutine(), err)
}`
	file := filepath.Join(t.TempDir(), "main.go")
	expect.NoError(t, os.WriteFile(file, []byte(program), 0o644))
	out, err := exec.Command("go", "run", file).CombinedOutput()
	want := "1 1 <nil>"
	expect.That(t, err == nil && string(out) == want, "it says %q, %v; want %q", out, err, want)
}
