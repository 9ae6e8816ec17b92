package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Script holds commands for iptables-restore, grouped by table.
type Script []scriptLine

type scriptLine struct {
	table, text string
	words       []string // nil if only the text is known
}

// Add adds a command for a table.
func (s *Script) Add(table string, words ...string) error {
	return s.add(scriptLine{table, JoinWords(words), words})
}

// AddText adds a command for a table, in the text that iptables-restore reads.
func (s *Script) AddText(table, text string) error {
	return s.add(scriptLine{table: table, text: text})
}

func (s *Script) add(l scriptLine) error {
	if strings.Contains(l.text, "\n") {
		return fmt.Errorf("table %s: %q: %w", l.table, l.text, ErrLineFeed)
	}
	*s = append(*s, l)
	return nil
}

// Words calls each with the commands in order: the verb, the chain and the rest. It
// returns false, and calls nothing, if only the text of a command is known.
func (s Script) Words(each func(table, verb, chain string, rest []string)) bool {
	if slices.ContainsFunc(s, func(l scriptLine) bool { return len(l.words) < 2 }) {
		return false
	}
	for _, l := range s {
		each(l.table, l.words[0], l.words[1], l.words[2:])
	}
	return true
}

// Render returns the text for iptables-restore, with a transaction for each
// table, and the line numbers of the commands, from 1.
func (s Script) Render() (text string, numbers []int) {
	var b strings.Builder
	table, line := "", 0
	put := func(text string) {
		b.WriteString(text + "\n")
		line++
	}
	for _, l := range s {
		if l.table != table {
			if table != "" {
				put("COMMIT")
			}
			table = l.table
			put("*" + table)
		}
		put(l.text)
		numbers = append(numbers, line)
	}
	put("COMMIT")
	return b.String(), numbers
}

// MostLines is the number of commands in one transaction of the nf_tables variant.
const MostLines = 150

// Run runs the commands, in one transaction for each table.
//
// The nf_tables variant sends a transaction as one message. It has to fit in the
// buffer of a socket, which only the machine's root can enlarge beyond the
// default 208 KiB, and a rule takes up to 1 KiB. Larger scripts take several
// transactions: the chains come first, because rules refer to them. The legacy variant
// exchanges the whole table each time, and takes scripts of any size.
func (s Script) Run(ctx context.Context, x Tool) error {
	most := MostLines
	if x.Legacy {
		most = max(len(s), 1)
	}
	for part := range slices.Chunk(s, most) {
		text, _ := part.Render()
		if err := x.Restore(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// Parts returns the script in parts of so many commands, or of few more: a part does not
// end with the deletion of a rule that the next command adds elsewhere.
func (s Script) Parts(most int) (parts []Script) {
	for len(s) > most {
		n := most
		for n < len(s) && len(s[n-1].words) > 0 && s[n-1].words[0] == "-D" {
			n++
		}
		parts, s = append(parts, s[:n]), s[n:]
	}
	return append(parts, s)
}

// FailedLine returns the line that iptables-restore says has failed, or 0. Of
// a rule that "-C" does not find, all variants say
//
//	iptables-restore: line 3 failed
//	iptables-nft-restore: line 3 failed: Bad rule (does a matching rule exist in that chain?).
func FailedLine(said string) int {
	for rest := said; ; {
		_, after, found := strings.Cut(rest, "line ")
		if !found {
			return 0
		}
		rest = after
		n := 0
		if _, err := fmt.Sscanf(after, "%d failed", &n); err == nil && strings.HasPrefix(after, fmt.Sprintf("%d failed", n)) {
			return n
		}
	}
}

// JoinWords writes words in the form that iptables-restore reads. splitWords
// undoes it.
func JoinWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = w
		if w == "" || strings.ContainsFunc(w, special) {
			quoted[i] = `"` + strings.ReplaceAll(strings.ReplaceAll(w, `\`, `\\`), `"`, `\"`) + `"`
		}
	}
	return strings.Join(quoted, " ")
}

// special reports whether a word with r in it needs quotes.
func special(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	}
	return !strings.ContainsRune("-_./:,!", r)
}

// ErrLineFeed means that a rule cannot be written in a line of iptables-restore,
// which would take the rest for a command.
var ErrLineFeed = errors.New("a line feed in a rule")
