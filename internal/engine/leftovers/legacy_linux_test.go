package leftovers

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
)

// ledgerWith writes a ledger as earlier versions did, and returns it.
func ledgerWith(t testing.TB, s *record.Store, ext string, lines ...Line) Ledger {
	t.Helper()
	l := LedgerOf(s, "me")
	var data []byte
	for _, line := range lines {
		data = append(data, expect.Value(record.EncodeLine(line))(t)...)
	}
	expect.NoError(t, os.WriteFile(l.path+ext, data, 0o600))
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

func filesOf(t testing.TB, s *record.Store) (names []string) {
	t.Helper()
	for _, path := range expect.Value(filepath.Glob(s.Dir() + "/ledger.*"))(t) {
		names = append(names, filepath.Ext(path))
	}
	return names
}

var keyA, keyB, keyC = Key{"c1", "net", "eth0"}, Key{"c1", "net", "eth1"}, Key{"c1", "other", "eth0"}

// TestLedgerSaysTheLastOfEachAttachment: the files of each earlier version are read in the
// order of their lines, and a line that sums up others counts as earlier than all that do not.
func TestLedgerSaysTheLastOfEachAttachment(t *testing.T) {
	s := record.Open(t.TempDir())
	expect.Same(t, "no ledger", gone(t, LedgerOf(s, "me")), map[Key]bool{})
	ledgerWith(t, s, ".old", Line{Key: keyA}, Line{Key: keyB, Gone: true})
	ledgerWith(t, s, "", Line{Key: keyA, Gone: true}, Line{Key: keyB})
	ledgerWith(t, s, ".claims.prev-10", Line{Key: keyB, Gone: true})
	ledgerWith(t, s, ".claims.prev-9", Line{Key: keyB})
	l := ledgerWith(t, s, ".claims", Line{Key: keyB, Sum: true}, Line{Key: keyC})
	expect.Same(t, "ledger", gone(t, l), map[Key]bool{keyA: true, keyB: true, keyC: false})
	expect.Same(t, "another owner's", gone(t, LedgerOf(s, "other")), map[Key]bool{})

	expect.NoError(t, l.Settle([]Key{keyA, keyC}))
	expect.Same(t, "settled", gone(t, l), map[Key]bool{keyB: true})
	expect.NoError(t, l.Forget([]Key{keyB}))
	expect.Same(t, "forgotten", gone(t, l), map[Key]bool{})
	expect.NoError(t, l.Settle(nil))
	expect.Same(t, "files", len(filesOf(t, s)), 0)
	expect.NoError(t, l.Forget([]Key{keyA}))
	expect.Same(t, "files after all", len(filesOf(t, s)), 0)
}

// TestFault_F34_ALedgerOfAnEarlierVersionBringsNoReleasedOneBack, also where only the
// oldest versions have written.
func TestFault_F34_ALedgerOfAnEarlierVersionBringsNoReleasedOneBack(t *testing.T) {
	for _, ext := range []string{"", ".claims"} {
		l := ledgerWith(t, record.Open(t.TempDir()), ext, Line{Key: keyA}, Line{Key: keyB})
		expect.NoError(t, l.Forget([]Key{keyA}))
		expect.Same(t, "ledger", gone(t, l), map[Key]bool{keyB: false})
		f, err := os.OpenFile(l.path+ext, os.O_APPEND|os.O_WRONLY, 0) // the earlier version goes on
		expect.NoError(t, err)
		line, err := record.EncodeLine(Line{Key: keyC})
		expect.NoError(t, err)
		expect.NoError(t, expect.Err(f.Write(line)))
		expect.NoError(t, f.Close())
		expect.Same(t, "with a later line", gone(t, l), map[Key]bool{keyB: false, keyC: false})
	}
}

// TestLedgerNamesAddresses: the lines of an attachment add up.
func TestLedgerNamesAddresses(t *testing.T) {
	one, two := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	l := ledgerWith(t, record.Open(t.TempDir()), ".claims",
		Line{Key: keyA, Dirs: []string{"/ipam/net"}, Time: at}, Line{Key: keyA, Addresses: []netip.Addr{one}},
		Line{Key: keyA, Addresses: []netip.Addr{one, two}, Doubtful: []netip.Addr{two}}, Line{Key: keyA, Gone: true, Time: at.Add(time.Hour)})
	known := expect.Value(l.Read())(t)
	expect.Same(t, "known", known, map[Key]Known{keyA: {
		Gone: true, Dirs: []string{"/ipam/net"}, Addresses: []netip.Addr{one, two}, Doubtful: []netip.Addr{two}, Since: at, Until: at.Add(time.Hour),
	}})
	expect.Same(t, "names", []bool{known[keyA].Names(two), known[keyA].Names(netip.MustParseAddr("10.1.0.4"))}, []bool{true, false})
}

func TestLedgerLinesThatAreTornAreNoOthers(t *testing.T) {
	l := ledgerWith(t, record.Open(t.TempDir()), ".claims", Line{Key: keyA}, Line{Key: keyB})
	data := expect.Value(os.ReadFile(l.path + ".claims"))(t)
	expect.NoError(t, os.WriteFile(l.path+".claims", data[:len(data)-9], 0o600))
	expect.NoError(t, l.Forget([]Key{keyC}))
	expect.Same(t, "ledger", gone(t, l), map[Key]bool{keyA: false})
}
