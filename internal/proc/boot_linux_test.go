package proc

import (
	"regexp"
	"testing"
)

func TestIDIsOneUUIDForTheWholeBoot(t *testing.T) {
	first, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	again, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	uuid := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	if first != again || !uuid.MatchString(first) {
		t.Errorf("boot id %q, then %q", first, again)
	}
}
