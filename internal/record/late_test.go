package record

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"
)

// late returns the lines of a ledger, those that come while it is compacted, and
// what it then knows: one attachment ends meanwhile, one is attached once more,
// one is new and one is released.
func late() (before, during []Line, known map[Key]Known) {
	a, b, c, d := Key{"c1", "net", "eth0"}, Key{"c2", "net", "eth0"}, Key{"c3", "net", "eth0"}, Key{"c4", "net", "eth0"}
	addrs, at := []netip.Addr{netip.MustParseAddr("10.1.0.2")}, func(sec int64) time.Time { return time.Unix(sec, 0).UTC() }
	before = []Line{
		{Key: a, Dirs: []string{"/d"}, Time: at(1)},
		{Key: b, Dirs: []string{"/d"}, Time: at(1)}, {Key: b, Gone: true, Time: at(2)},
		{Key: d, Dirs: []string{"/d"}, Time: at(1)},
	}
	during = []Line{
		{Key: a, Gone: true, Time: at(3)},
		{Key: b, Dirs: []string{"/e"}, Time: at(4)},
		{Key: c, Dirs: []string{"/d"}, Time: at(5)}, {Key: c, Addresses: addrs},
		{Key: d, Released: true},
	}
	return before, during, map[Key]Known{
		a: {Gone: true, Dirs: []string{"/d"}, Since: at(1), Until: at(3)},
		b: {Dirs: []string{"/d", "/e"}, Since: at(4), Until: at(2)},
		c: {Dirs: []string{"/d"}, Addresses: addrs, Latest: addrs, Since: at(5)},
	}
}

// TestFault_F39_LinesThatComeWhileCompactingLeaveNoFile: another process writes
// between the reading of the ledger and its replacement, as on a host on which
// many containers end at once. No later line may come that would have a file
// deleted that stays.
func TestFault_F39_LinesThatComeWhileCompactingLeaveNoFile(t *testing.T) {
	for name, moment := range map[string]int{"after it was read": 0, "after it was synced": 1, "before it is replaced": 2} {
		t.Run(name, func(t *testing.T) {
			before, during, known := late()
			dir := t.TempDir()
			l, other := Open(dir).Ledger("me"), Open(dir).Ledger("me")
			check(t, l.Add(before...))
			passed, added := 0, 0
			pass := func() {
				if passed == moment {
					check(t, other.Add(during...))
					added++
				}
				passed++
			}
			l.Fsync = func(f *os.File) error { pass(); return f.Sync() }
			check(t, l.Compact(func(map[Key]Known) []Key { pass(); return nil }))
			want(t, "times added", added, 1)
			want(t, "files", filesOf(t, l), []string{l.path})
			want(t, "ledger", readLedger(t, l), known)
			check(t, l.Compact(func(map[Key]Known) []Key { return nil }))
			want(t, "compacted again", readLedger(t, l), known)
		})
	}
}

// TestFault_F39_LateLinesAreEarlierThanThoseOfTheNewFile: between the
// replacement and the taking over, others add to the new file.
func TestFault_F39_LateLinesAreEarlierThanThoseOfTheNewFile(t *testing.T) {
	a, b, c := Key{"c1", "net", "eth0"}, Key{"c2", "net", "eth0"}, Key{"c3", "net", "eth0"}
	l := Open(t.TempDir()).Ledger("me")
	adds(t, l, false, a)
	old, next, sources := compactUntilInPlace(t, l, Line{Key: a, Gone: true}, Line{Key: b}, Line{Key: c, Released: true})
	check(t, l.Add(Line{Key: a}, Line{Key: b, Gone: true}, Line{Key: c}))
	check(t, errors.Join(l.finish(old, next, sources, false), next.Close()))
	want(t, "ledger", gone(t, l), map[Key]bool{a: false, b: true, c: false})
	want(t, "files", filesOf(t, l), []string{l.path})
}

// TestFault_F39_ALineThatIsBeingWrittenWhenTheLedgerIsReadIsNotLost: wherever the
// reading ends.
func TestFault_F39_ALineThatIsBeingWrittenWhenTheLedgerIsReadIsNotLost(t *testing.T) {
	a, b := Key{"c1", "net", "eth0"}, Key{"c2", "net", "eth0"}
	line, err := encodeLines([]Line{{Key: b}})
	check(t, err)
	line = append([]byte("\n"), line...)
	for cut := range len(line) + 1 {
		l := Open(t.TempDir()).Ledger("me")
		adds(t, l, false, a)
		old, err := os.OpenFile(l.path, os.O_RDWR|os.O_APPEND, 0)
		check(t, err)
		secondName(t, l)
		_, err = old.Write(line[:cut])
		check(t, err)
		known, sources, err := l.read(false)
		check(t, err)
		_, err = old.Write(line[cut:])
		check(t, err)
		next, err := l.replace(known)
		check(t, err)
		check(t, errors.Join(l.finish(old, next, sources, false), next.Close(), old.Close()))
		want(t, fmt.Sprint("read until ", cut), gone(t, l), map[Key]bool{a: false, b: false})
		want(t, "files", filesOf(t, l), []string{l.path})
	}
}

// TestFault_F39_CompactingThatFailsLeavesNoFile: as on a full disk, again and
// again.
func TestFault_F39_CompactingThatFailsLeavesNoFile(t *testing.T) {
	for name, failing := range map[string]int{"the old file": 0, "the new file": 1} {
		t.Run(name, func(t *testing.T) {
			l, full := Open(t.TempDir()).Ledger("me"), errors.New("full")
			lines, _, _ := late()
			check(t, l.Add(lines...))
			before := readLedger(t, l)
			for range 2 {
				syncs := 0
				l.Fsync = func(f *os.File) error {
					if syncs++; syncs > failing {
						return full
					}
					return f.Sync()
				}
				if err := l.Compact(func(map[Key]Known) []Key { return nil }); !errors.Is(err, full) {
					t.Errorf("compacted: %v", err)
				}
				want(t, "files", filesOf(t, l), []string{l.path})
				want(t, "ledger", readLedger(t, l), before)
			}
		})
	}
}

// TestFault_F39_LateLinesThatCannotBeTakenOverStayInTheirFile until the next
// compaction.
func TestFault_F39_LateLinesThatCannotBeTakenOverStayInTheirFile(t *testing.T) {
	before, during, known := late()
	l, full, syncs := Open(t.TempDir()).Ledger("me"), errors.New("full"), 0
	check(t, l.Add(before...))
	l.Fsync = func(f *os.File) error {
		if syncs++; syncs == 3 { // after those of the old file and the new one
			return full
		}
		return f.Sync()
	}
	meanwhile := func(map[Key]Known) []Key { check(t, l.Add(during...)); return nil }
	if err := l.Compact(meanwhile); !errors.Is(err, full) {
		t.Errorf("compacted: %v", err)
	}
	want(t, "files", filesOf(t, l), []string{l.path, l.path + prevExt + "0"})
	want(t, "ledger", readLedger(t, l), known)
	check(t, l.Compact(func(map[Key]Known) []Key { return nil }))
	want(t, "files", filesOf(t, l), []string{l.path})
	want(t, "ledger, compacted", readLedger(t, l), known)
}

// TestFault_F39_BesideAnEarlierVersionLateLinesStay: lines of an earlier version
// would be read after those taken over, and bring a released attachment back.
func TestFault_F39_BesideAnEarlierVersionLateLinesStay(t *testing.T) {
	a, b := Key{"c1", "net", "eth0"}, Key{"c2", "net", "eth0"}
	l := Open(t.TempDir()).Ledger("me")
	adds(t, l, false, a)
	check(t, os.Rename(l.path, l.legacy))
	adds(t, l, false, b)
	wanted := map[Key]bool{b: true}
	check(t, l.Compact(func(map[Key]Known) []Key {
		check(t, l.Add(Line{Key: a, Released: true}, Line{Key: b, Gone: true}))
		return nil
	}))
	want(t, "ledger", gone(t, l), wanted)
	check(t, l.Compact(func(map[Key]Known) []Key { return nil }))
	want(t, "ledger, compacted", gone(t, l), wanted)
	want(t, "files", filesOf(t, l), []string{l.legacy, l.path})
	check(t, l.Settle(nil))
	want(t, "ledger, settled", gone(t, l), wanted)
	want(t, "files", filesOf(t, l), []string{l.path})
}
