package nftform

import (
	"testing"

	"github.com/embedcni/cni/internal/nft"
)

func TestConditionsThatAreRefused(t *testing.T) {
	for _, bad := range []string{
		"ip", "ip saddr", "ip saddr !=", "ip saddr x", "ip6 saddr ::1", "iif lo", "ip saddr 0.0.0.0/0", "tcp", "tcp dport http",
		"meta", "meta nfproto ipv4", "mark -1", "ip saddr {10.0.0.1}", "iifname eth*", "iifname averyveryverylongname", "tcp dport 65536", "ip ttl 1",
	} {
		if _, err := parseCondition(nft.FamilyIPv4, []string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
