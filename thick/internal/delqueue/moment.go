package delqueue

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/embedcni/cni/internal/kernel/proc"
)

// Moment is a time of this machine that no clock setting moves: the boot, and the
// nanoseconds since (CLOCK_BOOTTIME of the initial time namespace).
type Moment struct {
	Boot  string `json:"boot"`
	Nanos int64  `json:"nanos"`
}

// Now returns the current moment. It fails off Linux.
func Now() (Moment, error) {
	id, err := proc.BootID()
	if err != nil {
		return Moment{}, err
	}
	nanos, err := sinceBoot()
	if err != nil {
		return Moment{}, fmt.Errorf("time since boot: %w", err)
	}
	return Moment{id, nanos}, nil
}

// String returns the form that ParseMoment reads, such as
// "81dd9e1c-6b26-4dd8-8f5f-0e0e5c3c4b0a+123456789". The zero Moment is the empty string.
func (m Moment) String() string {
	if m == (Moment{}) {
		return ""
	}
	return m.Boot + "+" + strconv.FormatInt(m.Nanos, 10)
}

// ParseMoment reads the form of String.
func ParseMoment(text string) (Moment, error) {
	if text == "" {
		return Moment{}, nil
	}
	id, digits, ok := strings.Cut(text, "+")
	nanos, err := strconv.ParseInt(digits, 10, 64)
	if !ok || id == "" || err != nil || nanos < 0 {
		return Moment{}, fmt.Errorf("%q is not a moment", text)
	}
	return Moment{id, nanos}, nil
}

// boottimeOffset reads the offset of this time namespace's CLOCK_BOOTTIME, in
// nanoseconds, from /proc/self/timens_offsets.
//
//	monotonic           0         0
//	boottime        86400         0
func boottimeOffset(text string) (int64, error) {
	for _, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != "boottime" {
			continue
		}
		seconds, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, err
		}
		nanos, err := strconv.ParseInt(fields[2], 10, 64)
		return seconds*1e9 + nanos, err
	}
	return 0, fmt.Errorf("no boottime in %q", text)
}
