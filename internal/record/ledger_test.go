package record

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestLedgerSaysTheLastOfEachAttachment(t *testing.T) {
	s := Open(t.TempDir())
	a, b, c := Key{"c1", "net", "eth0"}, Key{"c1", "net", "eth1"}, Key{"c1", "other", "eth0"}
	l := s.Ledger("me")
	got, err := l.Read()
	check(t, err)
	want(t, "an empty ledger", got, map[Key]bool{})
	check(t, l.Add(false, a, b, c))
	check(t, l.Add(true, a, c))
	check(t, l.Add(false, c))
	check(t, l.Add(true))
	got, err = l.Read()
	check(t, err)
	want(t, "ledger", got, map[Key]bool{a: true, b: false, c: false})
	other, err := s.Ledger("other").Read()
	check(t, err)
	want(t, "another owner's", other, map[Key]bool{})

	check(t, l.Settle([]Key{b}))
	got, err = l.Read()
	check(t, err)
	want(t, "settled", got, map[Key]bool{b: false})
	check(t, l.Settle(nil))
	got, err = l.Read()
	check(t, err)
	want(t, "settled with nothing", got, map[Key]bool{})
}

func TestLedgerLinesThatAreTornAreNoOthers(t *testing.T) {
	s := Open(t.TempDir())
	l := s.Ledger("")
	a, b := Key{"c1", "net", "eth0"}, Key{"c2", "net", "eth0"}
	check(t, l.Add(false, a))
	info, err := os.Stat(l.path)
	check(t, err)
	for cut := range info.Size() {
		check(t, l.Settle(nil))
		check(t, l.Add(false, a))
		check(t, os.Truncate(l.path, cut))
		check(t, l.Add(true, b))
		got, err := l.Read()
		check(t, err)
		wanted := map[Key]bool{b: true}
		if cut == info.Size()-1 { // only the newline is lost
			wanted[a] = false
		}
		want(t, fmt.Sprint("cut at ", cut), got, wanted)
	}
}

func TestLedgerDropsTheOlderPart(t *testing.T) {
	s := Open(t.TempDir())
	l := s.Ledger("")
	key := func(i int) Key { return Key{fmt.Sprint("container-", i), "net", "eth0"} }
	count := 0
	for files := 0; files < 2; {
		var keys []Key
		for range 1000 {
			keys = append(keys, key(count))
			count++
		}
		check(t, l.Add(false, keys...))
		if _, err := os.Stat(l.path); os.IsNotExist(err) {
			files++
		}
	}
	check(t, l.Add(false, key(count)))
	got, err := l.Read()
	check(t, err)
	_, oldest := got[key(0)]
	_, newest := got[key(count)]
	want(t, "the oldest and the newest", []bool{oldest, newest}, []bool{false, true})
	files, err := filepath.Glob(l.path + "*")
	check(t, err)
	want(t, "files", files, []string{l.path, l.path + ".old"})
	strays, err := s.Strays()
	check(t, err)
	want(t, "strays", len(strays), 0)
}
