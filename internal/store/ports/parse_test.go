package ports

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
)

func TestParse(t *testing.T) {
	tcp := []string{"tcp"}
	for text, want := range map[string][]record.Port{
		"80":                    {{ContainerPort: 80, Protocols: tcp}},
		":80":                   {{ContainerPort: 80, Protocols: tcp}},
		"8080:80":               {{HostPort: 8080, ContainerPort: 80, Protocols: tcp}},
		"8080:80/TCP":           {{HostPort: 8080, ContainerPort: 80, Protocols: tcp}},
		"53:53/tcp+udp":         {{HostPort: 53, ContainerPort: 53, Protocols: []string{"tcp", "udp"}}},
		"9:9/sctp":              {{HostPort: 9, ContainerPort: 9, Protocols: []string{"sctp"}}},
		"127.0.0.1:8080:80/udp": {{HostIP: "127.0.0.1", HostPort: 8080, ContainerPort: 80, Protocols: []string{"udp"}}},
		"127.0.0.1::80":         {{HostIP: "127.0.0.1", HostPort: 0, ContainerPort: 80, Protocols: tcp}},
		"0.0.0.0:8080:80":       {{HostIP: "0.0.0.0", HostPort: 8080, ContainerPort: 80, Protocols: tcp}},
		"[::1]:53:53/udp":       {{HostIP: "::1", HostPort: 53, ContainerPort: 53, Protocols: []string{"udp"}}},
		"[::]::53":              {{HostIP: "::", HostPort: 0, ContainerPort: 53, Protocols: tcp}},
		"[192.0.2.1]:80:80":     {{HostIP: "192.0.2.1", HostPort: 80, ContainerPort: 80, Protocols: tcp}},
		"[::ffff:192.0.2.1]::1": {{HostIP: "192.0.2.1", HostPort: 0, ContainerPort: 1, Protocols: tcp}},
		"65534-65535:1-2":       {{HostPort: 65534, ContainerPort: 1, Protocols: tcp}, {HostPort: 65535, ContainerPort: 2, Protocols: tcp}},
		"80-81/udp":             {{ContainerPort: 80, Protocols: []string{"udp"}}, {ContainerPort: 81, Protocols: []string{"udp"}}},
		"5-5:7":                 {{HostPort: 5, ContainerPort: 7, Protocols: tcp}},
	} {
		expect.Same(t, text, expect.Value(Parse(text))(t), want)
	}
	expect.Same(t, "all ports", len(expect.Value(Parse("1-65535:1-65535"))(t)), 65535)
}

func TestSyntaxErrorsNameThePart(t *testing.T) {
	number := `is not 1 to 65535, or a range FIRST-LAST of them`
	for text, want := range map[string]string{
		"":                  `container port "" ` + number,
		"8080:":             `container port "" ` + number,
		"http:80":           `host port "http" ` + number,
		"8080:http":         `container port "http" ` + number,
		"8080:0":            `container port "0" ` + number,
		"8080:65536":        `container port "65536" ` + number,
		"8080: 80":          `container port " 80" ` + number,
		"8080:+80":          `container port "+80" ` + number,
		"8080:1-2-3":        `container port "1-2-3" ` + number,
		"8080:-2":           `container port "-2" ` + number,
		"0:80":              `host port "0" is not 1 to 65535; leave it out to have one chosen`,
		"127.0.0.1:80":      `host port "127.0.0.1" ` + number,
		"8010-8000:1-11":    `host port "8010-8000" ends before it begins`,
		"8000-8010:80":      `host port "8000-8010" has 11 ports for 1 of the container`,
		"8000:80-90":        `host port "8000" has 1 ports for 11 of the container`,
		"80:80/":            `protocol "" is none of tcp, udp, sctp`,
		"80:80/icmp":        `protocol "icmp" is none of tcp, udp, sctp`,
		"80:80/tcp/udp":     `protocol "tcp/udp" is none of tcp, udp, sctp`,
		"80:80/tcp+TCP":     `protocol "TCP" is named twice`,
		"localhost:80:80":   `host address "localhost" is not an IP address`,
		":80:80":            `host address "" is not an IP address`,
		"::1:53:53":         `host address "::1" needs brackets if it is an IPv6 address, and is none of IPv4`,
		"[fe80::1%e]:1:1":   `host address "fe80::1%e" has a zone, which no rule can match`,
		"[::1:53:53":        `host address "[::1:53:53" has no closing bracket`,
		"[::1]53:53":        `host address "[::1]" must be followed by :HOST:CONTAINER, or ::CONTAINER for a host port to choose`,
		"[::1]:53":          `host address "[::1]" must be followed by :HOST:CONTAINER, or ::CONTAINER for a host port to choose`,
		"[::1]:1:2:3":       `container port "2:3" ` + number,
		"[localhost]:80:80": `host address "localhost" is not an IP address`,
	} {
		expect.Same(t, text, fmt.Sprint(expect.Err(Parse(text))), `port "`+text+`": `+want)
	}
}

// FuzzParse: a text that is accepted is written again as one that means the same.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"80", ":80", "8080:80", "127.0.0.1:8080:80/udp", "[::1]:53:53/tcp+udp", "8000-8010:9000-9010", "[::ffff:1.2.3.4]::1", "1::2", "-", "[]::1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		all, err := Parse(text)
		if err != nil {
			return
		}
		if len(all) > 64 {
			all = all[:64]
		}
		for _, r := range all {
			again, err := Parse(Text(r))
			expect.Must(t, err == nil, "%q became %q: %v", text, Text(r), err)
			expect.Same(t, Text(r), again, []record.Port{r})
		}
	})
}
