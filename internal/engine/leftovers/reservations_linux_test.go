package leftovers

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// TestFault_F39_AnEmptyFileThatHostLocalDidNotMakeHasNoOwner: only host-local's
// user can read its files.
func TestFault_F39_AnEmptyFileThatHostLocalDidNotMakeHasNoOwner(t *testing.T) {
	dir := reserve(t, map[string]string{"10.1.0.2": "", "10.1.0.3": "", "10.1.0.4": ""})
	expect.NoError(t, os.Chmod(filepath.Join(dir, "10.1.0.3"), 0o644))
	expect.NoError(t, os.Chown(filepath.Join(dir, "10.1.0.4"), 1, 1))
	target := heldIn(dir)
	target.How.Thorough, target.How.Emptied = true, func(Reservation) bool { return true }
	items, err := target.reserved()
	want := []string{"address 10.1.0.2 in " + dir}
	expect.That(t, err == nil && slices.Equal(texts(items), want), "found %q, %v, want %q", texts(items), err, want)
}

// TestFault_F50_AFIFODoesNotBlockTheSweep puts FIFOs in place of reservations
// and the lock.
func TestFault_F50_AFIFODoesNotBlockTheSweep(t *testing.T) {
	dir := reserve(t, map[string]string{"10.1.0.2": "c1\r\neth0"})
	for _, name := range []string{"10.1.0.3", "lock"} {
		expect.NoError(t, syscall.Mkfifo(filepath.Join(dir, name), 0o600))
	}
	expect.NoError(t, os.Mkdir(filepath.Join(dir, "10.1.0.4"), 0o700))
	ended := make(chan error, 1)
	go func() {
		target := heldIn(dir)
		target.How.Thorough = true
		items, err := target.reserved()
		if err == nil && len(items) == 1 {
			err = items[0].Remove(t.Context())
		}
		ended <- err
	}()
	err := expect.Await(t, "the sweep, which a FIFO holds up", ended)
	expect.That(t, errors.Is(err, plainfile.ErrNotRegular) && strings.Contains(err.Error(), filepath.Join(dir, "lock")),
		"error %v, want one that names the lock", err)
}

func texts(all []Reservation) (lines []string) {
	for _, r := range all {
		lines = append(lines, r.String())
	}
	return lines
}
