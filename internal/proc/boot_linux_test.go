package proc

import (
	"regexp"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestIDIsOneUUIDForTheWholeBoot(t *testing.T) {
	first, err := BootID()
	expect.NoError(t, err)
	again, err := BootID()
	expect.NoError(t, err)
	uuid := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	if first != again || !uuid.MatchString(first) {
		t.Errorf("boot id %q, then %q", first, again)
	}
}
