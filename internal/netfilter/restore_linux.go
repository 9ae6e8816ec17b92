package netfilter

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// script are commands for iptables-restore. Those of a table follow each other.
type script []scriptLine

type scriptLine struct{ table, text string }

// add adds a command for a table.
func (s *script) add(table string, words ...string) error {
	text := joinWords(words)
	if strings.Contains(text, "\n") {
		return fmt.Errorf("table %s: %q: %w", table, text, errLineFeed)
	}
	*s = append(*s, scriptLine{table, text})
	return nil
}

// rule adds a command about a rule: "-A", "-I", "-C" or "-D".
func (s *script) rule(verb string, r desiredRule) error {
	return s.add(r.table, slices.Concat([]string{verb, r.chain}, r.args)...)
}

// render returns the text that iptables-restore reads, each table a transaction
// of its own, and on which lines of it, from 1 on, the commands are.
func (s script) render() (text string, numbers []int) {
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

// run runs the commands, in one transaction for each table.
//
// That of the nf_tables variant is one message to the kernel. It has to fit in
// the buffer of a socket, which only root of the machine can make larger than
// the 208 KiB that it has, and a rule takes up to 1 KiB. Where there is more, it
// takes several: the chains come first, as the rules refer to them.
func (s script) run(ctx context.Context, x xtables) error {
	const most = 150
	for part := range slices.Chunk(s, most) {
		text, _ := part.render()
		if err := x.restore(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// failedLine returns the line that iptables-restore says has failed, or 0. Of
// a rule that "-C" does not find, all variants say
//
//	iptables-restore: line 3 failed
//	iptables-nft-restore: line 3 failed: Bad rule (does a matching rule exist in that chain?).
func failedLine(said string) int {
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

// joinWords writes words as iptables-restore reads them: splitWords undoes it.
func joinWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = w
		if w == "" || strings.ContainsFunc(w, special) {
			quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(w) + `"`
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
