package record

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// ledgerOf writes a ledger as earlier versions did, and returns it.
func ledgerOf(t testing.TB, s *Store, ext string, lines ...Line) Ledger {
	t.Helper()
	l := s.Ledger("me")
	var data []byte
	for _, line := range lines {
		text := expect.Value(encodeLine(line))(t)
		data = append(data, text...)
	}
	check(t, os.WriteFile(l.path+ext, data, 0o600))
	return l
}

func gone(t testing.TB, l Ledger) map[Key]bool {
	t.Helper()
	known := expect.Value(l.Read())(t)
	all := map[Key]bool{}
	for key, k := range known {
		all[key] = k.Gone
	}
	return all
}

func filesOf(t testing.TB, s *Store) (names []string) {
	t.Helper()
	paths := expect.Value(filepath.Glob(s.dir + "/ledger.*"))(t)
	for _, path := range paths {
		names = append(names, filepath.Ext(path))
	}
	return names
}

var keyA, keyB, keyC = Key{"c1", "net", "eth0"}, Key{"c1", "net", "eth1"}, Key{"c1", "other", "eth0"}

// TestLedgerSaysTheLastOfEachAttachment: the files of each earlier version are read in the
// order of their lines, and a line that sums up others counts as earlier than all that do not.
func TestLedgerSaysTheLastOfEachAttachment(t *testing.T) {
	s := Open(t.TempDir())
	want(t, "no ledger", gone(t, s.Ledger("me")), map[Key]bool{})
	ledgerOf(t, s, ".old", Line{Key: keyA}, Line{Key: keyB, Gone: true})
	ledgerOf(t, s, "", Line{Key: keyA, Gone: true}, Line{Key: keyB})
	ledgerOf(t, s, ".claims.prev-10", Line{Key: keyB, Gone: true})
	ledgerOf(t, s, ".claims.prev-9", Line{Key: keyB})
	l := ledgerOf(t, s, ".claims", Line{Key: keyB, Sum: true}, Line{Key: keyC})
	want(t, "ledger", gone(t, l), map[Key]bool{keyA: true, keyB: true, keyC: false})
	want(t, "another owner's", gone(t, s.Ledger("other")), map[Key]bool{})

	check(t, l.Settle([]Key{keyA, keyC}))
	want(t, "settled", gone(t, l), map[Key]bool{keyB: true})
	check(t, l.Forget([]Key{keyB}))
	want(t, "forgotten", gone(t, l), map[Key]bool{})
	check(t, l.Settle(nil))
	want(t, "files", len(filesOf(t, s)), 0)
	check(t, l.Forget([]Key{keyA}))
	want(t, "files after all", len(filesOf(t, s)), 0)
}

// TestFault_F34_ALedgerOfAnEarlierVersionBringsNoReleasedOneBack, also where only the
// oldest versions have written.
func TestFault_F34_ALedgerOfAnEarlierVersionBringsNoReleasedOneBack(t *testing.T) {
	for _, ext := range []string{"", ".claims"} {
		s := Open(t.TempDir())
		l := ledgerOf(t, s, ext, Line{Key: keyA}, Line{Key: keyB})
		check(t, l.Forget([]Key{keyA}))
		want(t, "ledger", gone(t, l), map[Key]bool{keyB: false})
		f, err := os.OpenFile(l.path+ext, os.O_APPEND|os.O_WRONLY, 0) // the earlier version goes on
		check(t, err)
		line, err := encodeLine(Line{Key: keyC})
		check(t, err)
		_, err = f.Write(line)
		check(t, err)
		check(t, f.Close())
		want(t, "with a later line", gone(t, l), map[Key]bool{keyB: false, keyC: false})
	}
}

// TestLedgerNamesAddresses: the lines of an attachment add up.
func TestLedgerNamesAddresses(t *testing.T) {
	one, two := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	l := ledgerOf(t, Open(t.TempDir()), ".claims",
		Line{Key: keyA, Dirs: []string{"/ipam/net"}, Time: at}, Line{Key: keyA, Addresses: []netip.Addr{one}},
		Line{Key: keyA, Addresses: []netip.Addr{one, two}, Doubtful: []netip.Addr{two}}, Line{Key: keyA, Gone: true, Time: at.Add(time.Hour)})
	known := expect.Value(l.Read())(t)
	want(t, "known", known, map[Key]Known{keyA: {
		Gone: true, Dirs: []string{"/ipam/net"}, Addresses: []netip.Addr{one, two}, Doubtful: []netip.Addr{two}, Since: at, Until: at.Add(time.Hour),
	}})
	want(t, "names", []bool{known[keyA].Names(two), known[keyA].Names(netip.MustParseAddr("10.1.0.4"))}, []bool{true, false})
}

func TestLedgerLinesThatAreTornAreNoOthers(t *testing.T) {
	l := ledgerOf(t, Open(t.TempDir()), ".claims", Line{Key: keyA}, Line{Key: keyB})
	data := expect.Value(os.ReadFile(l.path + ".claims"))(t)
	check(t, os.WriteFile(l.path+".claims", data[:len(data)-9], 0o600))
	check(t, l.Forget([]Key{keyC}))
	want(t, "ledger", gone(t, l), map[Key]bool{keyA: false})
}
