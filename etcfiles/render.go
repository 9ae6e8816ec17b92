package etcfiles

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
)

// renderResolvConf renders a resolver configuration:
//
//	nameserver 10.1.0.1
//	domain example.org
//	search example.org example.net
//	options ndots:2
//
// Without a value there is no line. Resolvers use the last of domain and search, so
// search wins, as in the CNI specification. A value that would be read as something else
// is an error: it comes from a plugin.
func renderResolvConf(dns types.DNS) ([]byte, error) {
	var b bytes.Buffer
	for _, server := range dns.Nameservers {
		if _, err := netip.ParseAddr(server); err != nil {
			return nil, fmt.Errorf("name server: %w", err)
		}
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	for _, line := range []struct {
		keyword string
		words   []string
	}{{"domain", nonEmpty(dns.Domain)}, {"search", dns.Search}, {"options", dns.Options}} {
		for _, word := range line.words {
			if err := checkWord(word); err != nil {
				return nil, fmt.Errorf("%s: %w", line.keyword, err)
			}
		}
		if len(line.words) > 0 {
			fmt.Fprintf(&b, "%s %s\n", line.keyword, strings.Join(line.words, " "))
		}
	}
	return b.Bytes(), nil
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// checkWord refuses a word that would end a line, begin another word, or begin a comment.
func checkWord(word string) error {
	if i := strings.IndexFunc(word, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || r == '#' || r == ';' || r == unicode.ReplacementChar
	}); i >= 0 || word == "" {
		return fmt.Errorf("%q is not one word", word)
	}
	return nil
}

// renderHosts renders the entries after those of localhost, which each file has:
//
//	127.0.0.1	localhost
//	::1	localhost ip6-localhost ip6-loopback
//	10.1.0.2	web-1 web
func renderHosts(entries []Entry) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	for _, e := range entries {
		if !e.Addr.IsValid() || e.Addr.Zone() != "" {
			return nil, fmt.Errorf("hosts: %v is no address for a name", e.Addr)
		}
		if len(e.Names) == 0 {
			return nil, fmt.Errorf("hosts: %v has no name", e.Addr)
		}
		for _, name := range e.Names {
			if err := checkWord(name); err != nil {
				return nil, fmt.Errorf("hosts: name of %v: %w", e.Addr, err)
			}
		}
		fmt.Fprintf(&b, "%s\t%s\n", e.Addr.Unmap(), strings.Join(e.Names, " "))
	}
	return b.Bytes(), nil
}
