package iptables

import (
	"errors"
	"os/exec"
	"slices"
	"testing"
)

func TestJoinWordsIsUndoneBySplitWords(t *testing.T) {
	for _, words := range [][]string{
		{"-s", "10.1.0.2/32"}, {`a "b" \c`, "", "it's", "$x", "[::1]:80"}, {"\t", "#"}, {`\`, `"`},
	} {
		got, err := splitWords(JoinWords(words))
		if err != nil || !slices.Equal(got, words) {
			t.Errorf("%q: got %q, %v from %s", words, got, err, JoinWords(words))
		}
	}
}

func TestFailedLine(t *testing.T) {
	for said, want := range map[string]int{
		"iptables-restore: line 3 failed": 3,
		"iptables-nft-restore: line 12 failed: Bad rule (does a matching rule exist in that chain?).": 12,
		"exit status 1: sendmsg() failed: Message too long; line 459 failed: Message too long.":       459,
		"Error occurred at line: 4":                           0,
		"line x failed, line 7: RULE_APPEND failed (Invalid)": 0,
		"": 0,
	} {
		if got := FailedLine(said); got != want {
			t.Errorf("%q: got %d, want %d", said, got, want)
		}
	}
}

func TestAToolThatIsMissing(t *testing.T) {
	x := Tool{Family: "no-such-iptables"}
	if _, err := x.lookPath(t.Context(), "restore"); !errors.Is(err, exec.ErrNotFound) {
		t.Error(err)
	}
}
