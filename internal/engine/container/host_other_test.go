//go:build !linux

package container

import (
	"errors"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/outcome"
)

// TestCompat_12_PathIsPassedAsItIs: on Windows it is the GUID of a compartment.
func TestCompat_12_PathIsPassedAsItIs(t *testing.T) {
	h, err := NewFinder().Open("")
	expect.NoError(t, err)
	for _, path := range []string{"f0bba1ea-6d5c-4bb7-9a3c-d2b6b5c2d1a7", "/no/such/path", ""} {
		for _, verb := range []string{"ADD", "CHECK", "DEL"} {
			if got, err := h.Validate(path, verb); err != nil || got != path {
				t.Errorf("%s %q: %q, %v", verb, path, got, err)
			}
		}
	}
	if _, err := NewFinder().Open("/proc/1/ns/net"); !errors.Is(err, outcome.ErrNotSupported) || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("WithHostNetNS: %v, want ErrNotSupported", err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}
