package iptables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// LegacyRule is a rule of the legacy variant, with the fields that distinguish
// the shared rules.
type LegacyRule struct {
	Chain, Target string // the target is a chain, or RETURN, DROP, MARK, MASQUERADE
	Comment       string
	In, Out       string
	Mark          uint32
	Src, Dst      netip.Addr // if the rule matches one address
	Encoded       string     // all of the rule but its counters and the chain that it jumps to
}

// HasLegacyTable reports whether the kernel has the table. Asking for the rules of
// a missing table would create it. If the list of tables may not be read, the
// answer is true.
func (x Tool) HasLegacyTable(table string) (bool, error) {
	tables, err := x.legacyTables()
	if errors.Is(err, fs.ErrPermission) {
		return true, nil
	}
	return slices.Contains(tables, table), err
}

// legacyTables reads the kernel's list of tables, which creates none. The list is
// empty if the kernel has no legacy iptables, or has not loaded it. Only root may
// read it.
func (x Tool) legacyTables() ([]string, error) {
	file := "/proc/thread-self/net/ip_tables_names"
	if x.V6() {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	tables, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(tables)), err
}

// LegacyRules returns the rules of a table, and the chains that are not built in.
func (x Tool) LegacyRules(table string) ([]LegacyRule, map[string]bool, error) {
	fd, err := x.socket()
	if err != nil {
		return nil, nil, err
	}
	info, data, err := x.entries(fd, table)
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return nil, nil, fmt.Errorf("%s: list the rules of table %s: %w", x.Name(), table, err)
	}
	rules, chains, err := x.layout().decode(info, data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: read the rules of table %s: %w", x.Name(), table, err)
	}
	return rules, chains, nil
}

// entryLayout holds the offsets in struct ipt_entry, or ip6t_entry.
type entryLayout struct {
	in, out int // names of interfaces
	target  int // target_offset, followed by next_offset
	size    int
}

func (x Tool) layout() entryLayout {
	if x.V6() {
		return entryLayout{in: 64, out: 80, target: 140, size: 168}
	}
	return entryLayout{in: 16, out: 32, target: 88, size: 112}
}

// cacheSize is the size of nfcache, which precedes target_offset.
const cacheSize = 4

// Offsets and sizes in struct xt_entry_target and xt_entry_match, which are
// alike: the size, the name and the revision, and then the extension's own
// data.
const (
	extensionName = 2
	extensionData = 32
	nameSize      = 29
)

// decode reads the entries of a table. A chain that is not built in begins with
// an entry whose target is ERROR and has the chain's name; a jump leads to the
// entry behind it.
func (l entryLayout) decode(info tableInfo, data []byte) ([]LegacyRule, map[string]bool, error) {
	chain, chains := "", make(map[string]bool)
	begins := make(map[int]string)
	var rules []LegacyRule
	jumps := make(map[int]int) // of rules
	for at := 0; at < len(data); {
		e, next, err := l.entry(data[at:])
		if err != nil {
			return nil, nil, err
		}
		if name := builtInAt(info, at); name != "" {
			chain = name
		}
		target := e[binary.NativeEndian.Uint16(e[l.target:]):]
		body := target[extensionData:]
		if name := unix.ByteSliceToString(target[extensionName:][:nameSize]); name == "ERROR" {
			chain = unix.ByteSliceToString(body)
			begins[at+next] = chain
			chains[chain] = true
		} else {
			r := LegacyRule{Chain: chain, Target: name, In: unix.ByteSliceToString(e[l.in:][:16]), Out: unix.ByteSliceToString(e[l.out:][:16])}
			r.Src, r.Dst = l.addresses(e)
			r.Encoded = string(e[:l.target-cacheSize]) + string(e[l.size:len(e)-len(body)])
			if name != "" {
				r.Encoded += string(body)
			}
			if name == "" {
				jumps[len(rules)] = r.verdict(body)
			} else if name == "MARK" && len(body) >= 8 {
				r.Mark = binary.NativeEndian.Uint32(body)
			}
			r.matches(e[l.size:binary.NativeEndian.Uint16(e[l.target:])])
			rules = append(rules, r)
		}
		at += next
	}
	for i, to := range jumps {
		if to >= 0 {
			rules[i].Target = begins[to]
		}
	}
	return rules, chains, nil
}

// entry returns the first entry and its length. It fails unless the entry is
// complete.
func (l entryLayout) entry(data []byte) (e []byte, next int, err error) {
	if len(data) >= l.size {
		target, end := int(binary.NativeEndian.Uint16(data[l.target:])), int(binary.NativeEndian.Uint16(data[l.target+2:]))
		if l.size <= target && target+extensionData+4 <= end && end <= len(data) {
			return data[:end], end, nil
		}
	}
	return nil, 0, errors.New("an entry is cut off")
}

// addresses returns the source and the destination of an entry, which begins with both
// and then has both masks. They are not valid if a mask is not that of one address.
func (l entryLayout) addresses(e []byte) (src, dst netip.Addr) {
	size := l.in / 4
	at := func(i int) netip.Addr {
		if len(bytes.TrimLeft(e[(i+2)*size:][:size], "\xff")) > 0 {
			return netip.Addr{}
		}
		a, _ := netip.AddrFromSlice(e[i*size:][:size]) // of four or sixteen bytes
		return a
	}
	return at(0), at(1)
}

// verdict reads the standard target: a verdict below zero, or the offset that
// it jumps to.
func (r *LegacyRule) verdict(body []byte) int {
	v := int(int32(binary.NativeEndian.Uint32(body)))
	switch v {
	case -1: // -NF_DROP - 1
		r.Target = "DROP"
	case -5: // XT_RETURN
		r.Target = "RETURN"
	}
	return v
}

// matches reads the matches that matter.
func (r *LegacyRule) matches(data []byte) {
	for len(data) >= extensionData {
		size := int(binary.NativeEndian.Uint16(data))
		if size < extensionData || size > len(data) {
			return
		}
		body := data[extensionData:size]
		switch unix.ByteSliceToString(data[extensionName:][:nameSize]) {
		case "comment":
			r.Comment = unix.ByteSliceToString(body)
		case "mark":
			if len(body) >= 8 {
				r.Mark = binary.NativeEndian.Uint32(body)
			}
		}
		data = data[size:]
	}
}

// builtInAt returns the built-in chain that begins at an offset, or "".
func builtInAt(info tableInfo, at int) string {
	for hook, name := range []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"} {
		if info.hooks&(1<<hook) != 0 && int(info.entry[hook]) == at {
			return name
		}
	}
	return ""
}
