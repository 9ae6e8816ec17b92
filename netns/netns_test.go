package netns_test

import (
	"errors"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

func TestIDString(t *testing.T) {
	expect.Same(t, "text", (netns.ID{Dev: 4, Ino: 4026531840}).String(), "4:4026531840")
}

func TestErrNotSupportedIsErrUnsupported(t *testing.T) {
	expect.Is(t, netns.ErrNotSupported, errors.ErrUnsupported)
}
