// Package expect has the comparisons for tests of all packages.
package expect

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Patience limits the wait for an event that must come, on the slowest machine.
const Patience = time.Minute

// neighbourly limits a call behind a hanging plugin: the wait of two seconds,
// plus a busy machine's time for the rest.
const neighbourly = 15 * time.Second

// NoError ends the test on an error.
func NoError(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Value returns v, and ends the test on an error: Value(f())(t).
func Value[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return v
	}
}

// That checks a condition. The format says what was found where it does not hold.
func That(t testing.TB, holds bool, format string, args ...any) {
	t.Helper()
	if !holds {
		t.Errorf(format, args...)
	}
}

// Must ends the test where a condition does not hold.
func Must(t testing.TB, holds bool, format string, args ...any) {
	t.Helper()
	if !holds {
		t.Fatalf(format, args...)
	}
}

// Succeeds checks that a call has not failed. Unlike after [NoError], the test goes on.
func Succeeds(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// Same compares two values with [reflect.DeepEqual].
func Same[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// Unchanged checks that a state has gained and lost no lines.
func Unchanged(t testing.TB, what string, gained, lost []string) {
	t.Helper()
	if len(gained)+len(lost) > 0 {
		t.Errorf("%s: there is now:\n%s\nand no longer:\n%s", what, strings.Join(gained, "\n"), strings.Join(lost, "\n"))
	}
}

// Is checks that an error matches each of these kinds.
func Is(t testing.TB, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Errorf("error %v, want one that is %q", err, kind)
		}
	}
}

// Says checks that an error's text contains want.
func Says(t testing.TB, what string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: error %v, want %q in it", what, err, want)
	}
}

// Contains checks that a text has these parts.
func Contains(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: want %q in\n%s", what, part, text)
		}
	}
}

// Lacks checks that a text has not this part.
func Lacks(t testing.TB, what, text, part string) {
	t.Helper()
	if strings.Contains(text, part) {
		t.Errorf("%s: %q is in\n%s", what, part, text)
	}
}

// Within checks that something took no longer than it may.
func Within(t testing.TB, what string, took, limit time.Duration) {
	t.Helper()
	if took > limit {
		t.Errorf("%s took %v, want at most %v", what, took, limit)
	}
}

// Fails checks that a call has failed. what says that it succeeded.
func Fails(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil {
		t.Error(what)
	}
}

// Empty checks that there is nothing in a list.
func Empty[T any](t testing.TB, what string, got []T) {
	t.Helper()
	if len(got) > 0 {
		t.Errorf("%s: %v", what, got)
	}
}

// Err returns the error of a call whose value does not count: Is(t, Err(f()), kind).
func Err[T any](_ T, err error) error { return err }

// Exists reports whether there is a file at path, whatever it is.
func Exists(t testing.TB, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	return err == nil
}

// Reported returns what failed of a call, or else of what it reports.
func Reported(report interface{ Err() error }, err error) error {
	if err != nil {
		return err
	}
	return report.Err()
}

// Await receives a value that must come within [Patience].
func Await[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case v := <-from:
		return v
	case <-timer.C:
		t.Fatalf("waited %v for %s", Patience, what)
		panic("unreachable")
	}
}

// Eventually waits until a condition holds, and ends the test if it does not
// within [Patience].
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ; !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", Patience, what)
		}
	}
}

// Soon checks that a call succeeds long before [Patience] has passed.
func Soon(t testing.TB, what string, call func() error) {
	t.Helper()
	start := time.Now()
	done := make(chan error, 1)
	go func() { done <- call() }()
	NoError(t, Await(t, what, done))
	took := time.Since(start)
	t.Logf("%s: %v", what, took)
	Within(t, what, took, neighbourly)
}

// Limited calls f with a limit that must end it at a certain point. f returns true if the limit
// ended it before that point, as on a machine that stalls: then a longer one is tried. The
// caller compares the outcome of the last call.
func Limited(limit time.Duration, f func(limit time.Duration) (early bool)) {
	for f(limit) && limit < Patience/4 {
		limit *= 8
	}
}

// Quick checks that something takes less than limit: a wait of the kernel's, or of the code,
// that it must not have would be longer, each time. A machine may stall: then once again.
func Quick(t testing.TB, what string, limit time.Duration, once func() (took time.Duration)) {
	t.Helper()
	var all []time.Duration
	for range 5 {
		took := once()
		if took <= limit {
			return
		}
		all = append(all, took)
	}
	t.Errorf("%s took %v, want at most %v once", what, all, limit)
}

// JSON returns JSON with sorted keys and without white space, for comparison.
func JSON[T string | []byte](t testing.TB, data T) string {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader([]byte(data)))
	dec.UseNumber() // all digits count
	var value any
	if err := dec.Decode(&value); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	NoError(t, enc.Encode(value))
	return strings.TrimSpace(b.String())
}
