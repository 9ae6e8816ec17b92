package spare

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// files are the names and contents of a directory.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	all := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		check(t, err)
		all[e.Name()] = string(data)
	}
	return all
}

// write makes files in dir that hold their own names.
func write(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
}

func TestWhatIsGivenIsTaken(t *testing.T) {
	dir := t.TempDir()
	f := In(dir)
	if f.Take(filepath.Join(dir, "a")) {
		t.Error("took a file of an empty directory")
	}
	write(t, dir, "a", "b", "there")
	check(t, f.Give(filepath.Join(dir, "a")))
	check(t, f.Give(filepath.Join(dir, "b")))
	for name := range files(t, dir) {
		if name != "there" && !Is(name) {
			t.Errorf("%s is left", name)
		}
	}
	other := In(dir) // as another process has it
	if f.Take(filepath.Join(dir, "there")) {
		t.Error("took one over another file")
	}
	if !f.Take(filepath.Join(dir, "c")) || !f.Take(filepath.Join(dir, "d")) || f.Take(filepath.Join(dir, "e")) || other.Take(filepath.Join(dir, "e")) {
		t.Error("two were given, so two are to be had")
	}
	want := map[string]string{"c": "b", "d": "a", "there": "there"}
	if got := files(t, dir); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := f.Give(filepath.Join(dir, "gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("giving what is not there: %v, want %v", err, fs.ErrNotExist)
	}
}

// TestThereIsAnEndToWhatIsKept, and no file of another takes the place of one.
func TestThereIsAnEndToWhatIsKept(t *testing.T) {
	dir := t.TempDir()
	for i := range most + 10 {
		name := fmt.Sprint("file", i)
		write(t, dir, name)
		check(t, In(dir).Give(filepath.Join(dir, name))) // each in a process of its own
	}
	few := files(t, dir)
	if len(few) != tries {
		t.Errorf("kept %d by processes that know nothing of each other, want %d", len(few), tries)
	}
	f := In(dir)
	for i := range 2 * most {
		name := fmt.Sprint("more", i)
		write(t, dir, name)
		check(t, f.Give(filepath.Join(dir, name)))
	}
	all := files(t, dir)
	if len(all) != most {
		t.Errorf("kept %d, want %d", len(all), most)
	}
	for name, content := range few {
		if all[name] != content {
			t.Errorf("%s holds %q, held %q", name, all[name], content)
		}
	}
}

func TestAFullDirectoryIsUsedUp(t *testing.T) {
	dir := t.TempDir()
	f := In(dir)
	for i := range 20 {
		name := fmt.Sprint("file", i)
		write(t, dir, name)
		check(t, f.Give(filepath.Join(dir, name)))
	}
	for i := range 20 {
		if !f.Take(filepath.Join(dir, fmt.Sprint("file", i))) {
			t.Fatalf("had %d of 20", i)
		}
	}
}

// TestNobodySharesAFile: each file that is given is taken once, by whoever.
func TestNobodySharesAFile(t *testing.T) {
	dir := t.TempDir()
	const workers, rounds = 8, 200
	shared := In(dir)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f := shared
			if w%2 == 0 {
				f = In(dir) // another process
			}
			own := filepath.Join(dir, fmt.Sprint("w", w))
			for range rounds {
				if !f.Take(own) {
					if err := os.WriteFile(own, nil, 0o600); err != nil {
						t.Error(err)
					}
				}
				want := fmt.Sprint(w)
				if err := os.WriteFile(own, []byte(want), 0o600); err != nil {
					t.Error(err)
				}
				if got, err := os.ReadFile(own); err != nil || string(got) != want {
					t.Errorf("%s holds %q, %v, want %q", own, got, err, want)
				}
				if err := f.Give(own); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	for name := range files(t, dir) {
		if !Is(name) {
			t.Errorf("%s is left", name)
		}
	}
}

func TestIs(t *testing.T) {
	var got []string
	for _, name := range []string{"spare.0", "spare.127", "spare.", "spare.x", "spare", "0123.json", "spare.1.json"} {
		if Is(name) {
			got = append(got, name)
		}
	}
	if want := []string{"spare.0", "spare.127"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
