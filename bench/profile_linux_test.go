package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime/trace"
	"strings"
	"testing"
	"time"
)

func TestTreeAddsUpStretches(t *testing.T) {
	const us = time.Microsecond
	outer := []string{modulePath + "/internal/runner.(*Runner).Run.func1", modulePath + ".(*Runtime).Setup", "main.(*ours).add", "runtime.goexit"}
	inner := append([]string{"syscall.Syscall6", "syscall.fsync", "syscall.Fsync", "os.(*File).Sync", modulePath + "/internal/record.Write",
		modulePath + "/internal/runner.again[github.com/embedcni/cni/internal/x.y]"}, outer...)
	var all tree
	for range 2 { // two operations
		all.add(stretch{Stack: outer, Took: 100 * us})
		all.add(stretch{Stack: inner, Took: 20 * us})
		all.add(stretch{Stack: inner, Kernel: true, Took: 60 * us})
		all.add(stretch{Stack: []string{"main.callAll", modulePath + "/bench.callAll", "runtime.main"}, Took: time.Second})
		all.add(stretch{Stack: []string{"runtime.gcBgMarkWorker"}, Took: time.Second})
		all.add(stretch{Took: time.Second})
	}
	got := all.box("ADD", 2)
	want := box{Name: "ADD › cni › internal/runner", Micros: 180, Boxes: []box{
		{Name: "internal/record", Micros: 80, Boxes: []box{{Name: "fsync", Kernel: true, Micros: 60, Calls: 1}}}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

func TestTreeHasAFewDozenBoxes(t *testing.T) {
	var all tree
	for i := range 300 {
		all.add(stretch{Stack: []string{modulePath + "/internal/p" + strings.Repeat("x", i) + ".F"}, Took: time.Duration(1e6 * math.Pow(1.03, float64(i)))})
	}
	if b := all.box("ADD", 1); len(b.Boxes) < 5 || len(b.Boxes) > mostBoxes {
		t.Errorf("%d boxes", len(b.Boxes))
	}
	var none tree
	if b := none.box("ADD", 1); len(b.Boxes) != 0 {
		t.Errorf("a tree of nothing: %+v", b)
	}
}

func TestPackageOf(t *testing.T) {
	for function, want := range map[string]string{
		modulePath + ".(*Runtime).Setup": "cni", modulePath + "/internal/links.(*Conn).do.func1": "internal/links",
		modulePath + "/internal/a.F[" + modulePath + "/internal/b.T]": "internal/a", modulePath + "/bench.measure": "",
		modulePath + "/bench/floor.Open": "", "main.main": "", "os.Open": "",
	} {
		if got := packageOf(function); got != want {
			t.Errorf("%s is in %q, want %q", function, got, want)
		}
	}
}

func TestSystemCall(t *testing.T) {
	for want, stack := range map[string][]string{
		"fsync":       {"syscall.Syscall", "syscall.fsync", "syscall.Fsync", "os.(*File).Sync"},
		"sendto":      {"golang.org/x/sys/unix.Syscall6", "golang.org/x/sys/unix.sendto", "golang.org/x/sys/unix.Sendto"},
		"poll":        {"internal/poll.runtime_pollWait", "internal/poll.(*pollDesc).wait"},
		"system call": {"syscall.Syscall", modulePath + "/internal/thread.F"},
	} {
		if got := systemCall(stack); got != want {
			t.Errorf("%q: got %q, want %q", stack, got, want)
		}
	}
}

// TestStretchesHaveTheSystemCalls traces calls whose number is known.
func TestStretchesHaveTheSystemCalls(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var traced bytes.Buffer
	if err := trace.Start(&traced); err != nil {
		t.Fatal(err)
	}
	const calls = 20
	start := time.Now()
	for range calls {
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	took := time.Since(start)
	trace.Stop()
	var syncs int
	var total time.Duration
	err = stretches(&traced, func(s stretch) {
		if s.Kernel && systemCall(s.Stack) == "fsync" {
			syncs++
			total += s.Took
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if syncs != calls || total <= 0 || total > took {
		t.Errorf("%d syncs in %v, want %d in at most %v", syncs, total, calls, took)
	}
}

func TestFlamesAreXMLWithAllBoxes(t *testing.T) {
	all := elements(t, flames(sample().Profiles))
	// The background, two of the legend, four of the ADD and none of the DEL.
	if all["rect"] != 7 || all["title"] != 4 {
		t.Errorf("got %v", all)
	}
	if empty := flames(nil); strings.Contains(empty, "NaN") || strings.Contains(empty, "Inf") {
		t.Errorf("a picture of nothing: %s", empty)
	}
}

func TestFitting(t *testing.T) {
	for width, want := range map[float64]string{6: "", 30: "", 40: "lin…", 48: "links", 76: "links ×2", 500: "links: 2 ms"} {
		if got := fitting(width, "links: 2 ms", "links ×2", "links"); got != want {
			t.Errorf("%v pixels: got %q, want %q", width, got, want)
		}
	}
}
